"""A run arranged for reading: tables as texts, notes and reading help, before anybody draws them."""
