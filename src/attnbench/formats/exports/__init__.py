"""Exports of a run, one file per format: ``csv``, ``xlsx``, ``md``, ``json``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from attnbench.errors import UsageError, refusal, unknown
from attnbench.formats import scan
from attnbench.formats.exports.base import Exporter
from attnbench.formats.split import part_path, split
from attnbench.record import Run
from attnbench.store.files import check_writable, write_bytes, write_stdout

STDOUT = "-"


def exporter_names() -> list[str]:
    """Return the names of all exporters, by file."""
    return scan.names(sys.modules[__name__])


def load_exporter(name: str) -> Exporter:
    """Find an exporter by its name.

    Raises:
        UsageError: there is no such exporter.
    """
    if name not in exporter_names():
        raise unknown("export", "format", name, exporter_names())
    exporter: Exporter = scan.load(sys.modules[__name__], name).EXPORTER
    return exporter


def check_target(
    name: str, target: str | Path, by: str | None = None, *, load: Callable[[str], Exporter] = load_exporter
) -> None:
    """Refuse, before measuring, a target that this exporter cannot write.

    Args:
        name: an exporter's name.
        target: a path, or ``-`` for stdout.
        by: see `export`.
        load: finds exporters; includes those that this package does not contain.

    Raises:
        UsageError: a binary format or several files for stdout, or a path that cannot be written.
        Unavailable: the exporter needs a library that is missing.
    """
    exporter = load(name)
    exporter.ready()
    if str(target) != STDOUT:
        check_writable(target)
    elif not exporter.text:
        raise UsageError(refusal("export", name, target, "is a binary format", "a file name"))
    elif by is not None:
        raise UsageError(refusal("export", "by", by, "makes several files", "a file name instead of -"))


def export(
    run: Run, name: str, target: str | Path, *, by: str | None = None, load: Callable[[str], Exporter] = load_exporter
) -> list[Path]:
    """Write `run` in a format.

    Args:
        run: what to write.
        name: an exporter's name.
        target: a path, or ``-`` for stdout.
        by: a case axis: one file for each of its values, ``name.AXIS-VALUE.ext``.
        load: finds exporters; includes those that this package does not contain.

    Returns:
        The files written, none for stdout.

    Raises:
        UsageError: unknown format or axis, or the target cannot be written.
        Unavailable: the exporter needs a library that is missing.
    """
    check_target(name, target, by, load=load)
    exporter = load(name)
    if str(target) == STDOUT:
        write_stdout(exporter.render(run))
        return []
    parts = split(run, [by]) if by is not None else {"": run}
    paths = [part_path(target, label) for label in parts]
    for path, part in zip(paths, parts.values(), strict=True):
        write_bytes(path, exporter.render(part))
    return paths
