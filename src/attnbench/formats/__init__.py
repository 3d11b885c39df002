"""A run in other formats: attnbench's exports, and the layouts of older scripts, written and read."""
