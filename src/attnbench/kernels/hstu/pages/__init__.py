"""Pages of a cache, copied between two memories by one launch."""
