"""Implementation, precision and launch parameters searched together."""
