"""The PyTorch backend of Mithril: plans written out as plain PyTorch and run without autograd.

`plugin` describes the backend and imports no framework; `options` are its own options; `engine`
puts the rest together. `kernels` say how each op is written in PyTorch; `program` turns programs
into straight-line Python, and holds the runtime library that this text calls; `executors` run it in
this process or on a pool of one process a device; `launch` starts and joins jobs of torchrun;
`interop` lets tensors and models pass to and from PyTorch; `eject` writes programs to files.
"""
