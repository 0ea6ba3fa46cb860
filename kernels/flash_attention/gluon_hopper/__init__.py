"""Flash attention in Gluon for Hopper: a warp that loads beside groups of warps that compute.

It is no implementation that is searched or served yet: it was compiled and simulated, and no GPU has run it.
"""
