"""A third party's backend whose framework is not there."""
