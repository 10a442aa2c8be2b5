"""A backend on PyTorch as a library of arrays, begun with `mithril backends new`."""
