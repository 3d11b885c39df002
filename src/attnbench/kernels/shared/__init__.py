"""What kernels of every family are made of: rows, Hopper pipelines, facts of a card, limits of 32-bit numbers."""
