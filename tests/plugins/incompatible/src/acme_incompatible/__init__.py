"""A third party's backend for a backend API to come."""
