"""Attention of one problem over several devices: distribution of rows, communication schemes, and rank processes."""
