"""Named sets of cases and backends (TOML), and the plan that a request becomes."""
