"""Right before fast: comparison with the oracle, error budgets, and the cheats a timing cannot see."""
