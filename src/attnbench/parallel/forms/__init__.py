"""Forms of context-parallel attention, one per file: how rows are distributed, and what the ranks exchange."""
