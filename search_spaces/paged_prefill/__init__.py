"""The spaces of paged_prefill: one module per implementation."""
