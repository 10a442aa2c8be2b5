"""A third party whose package is half there."""
