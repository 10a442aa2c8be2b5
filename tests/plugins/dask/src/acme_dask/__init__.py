"""A third party's backend on another framework: Dask, whose arrays are computed later."""
