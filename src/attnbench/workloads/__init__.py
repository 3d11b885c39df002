"""Problem families, a folder each: the case, its exact work, its inputs and its oracle."""
