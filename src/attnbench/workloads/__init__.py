"""Problem families, one folder each: the case, its exact work, its inputs and its oracle."""
