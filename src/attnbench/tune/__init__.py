"""Searching the configuration space of a backend: compiled ahead, checked, raced, kept."""
