"""A third party's backend under the core's own name."""
