"""Work that a thread queues on a GPU's stream; the stream is simulated, so that a test chooses the order."""

from __future__ import annotations

import re
from itertools import cycle

import pytest
import torch
from cheating import ByNumpy
from test_cheats import LATE, LEFT

from attnbench.check import inspection
from attnbench.check.inspection import MOST_LOOKS, Inspection
from attnbench.check.reference import References
from attnbench.workloads.base import load_workload
from waiting import Clock

CASE = {"batch": 1, "seqlen": 5, "nheads": 1, "headdim": 8, "dtype": "fp32", "causal": True}
WORK_MS, OUTPUTS_MS = 2.0, 0.1
LATER, BEFORE_THE_END = False, True


class Stream:
    """What is queued takes its time, and nothing else does."""

    now_ms = 0.0

    def __init__(self, monkeypatch) -> None:
        stream = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_ms = stream.now_ms

            def elapsed_time(self, later: Event) -> float:
                return later.at_ms - self.at_ms

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        self.clock, self.aside_ms = Clock(), 0.0
        self.clock.put_into(monkeypatch, inspection)

    def synchronize(self, device: object) -> None:
        """Wait for what is queued on another stream."""
        self.clock.pass_by(1e-3 * self.aside_ms)
        self.aside_ms = 0.0


class ByThread(ByNumpy):
    """Its thread queues the work before the call's end is recorded, or when the outputs are asked for."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.race, self.pending = stream, cycle([BEFORE_THE_END]), False

    def forward(self):
        self.pending = True
        if next(self.race) is BEFORE_THE_END:
            self.queue()

    def outputs(self):
        if self.pending:
            self.queue()
        self.stream.now_ms += OUTPUTS_MS
        return self.out

    def queue(self):
        self.stream.now_ms += WORK_MS
        self.out, self.pending = self.work(), False


class AsideFromReload(ByThread):
    """Its reload queues the work on another stream, for which its calls wait."""

    def reload(self, inputs):
        super().reload(inputs)
        self.stream.aside_ms = 5 * WORK_MS


def said_of(monkeypatch, race: list[bool], samples_ms: list[float], kind: type[ByThread] = ByThread) -> str | None:
    """The end of looks at a launch whose samples take so long in turn."""
    backend, workload = kind(Stream(monkeypatch)), load_workload("attention")
    case = workload.case(CASE)
    first, second = (workload.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2))
    references = References(workload, case, first, second)
    with backend.session(case, first) as launch:
        looking = Inspection(launch, references, variant="softmax", budget=backend.budget(case))
        looking.cuda = True
        launch.forward()
        backend.race, samples = cycle(race), cycle(samples_ms)
        for _ in range(MOST_LOOKS):
            looking.prepare()
            launch.forward()
            new_ms = next(samples)
            said = looking.finish(recorded_ms=new_ms, repeated_ms=new_ms, ordinary_ms=new_ms, new_ms=new_ms, lead_s=0.0)
            if said or not looking.undecided:
                return said
    pytest.fail("looks have no end")


@pytest.mark.parametrize("race", [[LATER], [BEFORE_THE_END], [LATER, BEFORE_THE_END, BEFORE_THE_END]])
def test_work_that_samples_leave_out_is_found_whoever_comes_first(monkeypatch, race):
    assert re.fullmatch(LATE, said_of(monkeypatch, race, [0.01]) or "")


def test_work_that_reload_leaves_to_another_stream_is_found(monkeypatch):
    said = said_of(monkeypatch, [BEFORE_THE_END], [WORK_MS], AsideFromReload)
    assert re.fullmatch(LEFT, said or "")


def test_a_sample_now_and_then_that_has_the_work_in_it_lets_nobody_off(monkeypatch):
    assert re.fullmatch(LATE, said_of(monkeypatch, [LATER, LATER, BEFORE_THE_END], [0.01, 0.01, WORK_MS]) or "")


@pytest.mark.parametrize("samples_ms", [[WORK_MS], [0.9 * WORK_MS, 5 * WORK_MS]], ids=["quiet", "paused"])
def test_who_does_the_work_in_the_call_is_let_off_at_the_first_look(monkeypatch, samples_ms):
    assert said_of(monkeypatch, [BEFORE_THE_END], samples_ms) is None
