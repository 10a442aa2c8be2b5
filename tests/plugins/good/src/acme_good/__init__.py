"""A third party's backend: the NumPy engine as a machine with few chips."""
