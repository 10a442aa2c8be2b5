"""A third party that claims what another one has."""
