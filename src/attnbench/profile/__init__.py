"""Profilers under one roof: ncu, nsys and torch.profiler, run and parsed into the same records."""
