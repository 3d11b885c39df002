"""Correctness before speed: comparison with the oracle, error budgets, and detection of misleading launches."""
