"""Parts that Triton kernels share, one idea a module.

Arguments that belong together are named tuples, of tensors and numbers or of constants (``tl.constexpr``). Of the
former no field may be called ``values`` or ``type``, of the latter ``value`` or ``type``: those are attributes of
Triton's own (3.6). Lengths stay arguments of their own, since ``do_not_specialize`` does not reach into tuples; so do
tensor descriptors, which launches find at the top level alone.
"""
