"""Comparison of runs: what changed between two, what is noise, what is a regression."""
