"""The JAX backend of Mithril: plans lowered to one jitted XLA program.

`plugin` describes the backend and imports no framework; `options` are its own options; `devices`
finds JAX's devices and lays arrays out on them; `lower` turns a program into a function JAX can
trace; `engine` puts these together; `interop` lets arrays and models pass to and from JAX.
"""
