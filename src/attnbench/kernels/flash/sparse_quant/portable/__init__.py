"""Triton kernels for sm_89 and later: the two launches that quantise, and the forward."""
