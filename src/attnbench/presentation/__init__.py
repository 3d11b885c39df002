"""A run arranged for reading: tables as texts, notes and reading help, independent of the output format."""
