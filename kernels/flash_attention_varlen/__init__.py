"""Flash attention over packed sequences of different lengths, ``[T, H, D]``, one folder per implementation."""
