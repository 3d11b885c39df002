"""Recommender data: read from real files or drawn from a seed, and written in the layout of NVIDIA's preprocessing."""
