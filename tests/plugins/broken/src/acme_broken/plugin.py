"""Talks to its hardware while it is imported, which fails."""

from acme_broken.driver import probe

BOARDS = probe(slot=0)
