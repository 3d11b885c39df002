"""The registry: which backends exist, and which of them a selector means.

Backends come from three places: the files of this folder, the entry points of other packages in
the group ``attnbench.backends`` (a class, or a module that contains classes), and files named by the user
(``--backends ./mine.py``), which only workers and the process of `describe` import.  Nothing here imports
torch or a library, and neither does an adapter file, so listing every backend takes milliseconds.

A selector is ``name``, ``name[short-form]`` (a configuration of that backend), ``name[m128*]`` or ``name[*]``
(matching configurations that exist for the case), a wildcard such as ``sdpa-*``, or ``all``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import shlex
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import ModuleType

from attnbench.backends.base import Backend, Launch
from attnbench.backends.files import module_of
from attnbench.backends.plain import FUNCTION, LAYOUTS, SIGNATURE, plain_backend
from attnbench.errors import Unavailable, UsageError, absent, refusal, unknown
from attnbench.text import shown, spelled
from attnbench.workloads.base import Case, Inputs

GROUP = "attnbench.backends"
"""Entry point group through which other packages provide backends."""
SEED_NAMES = {
    "fa": "sdpa-flash",
    "fa2": "sdpa-flash",
    "fa3": "fa3-fwd",
    "fa3_fp8": "fa3-fwd-fp8",
    "sparge_fp8": "sparge-fp8",
    "sta": "fastvideo-sta",
}
"""Names in seed 003, accepted like the backend's own; its FlashAttention 2 is the copy in torch."""
NAME = re.compile(r"[^\s,|*?\[\]/\\]+")
A_FILE = "a Python file with a function attention, or a Backend"
NAMED = "a name other than all, without blanks, commas, slashes, brackets, wildcards, and letters that cannot be shown"


class BrokenBackend(Backend[Case, Inputs]):
    """Represents an entry point that cannot be imported: listed with the reason, never run."""

    workload = "unknown"
    variant = "unknown"
    install = "mend or uninstall the package that offers it"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]  # one class stands for every broken entry point
        self.reason = reason

    def probe(self) -> None:
        """Raise with the reason.

        Raises:
            Unavailable: always.
        """
        raise Unavailable(f"{self.name}: {self.reason}; {self.install}")

    def session(self, case: Case, inputs: Inputs) -> AbstractContextManager[Launch]:
        """Raise, as `probe` does."""
        raise Unavailable(f"{self.name}: {self.reason}; {self.install}")


def all_backends(files: Sequence[str] = ()) -> dict[str, Backend]:
    """Return every backend by name: this folder's, other packages', then those of the given files.

    Args:
        files: paths of Python files with `Backend` subclasses; each is run once in this process.

    Raises:
        UsageError: a file cannot be imported or contains no backend, or two backends share a name.
    """
    found: dict[str, tuple[str, Backend]] = {}
    for place, backend in _everything(files):
        if backend.name in found:
            both = f"{found[backend.name][0]} and {place}"
            raise UsageError(
                refusal(
                    "backends",
                    "name",
                    backend.name,
                    f"is defined twice: {both}",
                    "one backend a name",
                    "rename one of them",
                )
            )
        found[backend.name] = (place, backend)
    return introduced({name: backend for name, (_, backend) in found.items()})


def introduced(backends: dict[str, Backend]) -> dict[str, Backend]:
    """Return the same backends, after setting `others` of those that carry other backends."""
    for one in backends.values():
        if one.carries:
            one.others = backends
    return backends


def is_shipped(selector: str) -> bool:
    """Return whether a selector of `select` can be resolved without the user's files."""
    name, short = parse_selector(selector)
    known = all_backends()
    if name not in known or short is None or not known[name].carries:
        return name in known
    carried_one = short.partition(":")[0]
    return SEED_NAMES.get(carried_one, carried_one) in known


def select(
    names: Iterable[str],
    *,
    skip: Iterable[str] = (),
    workload: str | None = None,
    backends: Mapping[str, Backend] | None = None,
    field: str = "name",
) -> list[str]:
    """Expand selectors into backend names, in the order given, without duplicates.

    Args:
        names: selectors, each possibly a comma list; with a workload, ``flex`` may mean ``sparse-flex``.
        skip: selectors of what to leave out; a bare name also leaves out its configurations.
        workload: only backends of this workload; a named backend of another workload is refused.
        backends: to choose from, by name; None means `all_backends`.
        field: name of the selectors in refusals.

    Returns:
        ``name`` or ``name[short-form]``, ready for `resolve`; ``name[m128*]`` is expanded by `with_configs`, which
        knows the case.

    Raises:
        UsageError: a selector is malformed, or matches no backend (the message has the nearest name).
    """
    known = all_backends() if backends is None else backends
    dropped = list(_expand(skip, known, None, "skip"))
    return [one for one in dict.fromkeys(_expand(names, known, workload, field)) if not is_skipped(one, dropped)]


def is_skipped(selector: str, skip: Iterable[str]) -> bool:
    """Return whether a selector of `skip` (without wildcards in names) matches this backend or configuration."""
    name, short = parse_selector(selector)
    return any(
        one in (name, selector)
        or (
            short is not None
            and has_wildcard(one)
            and fnmatchcase(short, parse_selector(one)[1] or "")
            and parse_selector(one)[0] == name
        )
        for one in skip
    )


def with_configs(selectors: Iterable[str], case: object, backends: Mapping[str, Backend]) -> list[str]:
    """Expand selectors such as ``name[*]`` into the configurations that exist for a case.

    Args:
        selectors: of `select`.
        case: of the backends' workload.
        backends: by name.

    Returns:
        ``name`` or ``name[short-form]``, without duplicates; a wildcard that matches none of the case's adds nothing.
    """
    found: dict[str, None] = {}
    for selector in selectors:
        name, short = parse_selector(selector)
        if short is None or not has_wildcard(short):
            found[selector] = None
        else:
            found |= {
                f"{name}[{config.short}]": None
                for config in backends[name].configs(case)
                if fnmatchcase(config.short, short)
            }
    return list(found)


def has_wildcard(text: str) -> bool:
    """Return whether a name, a short form or a selector contains a wildcard."""
    return "*" in text or "?" in text


def resolve(selector: str, case: Case | None = None, *, files: Sequence[str] = ()) -> Backend:
    """Build the backend that a selector of `select` names.

    Args:
        selector: ``name`` or ``name[short-form]``.
        case: needed for a short form: configurations depend on the case.
        files: as for `all_backends`.

    Raises:
        UsageError: the backend does not exist, or has no such configuration for this case.
    """
    name, short = parse_selector(selector)
    backends = all_backends(files)
    if name not in backends:
        raise unknown("backends", "name", name, backends)
    if short is None:
        return backends[name]
    found = type(backends[name])(backends[name].config_of(short, case))
    return introduced({**backends, name: found})[name]


def is_name(name: object) -> bool:
    """Return whether a backend may have this name: it fits in a selector and a file name, and can be displayed."""
    return isinstance(name, str) and bool(NAME.fullmatch(name)) and name != "all" and spelled(name) == name


def split_selectors(text: str) -> list[str]:
    """Split a comma list; commas inside brackets belong to the selector."""
    return [part.strip() for part in re.split(r",(?![^\[\]]*\])", text) if part.strip()]


def parse_selector(text: str) -> tuple[str, str | None]:
    """Split ``name[short-form]`` into its two parts.

    Raises:
        UsageError: brackets are unbalanced or empty.
    """
    match = re.fullmatch(r"([^\[\]]+)(?:\[([^\[\]]+)\])?", text)
    if match is None:
        raise UsageError(
            refusal(
                "backends",
                "name",
                text,
                "is not a selector",
                "name, name[short-form], a wildcard such as sdpa-* or name[*], or all",
            )
        )
    return match[1], match[2]


def carried(selector: str, backends: Mapping[str, Backend], workload: str | None) -> str:
    """Return the selector of the same backend inside the workload's carrying backend; `selector` itself without one.

    ``flash-triton[m128n128]`` becomes ``video[flash-triton:m128n128]`` if a backend `video` carries it.
    """
    name, short = parse_selector(selector)
    for one in backends.values():
        if one.workload != workload or name not in backends:
            continue
        if backends[name].workload in one.carries:
            return f"{one.name}[{name}]" if short is None else f"{one.name}[{name}:{short}]"
        if backends[name].workload == one.wraps and short is None:
            return f"{one.name}[{name}]"
    return selector


def _carried_by(pattern: str, backends: Mapping[str, Backend], workload: str | None) -> list[str]:
    """Return the rows that a wildcard matches among the backends carried by one of the workload."""
    carriers = [one for one in backends.values() if one.workload == workload]
    return [
        f"{one.name}[{name}]"
        for one in carriers
        for name, backend in backends.items()
        if backend.workload in one.carries and fnmatchcase(name, pattern)
    ]


def _expand(
    selectors: Iterable[str], backends: Mapping[str, Backend], workload: str | None, field: str
) -> Iterator[str]:
    ours = [name for name, backend in backends.items() if workload in (None, backend.workload)]
    carried_ones = [
        name for name, backend in backends.items() if any(backend.workload in backends[one].carries for one in ours)
    ]
    accepted = sorted({*ours, *(carried_ones if workload is not None else ())})
    for selector in (part for text in selectors for part in split_selectors(text)):
        name, short = parse_selector(selector)
        if name not in backends and name in SEED_NAMES:
            name = SEED_NAMES[name]
            selector = name if short is None else f"{name}[{short}]"
        if name not in ours and f"{workload}-{name}" in ours:  # the workload's name may be left out
            name = f"{workload}-{name}"
            selector = name if short is None else f"{name}[{short}]"
        elif name not in ours and name != "all" and not has_wildcard(name):
            selector = carried(selector, backends, workload)
            name, short = parse_selector(selector)
        pattern = "*" if name == "all" else name
        if has_wildcard(pattern):
            matching = [one for one in ours if fnmatchcase(one, pattern)]
            if workload is not None and short is None:
                matching = [one for one in matching if not backends[one].carries or pattern != "*"]
                matching += _carried_by(pattern, backends, workload)
            several = short is not None and not has_wildcard(short)
            if not matching or several:
                wrong = "takes no configuration" if several else "matches no backend"
                raise UsageError(refusal("backends", field, selector, wrong, f"one of {', '.join(accepted)}"))
            yield from (one if short is None else f"{one}[{short}]" for one in matching)
        elif name not in backends:
            raise unknown("backends", field, name, accepted)
        elif name not in ours and not isinstance(backends[name], BrokenBackend):
            raise UsageError(
                refusal(
                    "backends",
                    field,
                    name,
                    f"computes {backends[name].workload}",
                    f"a backend of {workload}: {', '.join(accepted)}",
                    f"attnbench compare --workload {backends[name].workload} measures it",
                )
            )
        else:
            yield selector


def _everything(files: Sequence[str]) -> Iterator[tuple[str, Backend]]:
    for place, cls in _shipped():
        yield place, cls()
    for entry in _entry_points():
        for backend in _from_entry_point(entry):
            yield f"entry point {entry.value}", backend
    for file in dict.fromkeys(files):
        for cls in _from_file(file):
            yield file, cls()


@cache
def _shipped() -> tuple[tuple[str, type[Backend]], ...]:
    """Find the classes of this folder once per process: a command asks for all backends several times."""
    import attnbench.backends as room

    modules = [info.name for info in pkgutil.iter_modules(room.__path__, "attnbench.backends.")]
    modules = [name for name in modules if name not in (__name__, Backend.__module__)]
    return tuple((name, cls) for name in modules for cls in _classes(importlib.import_module(name)))


@cache
def _entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    """Read the entry points once per process: this opens the metadata of every installed package."""
    return tuple(importlib.metadata.entry_points(group=GROUP))


def _classes(module: ModuleType) -> list[type[Backend]]:
    """Return the backends a module defines: concrete, named, and not merely imported into it."""
    return [
        item
        for item in vars(module).values()
        if isinstance(item, type)
        and issubclass(item, Backend)
        and item.__module__ == module.__name__
        and not inspect.isabstract(item)
        and hasattr(item, "name")
    ]


def _from_entry_point(entry: importlib.metadata.EntryPoint) -> list[Backend]:
    try:
        loaded = entry.load()
        classes = _classes(loaded) if isinstance(loaded, ModuleType) else [loaded]
        if not classes or not all(isinstance(cls, type) and issubclass(cls, Backend) for cls in classes):
            return [BrokenBackend(entry.name, f"entry point {entry.value} is not a Backend and holds none")]
        found = [cls() for cls in classes]
        strange = [backend.name for backend in found if not is_name(backend.name)]
        if strange:
            return [BrokenBackend(entry.name, f"entry point {entry.value} has the name {shown(strange[0])}; {NAMED}")]
        return found
    except Exception as error:  # catches everything: another package may fail in any way, which must not end ours
        reason = f"entry point {entry.value} does not import: {one_line(error)}"
        return [BrokenBackend(entry.name, reason)]


def _from_file(file: str) -> list[type[Backend]]:
    path = Path(file).resolve()
    if not path.is_file():
        raise UsageError(refusal("backends", "file", file, absent(file), A_FILE))
    try:
        module = module_of(path)
    except (Exception, SystemExit) as error:  # the user's file may fail in any way
        wrong = f"does not import: line {_line_of(error, path)}: {one_line(error)}"
        raise UsageError(refusal("backends", "file", file, wrong, A_FILE, _beside(error, path))) from error
    classes = _classes(module)
    function = getattr(module, FUNCTION, None)
    if not classes and callable(function) and not isinstance(function, type):
        if not is_name(path.stem):
            wrong = f"names no backend: {FUNCTION} is called after its file"
            raise UsageError(refusal("backends", "file", spelled(file), wrong, NAMED, "rename the file"))
        return [plain_backend(function, getattr(module, "layout", LAYOUTS[0]), path)]
    if not classes:
        raise UsageError(
            refusal(
                "backends",
                "file",
                file,
                "holds no backend",
                f"a function `{SIGNATURE}`, or a concrete subclass of attnbench.backends.base.Backend with a name",
            )
        )
    return classes


def _line_of(error: BaseException, path: Path) -> int | str:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or "?"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines and lines[-1] else "?"


def _beside(error: BaseException, path: Path) -> str:
    """Return how to find a module beside the file: its folder is not searched, as two files may mean two of a name."""
    name = error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else ""
    there = name and ((path.parent / f"{name}.py").is_file() or (path.parent / name).is_dir())
    return f"{name} beside it is found by PYTHONPATH={shlex.quote(str(path.parent))}" if there else ""


def one_line(error: BaseException) -> str:
    """Return an exception in one line: its type and message."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}".rstrip(": ")
