"""Keys of kernels in Triton's cache on disk, which must be the same in every process."""

from __future__ import annotations

import threading
from typing import Any

from triton.runtime import jit

_hashing = threading.Lock()


def hash_callees_first(kernel: Any) -> None:
    """Hash the functions of a kernel before those that call them.

    The key of a kernel in the cache on disk contains the globals of all its functions.  Triton 3.6 takes those of a callee
    before it hashes the callee, which finds them: they were in the key only if a kernel launched earlier in this process
    had called the same function.  So a kernel compiled by one process was compiled again by the next.
    """
    if getattr(kernel, "hash", "") is not None:
        return  # done already, or an interpreted function
    finder = jit.DependenciesFinder
    with _hashing:
        merge = finder._update_hash

        def hash_and_merge(self: Any, callee: Any) -> None:
            callee.cache_key  # noqa: B018 (computes it)
            merge(self, callee)

        finder._update_hash = hash_and_merge
        try:
            kernel.cache_key  # noqa: B018
        finally:
            finder._update_hash = merge
