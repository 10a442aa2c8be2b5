"""A third party's plugin: an op, a layer, a kernel, a schedule, passes, a command, an observer."""
