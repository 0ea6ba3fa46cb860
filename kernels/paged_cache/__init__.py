"""Filling a paged cache: quantization, and the kernel that appends tokens."""
