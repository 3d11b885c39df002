"""Building blocks of every kernel family: rows, Hopper pipelines, facts of a card, limits of 32-bit numbers."""
