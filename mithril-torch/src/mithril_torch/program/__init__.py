"""From programs of the core to Python text over PyTorch: graph passes, emitter, runtime library."""
