"""Find the one-file plug-ins of a folder: exporters and layouts are named by their own files."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names(room: ModuleType) -> list[str]:
    """Return the names of all plug-ins in `room`: ``seed_001.py`` is ``seed-001``."""
    return sorted(item.name.replace("_", "-") for item in pkgutil.iter_modules(room.__path__) if item.name != "base")


def load(room: ModuleType, name: str) -> ModuleType:
    """Import the plug-in called `name`, one of `names`."""
    return importlib.import_module(f"{room.__name__}.{name.replace('-', '_')}")
