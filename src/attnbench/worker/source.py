"""One short hash of the code that a backend's time depends on: its file and what that imports of ours or beside it.

Adapters rarely change; the kernels behind them do.  With a hash of the adapter alone, `attnbench diff` would consider
an edited kernel unchanged and attribute its slowdown to the machine.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
ROOMS = ("backends", "kernels", "models")
"""Packages that contain implementations; inputs and oracles belong to the case."""

SEAM = ("backends/__init__.py", "backends/base.py", "backends/registry.py", "kernels/__init__.py", "models/__init__.py")
"""Files shared by every backend, which are no implementation."""


def hash_of(path: Path) -> str | None:
    """Return twelve hexadecimal digits; None where the file cannot be read.

    Args:
        path: of the file that defines the backend.
    """
    found = sources(path)
    if not found:
        return None
    digest = hashlib.sha256()
    for file in found:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def sources(path: Path) -> list[Path]:
    """Return `path` and, sorted by name, all files it depends on: imports, lazy ones too, and data of the same name."""
    waiting, found = [path], dict[Path, None]()
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found[file] = None
        if file.suffix == ".py":
            waiting += [file.with_suffix(".toml"), *_imported(file, path.parent)]
    rest = [file for file in found if file != path]
    # Not by absolute path: the same code has the same hash in every place.
    return [path, *sorted(rest, key=lambda file: _within(file, path.parent))] if found else []


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that a file imports: from our packages, or from the folder of a user's backend."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for name, level in _names(tree):
        parts = name.split(".") if name else []
        if level > len(file.parents):
            continue
        if level:
            start = file.parents[level - 1]
        elif parts[:1] == [PACKAGE.name]:
            start, parts = PACKAGE, parts[1:]
        else:
            start = folder
        target = start.joinpath(*parts)
        for one in (target.with_name(f"{target.name}.py"), target / "__init__.py"):
            if one.is_file() and _counts(one, folder):
                yield one


def _names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the imported dotted names, each with its number of leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module:
                yield module, node.level
            yield from (
                ((f"{module}." if module else "") + alias.name, node.level) for alias in node.names if alias.name != "*"
            )


def _within(file: Path, folder: Path) -> tuple[bool, str]:
    ours = file.is_relative_to(PACKAGE)
    return ours, file.relative_to(PACKAGE if ours else folder).as_posix()


def _counts(file: Path, folder: Path) -> bool:
    if file.is_relative_to(PACKAGE):
        inside = file.relative_to(PACKAGE)
        return inside.parts[0] in ROOMS and inside.as_posix() not in SEAM
    return file.is_relative_to(folder)
