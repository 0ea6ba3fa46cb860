"""Paged prefill: new queries of each sequence over a paged cache, one folder per implementation."""
