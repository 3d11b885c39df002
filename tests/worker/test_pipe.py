"""Forbidden messages of a worker: records of others, unusable figures, lines without an end."""

from __future__ import annotations

import json
import os
import random
import subprocess

import pytest
from pipe_worker import DONE, GROUP, NAMES, READY, RUN, Ended, record, worker_that_said

from attnbench.errors import NothingToRun
from attnbench.record import Status
from attnbench.store.runfile import dumps, loads
from attnbench.sweep import device_worker
from attnbench.sweep.run import execute
from attnbench.worker import process
from attnbench.worker.activity import HARNESS


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(record("a") | {"record": record("a")["record"] | {"group": "another"}}),
        json.dumps(record("c")),
        json.dumps(record("a") | {"record": record("a")["record"] | {"case": {"batch": 7}}}),
        json.dumps(record("a") | {"record": record("a")["record"] | {"replicate": 1}}),
        json.dumps(record("a")).replace('"rounds": [0, 1, 2]', '"rounds": [0]'),
        json.dumps(record("a")).replace("1.5", "-1.5"),
    ],
)
def test_a_record_that_is_not_of_this_group_or_of_no_use_ends_the_worker(monkeypatch, data):
    draw, ready = random.Random(0), json.dumps(READY).encode() + b"\n"
    workers = [worker_that_said(ready, data.encode() + b"\n", draw)]
    workers[0].page.announce(HARNESS, "idle")
    good = b"".join(json.dumps(message).encode() + b"\n" for message in (*map(record, NAMES), DONE))
    monkeypatch.setattr(
        device_worker, "Worker", lambda device: workers.pop() if workers else worker_that_said(ready, good, draw)
    )
    run = execute(RUN)
    assert {one.status for one in run.records} == {Status.PASSED}


def test_a_line_without_an_end_is_bounded(monkeypatch):
    monkeypatch.setattr(process, "LONGEST_LINE", 10_000)
    worker = worker_that_said(json.dumps(READY).encode() + b"\n", b"x" * 50_000, random.Random(0))
    assert worker.start() is None
    loss = worker.measure(GROUP, RUN.settings, [], on_record=lambda record: None)
    assert loss.reason.endswith("worker: a line of its protocol is longer than 10000 bytes")


def test_an_environment_that_no_file_holds_is_none(monkeypatch):
    draw, ready = random.Random(0), json.dumps(READY).encode() + b"\n"
    strange = ready.replace(b'"ram_gb": null', b'"ram_gb": 1e+308')
    good = b"".join(json.dumps(message).encode() + b"\n" for message in (*map(record, NAMES), DONE))
    started = []

    def start(device):
        started.append(strange if len(started) != 1 else ready)
        return worker_that_said(started[-1], good if len(started) != 2 else b"x\n", draw)

    monkeypatch.setattr(device_worker, "Worker", start)
    with pytest.raises(NothingToRun, match=r"its environment cannot be kept .*1e\+308 is larger than any quantity"):
        execute(RUN)
    run = execute(RUN)
    assert len(run.environments) == 1
    assert loads(dumps(run)).environments == run.environments
    assert any("its environment cannot be kept" in (one.reason or "") for one in run.records)


class Mute(Ended):
    """A process that ends three waits after it closed its pipe."""

    looks = waits = 0

    def poll(self):
        self.looks += 1
        assert self.looks <= self.waits + 1, "looked at again without a wait"
        return self.code if self.waits >= 3 else None

    def wait(self, timeout=None):
        self.waits += timeout == process.POLL_S
        if self.waits < 3 and timeout is not None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return self.code


def test_a_worker_that_closed_its_pipe_and_runs_on_is_waited_for_and_not_polled_all_the_time():
    worker = worker_that_said(json.dumps(READY).encode() + b"\n", b"", random.Random(0))
    worker._process = Mute(-9)
    assert worker.start() is None
    loss = worker.measure(GROUP, RUN.settings, [], on_record=lambda record: None)
    assert loss.reason.startswith("killed by SIGKILL")
    assert worker._process.waits == 3


class Open:
    """The worker's pipe of requests: at the first it says something, and has more to say."""

    def __init__(self, end: int, said: bytes) -> None:
        self.end, self.said = end, said

    def write(self, text: str) -> None:
        os.write(self.end, self.said)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        os.close(self.end)


@pytest.mark.parametrize("at_once", [False, True])
def test_what_a_worker_has_sent_before_the_signal_is_kept(at_once):
    worker = worker_that_said(json.dumps(READY).encode() + b"\n", b"", random.Random(0))
    first, second = (json.dumps(record(name)).encode() + b"\n" for name in ("honest", "a"))
    worker._process, worker._write = Ended(None), Open(worker._write.end, first)
    assert worker.start() is None
    kept = []

    def keep(one):
        kept.append(one.backend)
        if len(kept) == 1:  # a terminal may take the line of a record slowly; meanwhile the worker goes on
            os.write(worker._write.end, second)
            worker.page.say_enough(False)
            worker.interrupt("SIGINT", at_once=at_once)

    loss = worker.measure(GROUP, RUN.settings, [], on_record=keep)
    assert loss.interrupted
    assert kept == ["honest", "a"]
