"""A third party's backend under another third party's name."""
