"""Kernels in Gluon for sm_90: warp-specialized, with a dynamic tile scheduler."""
