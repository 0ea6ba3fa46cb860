"""One module per operation: its space, validity, default and cost; triton-free, importable without a GPU."""
