"""Users' files as modules: `module_of` imports one under a name by which any process can import it again.

A process pool that a kernel starts by ``spawn`` or ``forkserver`` sends functions by the name of their module.
That name is this module's plus the file's path in hexadecimal: importing it imports this module first, which finds
the file.  The files need not be on a search path, and two files of the same name do not collide.
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


def file_of(module: str) -> Path:
    """Return the file of a module that `module_of` named.

    Raises:
        ValueError: the last part of the name is not a path in hexadecimal.
    """
    return Path(os.fsdecode(bytes.fromhex(module.rpartition(".")[2])))


class _Finder:
    """A finder for `sys.meta_path`: resolves names made by `module_of`."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = fullname.rpartition(".")[0] == __name__
        try:
            return spec_from_file_location(fullname, file_of(fullname)) if ours else None
        except ValueError:  # not hexadecimal digits
            return None


sys.meta_path.append(_Finder)
