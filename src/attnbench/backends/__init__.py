"""Adapters, one per file: every implementation, ours and those of users, has the interface of `base`."""
