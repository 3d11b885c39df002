"""Elementwise and row-wise operations of an HSTU model, one kernel launch each."""
