"""The folder in which Triton keeps what it compiled: where it is, and how large."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True, slots=True)
class CompileCache:
    """What is kept on disk, kernels and the modules that launch them."""

    folder: str
    kernels: int
    "compiled for a card"
    mib: float


def compile_cache() -> CompileCache:
    """The one that this environment names, as Triton reads it: TRITON_CACHE_DIR, or .triton/cache in TRITON_HOME."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    kernels = size = 0
    for place, _, names in os.walk(folder):  # of a folder that is not there, nothing
        for name in names:
            try:
                size += Path(place, name).lstat().st_size
            except FileNotFoundError:  # a process that compiles moves its drafts
                continue
            kernels += name.endswith((".cubin", ".hsaco"))
    return CompileCache(str(folder), kernels, size / MIB)
