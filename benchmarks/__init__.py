"""Measurements against limits; run one with `python -m benchmarks.NAME`, see README.md."""
