"""Attention over packed sequences in Gluon as the framework sees it, and the callable that users get."""
