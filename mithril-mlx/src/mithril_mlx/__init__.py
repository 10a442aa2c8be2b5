"""The MLX backend of Mithril: explicit programs on Apple's framework, on Macs and on Linux.

`plugin` describes the backend and imports no framework; `options` are its own options; `tensors`
converts arrays; `kernels` are the ops; `engine` runs programs, on one machine or as one of the
processes of a job; `interop` lets arrays pass to and from MLX.
"""
