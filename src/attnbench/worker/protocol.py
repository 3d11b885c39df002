"""What parent and worker say to each other: one JSON object a line, over two pipes of their own.

Parent to worker:
    {"do": "group", "number": 1, "group": PlannedGroup, "settings": Settings, "files": [...]}
Worker to parent:
    {"say": "ready", "environment": Environment}
    {"say": "record", "record": Record}                    of two of one backend the later holds
    {"say": "lost", "index": i, "phase": "...", "reason": "..."}   the context is poisoned; the worker ends
    {"say": "done", "number": 1, "sampling_s": s}
The worker's standard output and error go to a log: libraries print what they like.
"""

from __future__ import annotations

import json
from typing import IO, Any

from attnbench.errors import WorkerError
from attnbench.record import to_dict

PARENT = "ATTNBENCH_PARENT"
"""Environment variable: the parent's process id, so that a worker orphaned before it could ask is caught."""

TURN = "attnbench.worker: turn of"
"""Begins a line in the log where another backend, or another phase of the group, takes its turn."""


def send(stream: IO[str], **message: Any) -> None:
    """Write one message; dataclasses of `record` become plain data."""
    stream.write(json.dumps({key: to_dict(value) for key, value in message.items()}) + "\n")
    stream.flush()


def parse(line: str | bytes) -> dict[str, Any]:
    """Read one message.

    Raises:
        WorkerError: the line is not one.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise WorkerError(f"worker: a line of its protocol is not JSON ({error}): {line[:80]!r}") from None
    if not isinstance(message, dict):
        raise WorkerError(f"worker: a line of its protocol is not an object: {line[:80]!r}")
    return message
