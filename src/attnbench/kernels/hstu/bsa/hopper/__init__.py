"""Kernels in Gluon for sm_90: specialised warps, a dynamic tile scheduler."""
