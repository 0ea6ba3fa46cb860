"""The notebook that profiles attention on Intel Gaudi: fused SDPA, the initial PagedAttention and the flat one, a step
of decoding each; sizes, context lengths and schedule are its own."""
