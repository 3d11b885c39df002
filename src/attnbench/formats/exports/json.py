"""The run file itself."""

from __future__ import annotations

from attnbench.formats.exports.base import Exporter
from attnbench.record import Run
from attnbench.store.runfile import dumps


def render(run: Run) -> bytes:
    """The bytes that `runfile.write` would put into a file."""
    return dumps(run).encode()


EXPORTER = Exporter(title="the run file: everything, raw samples included", text=True, render=render)
