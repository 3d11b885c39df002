"""One way of timing a file; found by scanning this folder."""
