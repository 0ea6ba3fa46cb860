"""Kernels below the device's limits: how far, and why."""
