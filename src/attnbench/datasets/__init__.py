"""Recommender data: real files read, users drawn by seed, both written in the layout of NVIDIA's preprocessing."""
