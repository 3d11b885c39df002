"""Descriptions of a file's backends, made by a process that imports the file for one that does not.

`describe` imports the user's file and returns as plain data what planning needs; `Described` represents
each of its backends in the planning process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from attnbench.backends.base import Backend, Config, Launch
from attnbench.backends.registry import A_FILE, NAMED, all_backends, is_name, one_line
from attnbench.errors import Unavailable, UsageError, refusal
from attnbench.workloads.base import Case, Inputs

TEXTS = ("workload", "variant", "title", "install")
KINDS = ("cpu", "cuda")


class Described(Backend[Case, Inputs]):
    """A backend of a user's file, as described by the process that imported it.  It plans, but cannot run."""

    def __init__(self, description: Mapping[str, Any], ask_configs: Callable[[str, Any], Mapping[str, Any]]) -> None:
        """Keep the description; `ask_configs` reads configurations for a case, by short form, from the file itself."""
        super().__init__()
        for field in ("name", *TEXTS, "tested", "compiles", "in_ranks"):
            setattr(self, field, description[field])
        self.devices = tuple(description["devices"])  # type: ignore[misc]  # one class stands for every described backend
        self._description, self._ask_configs = description, ask_configs

    def probe(self) -> None:
        """Repeat the result of the file's own probe.

        Raises:
            Unavailable: it is not installed.
        """
        if self._description["missing"] is not None:
            raise Unavailable(self._description["missing"])

    def version(self) -> str | None:
        """Version of the library, as returned by the file."""
        version: str | None = self._description["version"]
        return version

    def configs(self, case: Case | None) -> Iterable[Config]:
        """Return the file's configurations for the case; None means the workload's default case.

        Raises:
            UsageError: the file raises.
        """
        there = self._description["configs"]
        if there and case is not None:
            there = self._ask_configs(self.name, case)
        return [Config(short, values) for short, values in there.items()]

    def session(self, case: Case, inputs: Inputs) -> AbstractContextManager[Launch]:
        """Raise: only a worker can run it."""
        raise Unavailable(f"{self.name}: it is described here, not imported; a worker runs it")


def describe(file: str) -> list[dict[str, Any]]:
    """Import a file and describe its backends in plain data, for `Described`.

    Raises:
        UsageError: it cannot be imported, contains no backend, or one that breaks the interface.
    """
    shipped = all_backends()
    try:
        return [_description(backend, file) for name, backend in all_backends([file]).items() if name not in shipped]
    except UsageError:
        raise
    except Exception as error:  # catches everything: user code builds and describes the backend
        wrong = f"cannot be described: {one_line(error)}"
        raise UsageError(refusal("backends", "file", file, wrong, A_FILE)) from error


def describe_configs(file: str, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Import a file and return the configurations that one of its backends has for a case, by short form.

    Args:
        file: its path.
        name: the backend.
        values: of the case, by axis.

    Raises:
        UsageError: the backend raises.
    """
    from attnbench.workloads.base import load_workload

    backend = all_backends([file])[name]
    try:
        return _plain_configs(backend.configs(load_workload(backend.workload).case(dict(values))))
    except Exception as error:  # catches everything: user code answers
        wrong = f"cannot list its configurations: {one_line(error)}"
        raise UsageError(refusal("backends", "name", name, wrong, "a `configs` that yields Config")) from error


def _description(backend: Backend, file: str) -> dict[str, Any]:
    def need(holds: bool, field: str, accepted: str) -> None:
        if not holds:
            where = f"{type(backend).__name__}.{field}={getattr(backend, field, 'nothing')!r}"
            raise UsageError(refusal("backends", "file", file, f"has {where}", accepted))

    name = getattr(backend, "name", None)
    need(is_name(name), "name", NAMED)
    for field in TEXTS:
        need(isinstance(getattr(backend, field, None), str), field, "a text")
    devices = backend.devices
    need(
        isinstance(devices, tuple) and bool(devices) and set(devices) <= set(KINDS),
        "devices",
        'a tuple of "cpu" and "cuda"',
    )
    missing = None
    try:
        backend.probe()
    except Unavailable as why:
        missing = str(why)
    return {
        "name": name,
        **{field: getattr(backend, field) for field in TEXTS},
        "devices": list(devices),
        "tested": backend.tested and str(backend.tested),
        "compiles": bool(backend.compiles),
        "in_ranks": bool(backend.in_ranks),
        "missing": missing,
        "version": backend.version() if missing is None else None,
        "configs": _plain_configs(_configs(backend)),
    }


def _configs(backend: Backend) -> Iterable[Config]:
    from attnbench.workloads.base import load_workload, workload_names

    known = backend.workload in workload_names()
    return backend.configs(load_workload(backend.workload).case({})) if known else ()


def _plain_configs(configs: Iterable[Config]) -> dict[str, Any]:
    return {str(config.short): _plain(config.values) for config in configs}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return plain
