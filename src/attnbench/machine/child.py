"""Starting a Python of ours as a child that finds the same packages as this process."""

from __future__ import annotations

import os
import sys


def command(module: str, *args: str) -> list[str]:
    """Command line of ``python -m module``; -P keeps the current folder out of its search path."""
    return [sys.executable, "-P", "-m", module, *args]


def environment() -> dict[str, str]:
    """This process's environment with its search path, so that ``src`` uninstalled works too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
