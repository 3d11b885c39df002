"""Libraries on no package index: a backend imports them from a checkout that the user names."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from attnbench.backends.base import module_exists
from attnbench.errors import FOLDER, Unavailable, UsageError, absent, refusal
from attnbench.text import typed_path


@dataclass(frozen=True, slots=True)
class Checkout:
    """A library used from the folder in an environment variable, or from the Python path if that is not set."""

    who: str
    "the backend's name, for messages"
    variable: str
    module: str
    repository: str
    "of the library, for messages"

    @property
    def package(self) -> str:
        """The package that contains the module."""
        return self.module.partition(".")[0]

    def folder(self) -> Path | None:
        """Return the folder named by the variable; None if it is not set.

        Raises:
            Unavailable: the folder does not exist, or does not contain the module.
        """
        named = os.environ.get(self.variable)
        if not named:
            return None
        folder, wanted = typed_path(named), f"a checkout of {self.repository}"
        if absent(folder) != FOLDER:
            raise Unavailable(f"{self.who}: {self.variable}={named} is no folder; {wanted}")
        if not _holds(folder, self.module):
            raise Unavailable(f"{self.who}: {self.variable}={named} holds no {_file(Path(), self.module)}; {wanted}")
        return folder

    def probe(self, install: str) -> None:
        """Check the folder, the packages its files import, and the Python path, without importing anything.

        Args:
            install: instruction shown if no folder is named.

        Raises:
            Unavailable: one of them is missing.
        """
        folder = self.folder()
        if folder is None:
            if not module_exists(self.module):
                where = f"is not on the Python path and {self.variable} is not set"
                raise Unavailable(f"{self.who}: module={self.package} {where}; {install}")
            return
        missing = sorted(name for name in _imports(folder, self.module, set()) if not module_exists(name))
        if missing:
            raise Unavailable(
                f"{self.who}: {self.variable}={folder} needs {', '.join(missing)}, which this Python does "
                f"not have; pip install {' '.join(missing)}"
            )

    def load(self, *modules: str) -> list[ModuleType]:
        """Import modules of the package; the folder is on the Python path only during the import.

        Raises:
            Unavailable: one cannot be imported.
        """
        folder, path = self.folder(), list(sys.path)
        if folder is not None:
            sys.path.insert(0, str(folder.resolve()))
        try:
            return [importlib.import_module(name) for name in modules]
        except Exception as error:  # catches everything: another package may fail in any way
            where = f"{self.variable}={folder}" if folder else "the Python path"
            raise Unavailable(
                f"{self.who}: {self.module} does not import from {where}: {type(error).__name__}: "
                f"{' '.join(str(error).split())}; a checkout that fits this torch and Triton"
            ) from error
        finally:
            sys.path[:] = path


def name_checkouts(folders: Iterable[str], who: str) -> None:
    """Set the environment variables of the backends whose library is in one of the folders.

    Workers inherit them.  Each folder is recognised by the file of the backend's module.

    Raises:
        UsageError: a folder contains the module of no backend.
    """
    from attnbench.backends.registry import all_backends

    wanted = [
        (name, backend.checkout, backend.module)
        for name, backend in all_backends().items()
        if backend.checkout and backend.module
    ]
    for text in folders:
        folder = typed_path(text).resolve()
        found = [variable for _, variable, module in wanted if _holds(folder, module)]
        if not found:
            files = ", ".join(f"{_file(Path(), module)} ({name})" for name, _, module in wanted)
            raise UsageError(
                refusal(who, "--path", text, "is no checkout that a backend looks for", f"a folder that holds {files}")
            )
        os.environ.update(dict.fromkeys(found, str(folder)))


def _holds(folder: Path, module: str) -> bool:
    try:
        return _file(folder, module).is_file()
    except OSError:  # a name too long
        return False


def _file(folder: Path, module: str) -> Path:
    return folder.joinpath(*module.split(".")).with_suffix(".py")


def _imports(folder: Path, module: str, known: set[str]) -> set[str]:
    """Return the other packages that a module of a checkout imports, directly or through its own package.

    The files are only read.  Imports inside ``try`` are optional and not included.
    """
    known.add(module)
    package, found = module.partition(".")[0], set[str]()
    body = list(ast.parse(_file(folder, module).read_text(encoding="utf-8")).body)
    while body:
        node, names = body.pop(), list[str]()
        if isinstance(node, ast.If):
            body += [*node.body, *node.orelse]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            first = name.partition(".")[0]
            if first != package:
                found |= {first} - set(sys.stdlib_module_names)
            elif name not in known and _holds(folder, name):
                found |= _imports(folder, name, known)
    return found
