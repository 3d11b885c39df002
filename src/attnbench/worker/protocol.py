"""Messages between parent and worker: one JSON object per line, over two pipes of their own.

Parent to worker:
    {"do": "group", "number": 1, "group": PlannedGroup, "settings": Settings, "files": [...]}
Worker to parent:
    {"say": "ready", "environment": Environment}
    {"say": "record", "record": Record}                    of two of one backend the later counts
    {"say": "lost", "index": i, "phase": "...", "reason": "..."}   the context is poisoned; the worker ends
    {"say": "stuck", "index": i, "phase": "...", "reason": "..."}  a global cannot be restored; the worker ends
    {"say": "done", "number": 1, "sampling_s": s}
The worker's standard output and error go to a log, because libraries may print anything.

A backend can write to the pipe too, by mistake or on purpose.  So messages of a worker are parsed as data, with every
field checked, and any other line raises `WorkerError` and nothing else.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import IO, Any

from attnbench.errors import RunFileError, WorkerError
from attnbench.record import Environment, Record, from_dict, to_dict

PARENT = "ATTNBENCH_PARENT"
"""Environment variable: the parent's process id, by which a worker notices a parent that died before it looked."""

TURN = "attnbench.worker: turn of"
"""Start of a line in the log where another backend, or another phase of the group, begins."""


def send(stream: IO[str], **message: Any) -> None:
    """Write one message; dataclasses of `record` become plain data."""
    stream.write(json.dumps({key: to_dict(value) for key, value in message.items()}) + "\n")
    stream.flush()


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker accepts requests."""

    environment: Environment


@dataclass(frozen=True, slots=True)
class Recorded:
    """A record."""

    record: Record


@dataclass(frozen=True, slots=True)
class Gone:
    """The worker ends, and names the backend that caused it."""

    say: str
    "lost or stuck"
    index: int
    phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """A request has been carried out."""

    number: int
    sampling_s: float


Answer = Ready | Recorded | Gone | Done


def answer(line: bytes) -> Answer:
    """Read one message of a worker.

    Raises:
        WorkerError: the line is not a message.
    """
    message = parse(line)
    say = message.get("say")
    try:
        if say == "ready":
            return Ready(from_dict(Environment, message.get("environment"), "worker.environment"))
        if say == "record":
            return Recorded(from_dict(Record, message.get("record"), "worker.record"))
        if say in ("lost", "stuck"):
            phase, reason = (_field(message, name, str) for name in ("phase", "reason"))
            return Gone(say, _field(message, "index", int), phase, reason)
        if say == "done":
            seconds = float(_field(message, "sampling_s", int, float))
            if not (math.isfinite(seconds) and seconds >= 0):
                raise WorkerError(f"worker: sampling_s={seconds} is no duration")
            return Done(_field(message, "number", int), seconds)
    except (RunFileError, OverflowError, RecursionError) as error:
        raise WorkerError(f"worker: a line of its protocol cannot be read ({error})") from None
    raise WorkerError("worker: a line of its protocol says nothing")


def _field(message: dict[str, Any], name: str, *kinds: type) -> Any:
    value = message.get(name)
    if type(value) not in kinds:
        raise WorkerError(f"worker: {name}={str(value)[:80]!r} in its protocol is not {kinds[-1].__name__}")
    return value


def parse(line: bytes) -> dict[str, Any]:
    """Read one message.

    Raises:
        WorkerError: the line is not a message.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WorkerError(f"worker: a line of its protocol is not JSON ({error}): {line[:80]!r}") from None
    if not isinstance(message, dict):
        raise WorkerError(f"worker: a line of its protocol is not an object: {line[:80]!r}")
    return message
