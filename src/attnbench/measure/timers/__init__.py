"""Timers, one per file; found by scanning this folder."""
