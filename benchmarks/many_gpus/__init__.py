"""A grid of studies on one GPU of a host, on two, on four, and by Ray: ``python -m benchmarks.many_gpus``."""
