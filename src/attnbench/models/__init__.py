"""Whole models whose attention is pluggable; of our own code they may import the kernels alone."""
