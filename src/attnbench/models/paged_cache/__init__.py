"""Keys and values of users between requests, in pages on the device and, if wanted, in host memory."""

from attnbench.models.paged_cache.cache import CacheStep, Counts, PagedCache

__all__ = ["CacheStep", "Counts", "PagedCache"]
