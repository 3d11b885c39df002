"""HSTU attention of a serving step: cached keys and values in pages, new ones beside them."""
