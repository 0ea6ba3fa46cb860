"""Where kernels stand below what the device can do at most, and why."""
