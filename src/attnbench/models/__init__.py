"""Whole models with exchangeable attention; of attnbench's code they may import only the kernels."""
