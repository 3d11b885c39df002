"""Whatever comes through a worker's pipe, the parent answers with a record of each backend, and the file can be read.

A new seed each time, said when it fails; ATTNBENCH_FUZZ_SEED repeats one, ATTNBENCH_FUZZ_SECONDS goes on for longer.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import random
import selectors
import time

import pytest
from small_runs import small_run

from attnbench.errors import NothingToRun, WorkerError
from attnbench.record import Environment, Record, Settings, Status, Time, to_dict
from attnbench.store.runfile import dumps, loads
from attnbench.sweep import device_worker
from attnbench.sweep.run import execute
from attnbench.worker import process, protocol
from attnbench.worker.blame import HARNESS, BlamePage, shared_memory
from attnbench.worker.process import Worker
from attnbench.worker.supervisor import Ring

SEED = int(os.environ.get("ATTNBENCH_FUZZ_SEED", random.SystemRandom().randrange(2**32)))
SECONDS = float(os.environ.get("ATTNBENCH_FUZZ_SECONDS", 2))
NAMES = ("honest", "a", "b")
RUN = small_run(NAMES)
GROUP = RUN.plan[0]
READY = {"say": "ready", "environment": to_dict(Environment(os="Linux", python="3.11"))}


def record(name: str, status: Status = Status.PASSED, **more) -> dict:
    samples = (1.0, 2.0, 1.5)
    time = Time(timer="wall", l2="warm", regime="cpu", stopped_by="iterations", num_samples=3, median_ms=1.5,
                mean_ms=1.5, min_ms=1.0, max_ms=2.0, p95_ms=2.0, p99_ms=2.0, samples_ms=samples, rounds=(0, 1, 2),
                at_s=(0.0, 0.1, 0.2))
    whole = Record(workload="attention", case=GROUP.case, case_id=GROUP.case_id, group=GROUP.group, backend=name,
                   status=status, time=time if status is Status.PASSED else None,
                   reason=None if status is Status.PASSED else "it was made to", **more)
    return {"say": "record", "record": to_dict(whole)}


DONE = {"say": "done", "number": 1, "sampling_s": 0.5}
MESSAGES = [
    *(record(name) for name in NAMES), record("a", Status.FAILED), record("b", Status.INCORRECT), DONE,
    {"say": "lost", "index": 1, "phase": "sample", "reason": "illegal address"},
    {"say": "stuck", "index": 2, "phase": "set-up", "reason": "nice (0 -> 10)"}, READY,
]


def nested(depth: int) -> object:
    inside: object = 0
    for _ in range(depth):
        inside = [inside]
    return inside


JUNK = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "honest", "b", "another group", "\ud800", "\udcff.py", "\0", "\x1b[31m", "passed", "crashed", "9" * 5000,
    [], {}, [None], [1.0, float("nan")], [[1]], {"": {}}, {"a": 1}, {"\ud800": "\ud83d"}, nested(50),
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
        text[: draw.randrange(len(text))], bytes(draw.randrange(256) for _ in range(draw.randrange(60))) + b"\n",
        b"[" * 20_000 + b"\n", b'{"say": ' * 5_000 + b"1" + b"}" * 5_000 + b"\n", b"\n", b"\n\n\0\n",
        b'{"say": "record", "record": ' + b'{"case": ' * 3_000 + b"\n", b"9" * 6_000 + b"\n", b"NaN\n",
        text * 2 + b"\n",
        text.replace(b"1.5", b"NaN") + b"\n", text.replace(b"1.5", b"1e999") + b"\n", "\ufeff".encode() + text + b"\n",
    )
    return draw.choice(raw)


def test_a_line_is_a_message_or_no_message():
    draw, until = random.Random(SEED), time.monotonic() + SECONDS / 2
    while time.monotonic() < until:
        data = line(draw)
        try:
            assert isinstance(protocol.answer(data), protocol.Answer), (SEED, data)
        except WorkerError:
            continue
        except Exception as error:
            raise AssertionError(f"ATTNBENCH_FUZZ_SEED={SEED}: {data[:300]!r}") from error


class Ended:
    """The supervisor of a worker that has said all it had to say."""

    pid, returncode = 1, 0

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        return self.code


class Asked:
    """The worker's pipe of requests: at the first it says all it has to say and ends; a second finds nobody."""

    def __init__(self, end: int, said: bytes) -> None:
        self.end: int | None = end
        self.said = said

    def write(self, text: str) -> None:
        if self.end is None:
            raise BrokenPipeError
        assert os.write(self.end, self.said[:60_000]) > 0
        os.close(self.end)
        self.end = None

    def flush(self) -> None:
        pass

    close = flush


def worker_that_said(ready: bytes, said: bytes, draw: random.Random) -> Worker:
    """A worker without a process."""
    worker = Worker.__new__(Worker)
    worker.page, ring = BlamePage.create(), shared_memory(Ring.SIZE)
    worker.page.say(draw.choice((HARNESS, 0, 1, 2, 3, 2**31 - 1)), draw.choice(("sample", "set-up", "\x1b\n", "")))
    worker._log = Ring(ring)
    worker._log.begin()
    os.close(ring)
    worker._from, end = os.pipe()
    assert os.write(end, ready[:60_000]) > 0
    worker._control = os.dup(end)
    worker._write = Asked(end, said)
    worker._selector = selectors.DefaultSelector()
    worker._selector.register(worker._from, selectors.EVENT_READ)
    worker._buffer, worker._closed, worker.environment, worker._number = bytearray(), False, None, 0
    worker._process = Ended(draw.choice((0, 1, -9, -11, -15, -40)))
    return worker


def test_whatever_a_worker_says_each_backend_has_a_record(monkeypatch):
    draw, until, number, lost = random.Random(SEED + 1), time.monotonic() + SECONDS, 0, 0
    monkeypatch.setattr(process, "POLL_S", 0)
    while time.monotonic() < until or number < 20:
        number += 1
        said = []

        def start(device: str, said: list = said) -> Worker:
            ready = json.dumps(READY).encode() + b"\n" if said or draw.random() < 0.95 else line(draw)
            lines = [line(draw) for _ in range(draw.randrange(1, 8))]
            if draw.random() < 0.3:
                lines += [json.dumps(message).encode() + b"\n" for message in (*MESSAGES[:3], DONE)]
            said.append((ready, b"".join(lines)))
            return worker_that_said(*said[-1], draw)

        monkeypatch.setattr(device_worker, "Worker", start)
        try:
            run = execute(dataclasses.replace(RUN, settings=Settings(timeout=5.0, baseline=draw.choice(NAMES))))
            assert [one.backend for one in run.records] == list(NAMES)
            assert {one.group for one in run.records} == {GROUP.group}
            text = dumps(run)
            assert text.encode().decode() == text
            assert [one.status for one in loads(text).records] == [one.status for one in run.records]
            lost += any(one.status is not Status.PASSED for one in run.records)
        except NothingToRun:
            continue
        except Exception as error:
            raise AssertionError(f"ATTNBENCH_FUZZ_SEED={SEED}, number {number}: {said}") from error
    assert lost > 3


@pytest.mark.parametrize("data", [
    json.dumps(record("a") | {"record": record("a")["record"] | {"group": "another"}}),
    json.dumps(record("c")),
    json.dumps(record("a") | {"record": record("a")["record"] | {"case": {"batch": 7}}}),
    json.dumps(record("a") | {"record": record("a")["record"] | {"replicate": 1}}),
    json.dumps(record("a")).replace('"rounds": [0, 1, 2]', '"rounds": [0]'),
    json.dumps(record("a")).replace("1.5", "-1.5"),
])
def test_a_record_that_is_not_of_this_group_or_of_no_use_ends_the_worker(monkeypatch, data):
    draw, ready = random.Random(0), json.dumps(READY).encode() + b"\n"
    workers = [worker_that_said(ready, data.encode() + b"\n", draw)]
    workers[0].page.say(HARNESS, "idle")
    good = b"".join(json.dumps(message).encode() + b"\n" for message in (*MESSAGES[:3], DONE))
    monkeypatch.setattr(device_worker, "Worker", lambda device: workers.pop() if workers else worker_that_said(
        ready, good, draw))
    run = execute(RUN)
    assert {one.status for one in run.records} == {Status.PASSED}


def test_a_line_without_an_end_is_bounded(monkeypatch):
    monkeypatch.setattr(process, "LONGEST_LINE", 10_000)
    worker = worker_that_said(json.dumps(READY).encode() + b"\n", b"x" * 50_000, random.Random(0))
    assert worker.start() is None
    loss = worker.measure(GROUP, RUN.settings, [], on_record=lambda record: None)
    assert loss.reason.endswith("worker: a line of its protocol is longer than 10000 bytes")
