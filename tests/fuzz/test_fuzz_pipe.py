"""Whatever comes through a worker's pipe, the parent has a record of each backend and a readable file."""

from __future__ import annotations

import copy
import dataclasses
import json
import random

from pipe_worker import DONE, GROUP, NAMES, READY, RUN, record, worker_that_said

from attnbench.errors import NothingToRun, WorkerError
from attnbench.record import Status
from attnbench.store.runfile import dumps, loads
from attnbench.sweep import device_worker
from attnbench.sweep.run import execute
from attnbench.worker import process, protocol
from attnbench.worker.process import Worker

MESSAGES = [
    *(record(name) for name in NAMES),
    record("a", Status.FAILED),
    record("b", Status.INCORRECT),
    DONE,
    {"say": "lost", "index": 1, "phase": "sample", "reason": "illegal address"},
    {"say": "stuck", "index": 2, "phase": "set-up", "reason": "nice (0 -> 10)"},
    READY,
]


def nested(depth: int) -> object:
    inside: object = 0
    for _ in range(depth):
        inside = [inside]
    return inside


JUNK = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**70),
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "honest",
    "b",
    "another group",
    "\ud800",
    "\udcff.py",
    "\0",
    "\x1b[31m",
    "passed",
    "crashed",
    "9" * 5000,
    [],
    {},
    [None],
    [1.0, float("nan")],
    [[1]],
    {"": {}},
    {"a": 1},
    {"\ud800": "\ud83d"},
    nested(50),
]


def places(data: object, path: tuple = ()) -> list[tuple]:
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


def changed(message: dict, draw: random.Random) -> object:
    data = copy.deepcopy(message)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        path = draw.choice(places(data))
        if not path:
            return copy.deepcopy(draw.choice(JUNK))
        owner = data
        for key in path[:-1]:
            owner = owner[key]
        how = draw.random()
        if how < 0.2 and isinstance(owner, dict):
            del owner[path[-1]]
        elif how < 0.3 and isinstance(owner, dict):
            owner[draw.choice(("speedup", "extra", "say", "index", "time"))] = copy.deepcopy(draw.choice(JUNK))
        else:
            owner[path[-1]] = copy.deepcopy(draw.choice(JUNK))
        if not isinstance(data, dict):
            break
    return data


def line(draw: random.Random) -> bytes:
    message = draw.choice(MESSAGES)
    kind = draw.random()
    if kind < 0.25:
        return json.dumps(message).encode() + b"\n"
    if kind < 0.8:
        return json.dumps(changed(message, draw)).encode() + b"\n"
    text = json.dumps(message).encode()
    raw = (
        text[: draw.randrange(len(text))],
        bytes(draw.randrange(256) for _ in range(draw.randrange(60))) + b"\n",
        b"[" * 20_000 + b"\n",
        b'{"say": ' * 5_000 + b"1" + b"}" * 5_000 + b"\n",
        b"\n",
        b"\n\n\0\n",
        b'{"say": "record", "record": ' + b'{"case": ' * 3_000 + b"\n",
        b"9" * 6_000 + b"\n",
        b"NaN\n",
        text * 2 + b"\n",
        text.replace(b"1.5", b"NaN") + b"\n",
        text.replace(b"1.5", b"1e999") + b"\n",
        "\ufeff".encode() + text + b"\n",
    )
    return draw.choice(raw)


def told(data: bytes) -> None:
    """A line is a message or none of the protocol, and nothing else."""
    try:
        assert isinstance(protocol.answer(data), protocol.Answer)
    except WorkerError:
        pass


def test_pipe(attack, monkeypatch):
    monkeypatch.setattr(process, "POLL_S", 0)
    number = lost = 0
    for draw in attack.seeds():
        first = True

        def start(device: str, draw: random.Random = draw) -> Worker:
            nonlocal first
            ready = json.dumps(READY).encode() + b"\n" if not first or draw.random() < 0.95 else line(draw)
            first = False
            lines = [line(draw) for _ in range(draw.randrange(1, 8))]
            for data in lines:
                told(data)
            if draw.random() < 0.3:
                lines += [json.dumps(message).encode() + b"\n" for message in (*MESSAGES[:3], DONE)]
            return worker_that_said(ready, b"".join(lines), draw)

        monkeypatch.setattr(device_worker, "Worker", start)
        try:
            settings = dataclasses.replace(RUN.settings, timeout=600.0, baseline=draw.choice(NAMES))
            run = execute(dataclasses.replace(RUN, settings=settings))
        except NothingToRun:
            continue
        assert [one.backend for one in run.records] == list(NAMES)
        assert {one.group for one in run.records} == {GROUP.group}
        text = dumps(run)
        assert text.encode().decode() == text
        assert [one.status for one in loads(text).records] == [one.status for one in run.records]
        number += 1
        lost += any(one.status is not Status.PASSED for one in run.records)
    assert lost or number < 100, "no worker was lost: the fuzzer says nothing wrong"
