"""Comparison of samplers, ours and others', replayed on recorded sweeps; ``docs/search-efficiency.md``."""
