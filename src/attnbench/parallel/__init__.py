"""Attention of one problem over several devices: who has which rows, what the ranks exchange, and their processes."""
