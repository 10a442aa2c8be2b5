"""A third party's backend that cannot be imported."""
