"""Named sets of cases and backends (TOML), and the plan that is built from a request."""
