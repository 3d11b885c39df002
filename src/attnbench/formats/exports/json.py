"""The run file itself."""

from __future__ import annotations

from attnbench.formats.exports.base import Exporter
from attnbench.record import Run
from attnbench.store.runfile import dumps


def render(run: Run) -> bytes:
    """Return the bytes that `runfile.write` would write."""
    return dumps(run).encode()


EXPORTER = Exporter(title="the run file: everything, including raw samples", text=True, render=render)
