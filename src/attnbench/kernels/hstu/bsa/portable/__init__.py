"""Kernels in Triton, sm_80 and later."""
