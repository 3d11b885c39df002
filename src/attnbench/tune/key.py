"""What an answer holds for: the bucket of shapes, the card, the versions, and the source of the kernels.

A kept answer is used again where all of these are the same; a line changed in a kernel, another driver
or one configuration more make it another question.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError
from attnbench.record import Environment, Settings
from attnbench.stats.race_data import Rules
from attnbench.workloads.base import Workload

ROUNDED = ("batch", "seqlen", "seqlen_k", "scaling_seqlen")
"""Axes of which a bucket holds every value up to the next power of two."""

ROOMS = ("attnbench.kernels", "attnbench.backends")
"""Where the code of a shipped backend lies."""

SETTINGS = ("timer", "l2", "regime", "input", "seed", "lock_clocks")
"""Of the settings what can change who is fastest."""


def bucket(workload: Workload, case: Any) -> Any:
    """The case that stands for its bucket: batch and lengths rounded up to powers of two.

    A case that would contradict itself there is a bucket of its own.
    """
    values = case.to_dict()
    rounded = {name: _power_of_two(value) if name in ROUNDED and isinstance(value, int) else value
               for name, value in values.items()}
    try:
        return workload.case(rounded)
    except UsageError:
        return case


def key(
    *, backend: str, bucket: Any, environment: Environment, source: str, configs: Iterable[str], settings: Settings,
    rules: Rules,
) -> dict[str, Any]:
    """Everything an answer holds for, as plain data."""
    return {
        "backend": backend, "bucket": bucket.to_dict(), "source": source,
        "configs": hashlib.sha256("\n".join(sorted(configs)).encode()).hexdigest()[:12],
        "card": environment.gpu or environment.cpu, "power_limit_w": environment.power_limit_w,
        "driver": environment.driver, "cuda": environment.cuda, "torch": environment.torch,
        "triton": environment.triton, "packages": dict(environment.packages),
        "settings": {name: getattr(settings, name) for name in SETTINGS}, "rules": asdict(rules),
    }


def digest(key: Mapping[str, Any]) -> str:
    """Eight digits that stand for a key in a file's name."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:8]


def source_hash(file: Path) -> str:
    """Short hash of a backend's file, of every module of our kernels and adapters it imports, and of their data.

    The imports are read, not carried out.

    Args:
        file: of the backend.
    """
    found: dict[Path, None] = {}
    waiting = [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found[path] = None
        waiting += [place for name in _imported(path) if (place := _place(name)) is not None]
    data = {table for path in found for table in path.parent.glob("*.toml") if path.stem.startswith(table.stem)}
    # By name and content alone: the same sources in another folder are the same.
    parts = sorted((path.name, path.read_bytes()) for path in [*found, *data])
    return hashlib.sha256(b"\0".join(name.encode() + b"\0" + text for name, text in parts)).hexdigest()[:12]


def _imported(path: Path) -> Iterable[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _place(name: str) -> Path | None:
    """File of a module of ours that a kernel's code may lie in; None for anything else."""
    if not name.startswith(tuple(f"{room}." for room in ROOMS)):
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a name in a module is none itself
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length() if value > 0 else value
