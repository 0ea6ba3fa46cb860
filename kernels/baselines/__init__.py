"""Implementations that are compared, not tuned by us; each imports its own library inside its functions.

Example (on an NVIDIA GPU):
    >>> inputs = DEFINITION.make_inputs(shape, seed=0, device="cuda")  # of the shape's operation
    >>> out = FlashInfer().prepare(shape, inputs)()
"""
