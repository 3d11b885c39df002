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


def cache_folder() -> str:
    """Where it is, as Triton reads this environment: TRITON_CACHE_DIR, or .triton/cache in TRITON_HOME."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")  # noqa: PTH111 (which fails where there is none)
    return os.environ.get("TRITON_CACHE_DIR") or str(Path(home, ".triton", "cache"))


def pinned() -> dict[str, str]:
    """The folder as an environment variable: torch's compiler takes one of its own where none is set, for all others too."""
    return {"TRITON_CACHE_DIR": cache_folder()}


def compile_cache() -> CompileCache:
    """What this environment's holds."""
    folder = cache_folder()
    kernels = size = 0
    for place, _, names in os.walk(folder):  # of a folder that is not there, nothing
        for name in names:
            try:
                size += Path(place, name).lstat().st_size
            except FileNotFoundError:  # a process that compiles moves its drafts
                continue
            kernels += name.endswith((".cubin", ".hsaco"))
    return CompileCache(folder, kernels, size / MIB)
