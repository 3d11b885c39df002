"""Adapters, one a file: every implementation, ours and strangers', through the same seam (`base`)."""
