"""Run ncu, nsys and torch.profiler, and parse their output into the same records."""
