"""The spaces of paged_decode: one module per implementation."""
