"""Runs: a plan carried out by workers, resumed after a stop, written after each group."""
