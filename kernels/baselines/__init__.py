"""Implementations that are compared, not tuned by us; each imports its own library inside its functions."""
