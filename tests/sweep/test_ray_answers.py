"""Answers of a cluster, compared with the requests; without Ray."""

from __future__ import annotations

import json
import re
import socket
import time

import pytest
from small_runs import small_run

from attnbench.errors import WorkerError
from attnbench.record import Record, Status, to_dict
from attnbench.sweep import ray_engine
from attnbench.sweep.executor import ExecutorLost
from attnbench.sweep.ray_engine import Head, read_answer

GROUP = small_run(["one", "two"]).plan[0]


def answer(*records: Record, **others) -> str:
    return json.dumps({"records": to_dict(records), "environments": [], "sampling_s": 0.5, **others})


def record(backend: str, **others) -> Record:
    own = {"workload": GROUP.workload, "case": GROUP.case, "case_id": GROUP.case_id, "group": GROUP.group}
    return Record(**{**own, "backend": backend, "replicate": 0, "status": Status.FAILED, "reason": "so", **others})


def test_an_answer_gives_its_records():
    found = read_answer(answer(record("one"), record("two")), GROUP)
    assert [one.backend for one in found.records] == ["one", "two"]
    assert found.sampling_s == 0.5


def test_records_that_no_run_file_can_hold_are_none():
    with pytest.raises(WorkerError, match="its answer cannot be kept"):
        read_answer(answer(record("one", counters={"x": 1e308}), record("two")), GROUP)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("", "cannot be read"),
        (None, "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("{}", "KeyError"),
        (answer(record("one"), record("two"), sampling_s="long"), "cannot be read"),
        (answer(record("one"), record("two"), records=7), "cannot be read"),
        (answer(record("one")), "each backend of the group once"),
        (answer(record("one"), record("two"), record("two")), "each backend of the group once"),
        (answer(record("one"), record("two", environment=0)), "each backend of the group once"),
        (answer(record("one"), record("three")), "was not asked for"),
        (answer(record("one"), record("two", group="another")), "was not asked for"),
    ],
)
def test_an_answer_to_something_else_is_none(said, wrong):
    with pytest.raises(WorkerError, match=re.escape(wrong)):
        read_answer(said, GROUP)


def test_an_executor_that_is_lost_there_is_lost_here():
    with pytest.raises(ExecutorLost, match=r"^no worker$") as lost:
        read_answer(json.dumps({"lost": "no worker", "measuring": True}), GROUP)
    assert lost.value.measuring


def test_a_head_that_falls_silent_is_said_after_a_while(monkeypatch):
    monkeypatch.setattr(ray_engine, "LOOK_S", 0.0)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        head = Head(*one.getsockname())
        monkeypatch.setattr(ray_engine, "HEAD_S", 0.05)
        time.sleep(0.1)
        head.check()
    head.check()
    time.sleep(0.1)
    with pytest.raises(ExecutorLost, match=r"the head of the cluster, 127\.0\.0\.1:\d+, has not answered for 0\.05 s"):
        head.check()
