"""Forms of context-parallel attention, a file each: how the rows lie, and what the ranks exchange."""
