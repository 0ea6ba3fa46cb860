"""Flash attention: dense forward over ``[B, S, H, D]``, one folder per implementation."""
