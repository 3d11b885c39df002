"""Timing and memory measurement of closures: timers, cache state, interleaving.  Imports no backend."""
