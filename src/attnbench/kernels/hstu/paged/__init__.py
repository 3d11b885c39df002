"""HSTU attention for serving: cached keys and values in pages, those of the new rows in packed tensors."""
