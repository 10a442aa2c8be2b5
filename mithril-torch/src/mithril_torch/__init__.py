"""The PyTorch backend of Mithril: plans written out as plain PyTorch and run without autograd.

`plugin` describes the backend and imports no framework; `options` are its own options; `kernels`
say how each op is written in PyTorch; `source` writes a program as straight-line Python; `prelude`
holds the functions that written programs call; `engine` puts these together; `pool` runs programs
on one process a device; `interop` lets tensors and models pass to and from PyTorch.
"""
