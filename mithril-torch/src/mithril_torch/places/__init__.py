"""Where programs run: this process, a pool of workers, or all devices in turn."""
