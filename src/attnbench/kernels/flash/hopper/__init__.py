"""Kernels in Gluon for sm_90: a producer warp, and consumer warpgroups."""
