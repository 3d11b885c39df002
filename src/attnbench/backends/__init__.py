"""Adapters, one a file: every implementation, ours and those of users, through the same seam (`base`)."""
