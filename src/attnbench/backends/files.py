"""Files of users as modules: `module_of` imports one, under a name by which any process can import it again.

A pool of processes that a kernel starts by ``spawn`` or ``forkserver`` is sent functions as the name of their module.
That name is this module's and, in hexadecimal, the file's path: importing it imports this one first, which knows
what it means.  Files need be on no search path, and two of one name do not meet.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

__path__: list[str] = []
"""Makes this a package, whose modules `_Finder` finds."""


def module_of(file: Path) -> ModuleType:
    """Run a file once in this process.

    Args:
        file: absolute, without links.

    Raises:
        ImportError: it is no Python file.
        BaseException: whatever the file raises.
    """
    if spec_from_file_location(file.name, file) is None:
        raise ImportError(f"{file.name} does not end in .py")
    return importlib.import_module(f"{__name__}.{os.fsencode(file).hex()}")


class _Finder:
    """Of `sys.meta_path`: the file that a name of `module_of` stands for."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        room, _, name = fullname.rpartition(".")
        try:
            return spec_from_file_location(fullname, os.fsdecode(bytes.fromhex(name))) if room == __name__ else None
        except ValueError:  # no hexadecimal digits
            return None


sys.meta_path.append(_Finder)
