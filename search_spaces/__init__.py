"""Operations and the spaces of their implementations; triton-free, importable without a GPU."""
