"""Triton kernels for sm_80 and later: the lists of a block map, and the forward over them."""
