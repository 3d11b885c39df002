"""Triton kernels for sm_89 and later: quantisation, and the forward over the quantised tensors."""
