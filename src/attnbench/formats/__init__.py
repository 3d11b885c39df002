"""A run in other formats: exports of ours, and layouts of older scripts, written and read."""
