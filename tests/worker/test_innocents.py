"""Harm by one backend is not recorded for another: that one is measured again alone before it is blamed."""

from __future__ import annotations

import re

import pytest
from small_runs import HARMFUL, MISBEHAVING, by_name, small_run

from attnbench.machine.device import CPU
from attnbench.record import Record, Run, Status
from attnbench.sweep.group import APART
from attnbench.sweep.run import execute
from attnbench.worker.process import Worker

FILES = [MISBEHAVING, HARMFUL]


def measured(*names: str, **settings) -> Run:
    return execute(small_run(names, **settings), backend_files=FILES)


@pytest.mark.usefixtures("forked_workers")
def test_a_thread_that_crashes_while_the_next_backend_opens():
    found = by_name(measured("honest", "leaves-a-thread", "opened-after-it"))
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert found["opened-after-it"].speedup, "beside the baseline, in a process of their own"
    assert found["opened-after-it"].notes[0] == APART
    assert (
        found["opened-after-it"]
        .notes[1]
        .startswith("passes alone; in a process with others: crashed: killed by SIGSEGV during set-up")
    )


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_ends_as_if_it_were_done():
    found = by_name(measured("honest", "loses-the-pipes", "honest-too"))
    assert found["honest"].status is found["honest-too"].status is Status.PASSED
    assert found["loses-the-pipes"].status is Status.CRASHED
    assert found["honest-too"].speedup


@pytest.mark.usefixtures("forked_workers")
def test_a_write_past_a_tensor():
    found = by_name(measured("honest", "reads-its-own", "writes-past-a-tensor"))
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert found["reads-its-own"].speedup
    [note] = found["reads-its-own"].notes[1:]
    assert note.startswith("passes alone; in a process with others: incorrect: ")


@pytest.fixture(scope="module")
def together() -> dict[str, Record]:
    """Records of one worker by name, before any is tried alone."""
    names = [name for name in EXPECTED if name != "honest"]
    run, found = small_run(["honest", *names, "honest-too"]), {}
    with Worker(CPU) as worker:
        assert worker.start() is None
        done = worker.measure(run.plan[0], run.settings, FILES, on_record=lambda one: found.update({one.backend: one}))
    assert isinstance(done, float)
    return found


NUMBER = "a finite number, at least 0"
EXPECTED = {
    "honest": None,
    "zeroes-k-in-its-phases": "changed inputs: k (by its phases)",
    "zeroes-k-when-it-is-closed": "changed inputs: k (when it was closed)",
    "infinite-budget": f"budget: factor=inf cannot be used; {NUMBER}",
    "negative-budget": f"budget: factor=-1.0 cannot be used; {NUMBER}",
    "budget-that-is-no-number": f"budget: factor=nan cannot be used; {NUMBER}",
    "config-is-a-number": "its record is refused: config-is-a-number.config: 3 is not a str",
    "version-is-a-number": "version-is-a-number: version()=2.1 is not text; a str or None",
    "notes-are-one-text": "notes-are-one-text: notes='a kernel' is not text; a tuple of str",
    "notes-are-numbers": "notes-are-numbers: notes=(1, None) is not text; a tuple of str",
    "half-a-flop": "half-a-flop: executed_flops=0.5 is not a count; None or a whole number, 0 to 1e+24",
    "minus-one-flop": "minus-one-flop: executed_flops=-1 is not a count; None or a whole number, 0 to 1e+24",
    "flops-of-numpy": None,
    "phases-are-a-list": "AttributeError during check: after timing: 'list' object has no attribute 'items'",
    "phase-named-by-a-number": None,
    "half-a-surrogate": None,
    "raises-half-a-surrogate": "RuntimeError during set-up: caf\\udce9.so: cannot open",
    "raises-without-words": "WordlessError during set-up: no message",
    "honest-too": None,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_no_record_can_hold_is_its_own_failure(together, name):
    record, reason = together[name], EXPECTED[name]
    assert re.sub(r" \(\w+\.py:\d+\)$", "", record.reason or "") == (reason or "")
    assert (record.status is Status.PASSED) == (reason is None)


def test_halves_of_letters_are_spelled(together):
    assert together["half-a-surrogate"].notes == ("caf\\udce9", "\\ud83d")
    assert together["flops-of-numpy"].work.executed_flops == 1000


@pytest.mark.usefixtures("forked_workers")
def test_the_bounds_are_those_of_the_inputs_of_the_run():
    found = by_name(measured("honest", "exact-on-outliers", input="outliers"))
    assert found["honest"].status is Status.PASSED
    assert found["exact-on-outliers"].reason.startswith("out: wrong values: relative L1 ")
    assert found["exact-on-outliers"].reason.endswith(" (budget 0)")
    found = by_name(measured("honest", "exact-on-outliers"))
    assert {record.status for record in found.values()} == {Status.PASSED}


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_was_killed_from_outside_is_measured_again(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("ATTNBENCH_TEST_LOG", str(log))
    found = by_name(measured("honest", "killed-once"))
    assert log.read_text() == "killed 0\n"
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert [record.notes for record in found.values()] == [(), ()]
    assert found["killed-once"].speedup
