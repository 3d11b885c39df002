"""Triton's compile cache: its folder and size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True, slots=True)
class CompileCache:
    """Contents on disk: kernels and the modules that launch them."""

    folder: str
    kernels: int
    "compiled for a GPU"
    mib: float


def cache_folder() -> str:
    """Return the folder as Triton determines it: TRITON_CACHE_DIR, or .triton/cache in TRITON_HOME."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")  # noqa: PTH111 (which fails where there is none)
    return os.environ.get("TRITON_CACHE_DIR") or str(Path(home, ".triton", "cache"))


def pinned() -> dict[str, str]:
    """Return the folder as an environment variable: if unset, torch's compiler sets one of its own for all."""
    return {"TRITON_CACHE_DIR": cache_folder()}


def compile_cache() -> CompileCache:
    """Return the contents of the cache of this environment."""
    folder = cache_folder()
    kernels = size = 0
    for place, _, names in os.walk(folder):  # nothing for a missing folder
        for name in names:
            try:
                size += Path(place, name).lstat().st_size
            except FileNotFoundError:  # a compiling process renames its drafts
                continue
            kernels += name.endswith((".cubin", ".hsaco"))
    return CompileCache(folder, kernels, size / MIB)
