"""Timing and memory of closures: timers, cache state, interleaving.  Knows no backend."""
