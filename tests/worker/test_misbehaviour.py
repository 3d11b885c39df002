"""Every misbehaviour ends as the record that DESIGN.md names, and two honest backends beside it are measured.

Each test is one run: `honest`, the bad ones, `honest-too`, and a second group after them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from pathlib import Path

import pytest
from small_runs import FAKES, MISBEHAVING, by_name, small_run

from attnbench.machine.device import CPU
from attnbench.record import Record, Run, Status
from attnbench.sweep.group import APART
from attnbench.sweep.run import execute
from attnbench.worker import process
from attnbench.worker.parts import SEVERAL
from attnbench.worker.process import Worker
from waiting import Clock, gone

HONEST = ("honest", "honest-too")


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("ATTNBENCH_TEST_LOG", str(path))
    return path


def measured(*bad: str, files: tuple[str, ...] = (), **settings) -> Run:
    """The run with its records, once it holds what every run holds."""
    run = execute(small_run(["honest", *bad, "honest-too"], HONEST, **settings), backend_files=[MISBEHAVING, *files])
    assert [(record.group, record.backend) for record in run.records] == [
        (group.group, name) for group in run.plan for name in group.backends
    ]
    for record in run.records:
        assert record.repro, record.backend
        assert "/home" not in f"{record.reason} {record.notes}"
        assert str(FAKES) not in f"{record.reason} {record.notes}"
    for group in (0, 1):
        for name in HONEST:
            found = by_name(run, group)[name]
            assert (found.status, found.time is not None) == (Status.PASSED, True), found
    assert [record.notes for record in run.records if record.group == run.plan[1].group] == [(), ()]
    assert by_name(run, 1)["honest-too"].speedup
    return run


def in_one_worker(*bad: str, files: tuple[str, ...] = (MISBEHAVING,)) -> dict[str, Record]:
    """Records of `honest`, the bad ones and `honest-too` as their worker gives them, before any is tried alone."""
    run = small_run(["honest", *bad, "honest-too"], HONEST)
    found: dict[str, Record] = {}
    after: list[Record] = []
    with Worker(CPU) as worker:
        assert worker.start() is None
        for group, keep in zip(run.plan, (lambda one: found.update({one.backend: one}), after.append), strict=True):
            assert isinstance(worker.measure(group, run.settings, files, on_record=keep), float)
    for record in found.values():
        assert record.repro, record.backend
        assert "/home" not in f"{record.reason} {record.notes}"
        assert str(FAKES) not in f"{record.reason} {record.notes}"
    assert [(record.backend, record.status, record.notes) for record in after] == [
        (name, Status.PASSED, ()) for name in HONEST
    ]
    assert [found[name].status for name in HONEST] == [Status.PASSED] * 2
    return found


def differing(run: Run | dict[str, Record], expected: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str | None]]:
    """Those whose status or words are not as expected, with what they are."""
    found = by_name(run) if isinstance(run, Run) else run
    assert set(expected) | set(HONEST) == set(found)
    return {
        name: (found[name].status.value, found[name].reason)
        for name, (status, words) in expected.items()
        if found[name].status != status or not re.fullmatch(words, found[name].reason or "", re.DOTALL)
    }


def notes(run: Run) -> dict[str, tuple[str, ...]]:
    return {name: record.notes for name, record in by_name(run).items()}


def test_exceptions_wrong_answers_and_memory_end_as_records_of_one_worker(log):
    expected = {
        "noting": ("passed", ""),
        "raises-in-probe": ("failed", r"KeyError during probe: 'LIBRARY_HOME' \(misbehaving\.py:\d+\)"),
        "raises-in-version": ("failed", r"OSError during probe: no such file: version\.txt \(misbehaving\.py:\d+\)"),
        "raises-in-session": ("failed", r"RuntimeError during set-up: no kernel image is available \(misbehaving.*\)"),
        "raises-in-forward": ("failed", r"ValueError during first call: head of size 16 \(misbehaving\.py:\d+\)"),
        "raises-in-outputs": ("failed", r"KeyError during check: first data: 'out' \(misbehaving\.py:\d+\)"),
        "raises-in-sampling": ("failed", r"ValueError during sample: one call too many \(misbehaving\.py:\d+\)"),
        "raises-in-closing": ("failed", r"RuntimeError during closing: the handle is gone \(misbehaving\.py:\d+\)"),
        "wrong-and-raises-in-closing": ("incorrect", "out: wrong values: .*"),
        "not-a-number": ("incorrect", r"out: NaN: 1 of 480 elements, the first at \[0, 3, 0, 1\]"),
        "wrong-values": ("incorrect", r"out: wrong values: worst error [\d.e-]+ \(budget .*\) at \[0, 5, 1, \d+\]; .*"),
        "top-left": ("incorrect", "out: wrong values.*; matches causal mask aligned top-left instead of bottom-right"),
        "unwritten": ("incorrect", r".*out: never written: 32 of 480 elements, the first at \[0, 0, 0, 0\]"),
        "cached": ("incorrect", "cached answer: after new inputs the outputs are still those of the old ones: out"),
        "changes-inputs": ("incorrect", "changed inputs: k"),
        "changes-inputs-and-raises": ("failed", r"RuntimeError during set-up: not today \(misbehaving\.py:\d+\)"),
        "finishes-late": ("incorrect", "out: unfinished work: 32 of 480 elements changed after .*"),
        "wrong-after-timing": (
            "incorrect",
            "(in a recorded sample|in a timed call on (new|known) data|right before and wrong after timing)"
            ": out: wrong values.*",
        ),
        "changes-globals": ("passed", ""),
        "too-large": ("oom", "out of device memory although alone; about 0.5 of its memory: --batch 1 --seqlen 7 .*"),
        "too-large-in-python": ("oom", "out of device memory although alone; about 0.5 of its memory: .*"),
        "noisy": ("passed", ""),
        "leaves-a-child": ("passed", ""),
    }
    records = in_one_worker(*expected)
    assert differing(records, expected) == {}
    found = {name: record.notes for name, record in records.items()}
    assert found["noting"] == ("the kernel that was chosen: plain",)
    assert found["wrong-and-raises-in-closing"] == ("closing it raised RuntimeError",)
    assert found["changes-inputs-and-raises"] == ("changed inputs: q (put back)",)
    assert [note.split(" (")[0] for note in found["changes-globals"]] == [
        "global left changed: grad mode",
        "global left changed: default dtype",
        "global left changed: number of threads",
    ]
    assert [name for name in HONEST if found[name]] == []
    for name, record in records.items():
        assert (record.version is None) == (name == "raises-in-version"), name
        assert record.source_hash, name
    words = [line.split() for line in log.read_text().splitlines()]
    assert [kind for kind, _ in words] == ["pid", "child"]
    assert gone(int(words[1][1])), "what a backend started outlives the worker"


@pytest.mark.usefixtures("forked_workers")
def test_globals_and_inputs_changed_while_sampling_are_put_back_and_blamed_on_nobody_else(log):
    expected = {
        "changes-globals-in-sampling": ("passed", ""),
        "changes-inputs-in-sampling": ("incorrect", r"changed inputs: v \(while the group was timed\)"),
    }
    run = measured(*expected)
    assert differing(run, expected) == {}
    words = "while the group was sampled: global left changed: default dtype (torch.float32 -> torch.float64)"
    assert words in notes(run)["honest"], "their times were taken under it"
    assert "no speed-up: measured without the baseline" in notes(run)["honest-too"]


@pytest.mark.usefixtures("forked_workers")
def test_who_does_not_fit_beside_others_is_measured_in_a_part_of_its_own(log):
    expected = {"too-large-beside-two": ("passed", ""), "too-large-in-sampling": ("passed", "")}
    run = measured(*expected)
    assert differing(run, expected) == {}
    found = by_name(run)
    assert SEVERAL not in found["honest-too"].notes
    rounds = {name: set(record.time.rounds) for name, record in found.items()}
    assert not rounds["honest-too"] & rounds["too-large-beside-two"], "measured apart, so they share no round"
    assert found["honest-too"].speedup
    assert not found["too-large-in-sampling"].speedup
    assert "no speed-up: measured without the baseline" in found["too-large-in-sampling"].notes


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_dies_costs_the_others_nothing(log):
    expected = {
        "dies-in-set-up": ("crashed", "killed by SIGSEGV during set-up; its last line was: about to fail in kernel.cu"),
        "exits": ("crashed", "ended the process with exit code 3 during first call"),
        "dies-in-sampling": ("crashed", "killed by SIGSEGV during sample"),
        "dies-in-closing": ("crashed", "killed by SIGSEGV during closing"),
    }
    run = measured(*expected)
    assert differing(run, expected) == {}
    assert by_name(run)["honest-too"].speedup, "measured in the worker that measured the baseline"


class OfHangs(Clock):
    """The parent's clock: a second is over whenever it looks and somebody hangs; whoever is only slow has all time."""

    def __init__(self, log) -> None:
        super().__init__()
        self.log, self.ended = log, 0

    def monotonic(self) -> float:
        """Seconds; those who hang say so in the log, one for each worker that is lost."""
        if self.log.read_text().count("asleep") > self.ended:
            self.sleep(1.0)
        return self.perf_counter()


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_hangs_is_given_up_after_the_timeout(log, monkeypatch):
    expected = {
        "sets-up-forever": ("timeout", "no progress for 20 s during set-up"),
        "hangs-in-sampling": ("timeout", "no progress for 20 s during sample"),
    }
    clock, close = OfHangs(log), process.Worker.close

    def closed(worker) -> None:
        close(worker)
        clock.ended = log.read_text().count("asleep")

    clock.put_into(monkeypatch, process)
    monkeypatch.setattr(process, "POLL_S", 0.001)
    monkeypatch.setattr(process.Worker, "close", closed)
    run = measured(*expected, timeout=20.0)
    assert differing(run, expected) == {}


@pytest.mark.usefixtures("forked_workers")
def test_who_is_blamed_for_what_another_did_is_measured_apart(log):
    run = measured("harms-others", "harmed")
    assert differing(run, {"harms-others": ("passed", ""), "harmed": ("passed", "")}) == {}
    found = by_name(run)
    assert {APART in record.notes for record in found.values()} == {True}
    assert found["harmed"].speedup, "beside the baseline, in a process of their own"
    assert SEVERAL in found["honest"].notes
    assert found["honest"].time.num_samples == 40
    baseline = found["honest"].time
    of_round = dict(zip(baseline.rounds, itertools.pairwise([*baseline.at_s, float("inf")]), strict=True))
    for name in ("harms-others", "harmed", "honest-too"):
        own = found[name].time
        assert own.num_samples == 10
        for index, at in zip(own.rounds, own.at_s, strict=True):
            before, after = of_round.get(index - 1, (0.0,))[0], of_round[index][1]
            assert before < at < after, "rounds in common were taken at the same time"


@pytest.mark.usefixtures("forked_workers")
def test_a_harmful_baseline_is_left_out_beside_the_others(log):
    run = execute(
        small_run(["harms-others", "harmed", "honest-too"], baseline="harms-others"), backend_files=[MISBEHAVING]
    )
    found = by_name(run)
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert found["honest-too"].speedup
    assert not found["harmed"].speedup
    assert "no speed-up: measured without the baseline" in found["harmed"].notes


@pytest.mark.usefixtures("forked_workers")
def test_a_forked_worker_starts_whatever_numbers_its_handles_have():
    """A process that has run thousands of tests has a hundred open ones."""
    with contextlib.ExitStack() as held:
        for first in range(90, 110, 2):
            while (handle := held.enter_context(Path(os.devnull).open()).fileno()) < first:
                pass
            assert handle >= first
            with Worker(CPU) as worker:
                assert worker.start() is None


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        (
            "raises",
            Status.FAILED,
            r"backends: file=breaks_in_worker\.py does not import: line \d+: ImportError: libso.*",
        ),
        ("dies", Status.CRASHED, "killed by SIGSEGV during probe"),
    ],
)
def test_a_file_that_breaks_in_the_worker_takes_nothing_but_its_own_backends(how, status, words, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_TEST_IMPORT", how)
    run = execute(
        small_run(["eager", "of-the-file", "sdpa-math"], baseline="eager"),
        backend_files=[str(FAKES / "breaks_in_worker.py")],
    )
    found = by_name(run)
    assert [found[name].status for name in ("eager", "sdpa-math")] == [Status.PASSED] * 2
    assert found["sdpa-math"].speedup
    assert found["of-the-file"].status is status
    assert re.fullmatch(words, found["of-the-file"].reason), found["of-the-file"].reason
    assert "--backends eager,of-the-file,breaks_in_worker.py" in found["of-the-file"].repro
    assert "--backends eager,sdpa-math " in found["sdpa-math"].repro


def test_files_given_by_a_relative_path_are_found_by_the_worker(monkeypatch):
    monkeypatch.chdir(FAKES.parent)
    run = execute(small_run(HONEST), backend_files=[os.path.relpath(MISBEHAVING)])
    assert {record.status for record in run.records} == {Status.PASSED}
