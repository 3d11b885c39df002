"""Keys and values of users between requests, in pages on the device and, if wanted, in host memory."""

from attnbench.models.paged_cache.cache import Choice, PagedCache
from attnbench.models.paged_cache.step import Ahead, CacheStep, Counts

__all__ = ["Ahead", "CacheStep", "Choice", "Counts", "PagedCache"]
