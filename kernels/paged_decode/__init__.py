"""Paged decode: the last queries of each sequence over a paged cache, one folder per implementation."""
