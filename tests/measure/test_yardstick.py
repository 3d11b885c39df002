"""Yardsticks: known work sampled with the subjects of a group, and their part of a record."""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import pytest

from attnbench.machine.device import CPU
from attnbench.measure import sampling
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import Timing, sample
from attnbench.measure.subject import Subject
from attnbench.measure.yardstick import matmul_tflops, measured, yardsticks
from attnbench.record import Yardstick

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from simulated_card import Card, SimulatedStage, SimulatedTimer

YARDSTICKS = {"yardstick matmul": 0.03, "yardstick copy": 0.05}


@pytest.fixture
def simulate(monkeypatch):
    """Sample subjects with two yardsticks on a simulated card: the group, its timer, and who was announced."""

    def run(truth, plan, refuses=()):
        timer, stage, told = SimulatedTimer(Card(), truth | YARDSTICKS), SimulatedStage(), []
        monkeypatch.setattr(timer, "accepts", lambda one: "it reports nothing" if one.name in refuses else None)
        monkeypatch.setattr(sampling, "choose", lambda name, device: timer)
        monkeypatch.setattr(sampling, "open_stage", lambda device, l2: stage)
        monkeypatch.setattr(sampling.time, "sleep", lambda seconds: None)
        subjects, beside = ([Subject(name=name, call=lambda: None) for name in names] for names in (truth, YARDSTICKS))
        group = sample(
            subjects, device=CPU, plan=plan, announce=lambda index, phase: told.append(index), yardsticks=beside
        )
        return group, timer, told

    return run


def test_they_stand_in_the_same_rounds_and_are_no_subjects(simulate):
    group, timer, told = simulate({"a": 1000.0, "b": 2000.0}, Plan(warmup=0, iterations=120))
    assert [one.name for one in group.timings] == ["a", "b"]
    assert [one.name for one in group.yardsticks] == list(YARDSTICKS)
    assert all(one.rounds == list(range(120)) for one in (*group.timings, *group.yardsticks))
    assert set(told) == {0, 1}, "a yardstick is never the last word of a worker that dies"
    rounds = [timer.turns[at : at + 4] for at in range(0, 480, 4)]
    assert all(sorted(one) == sorted([*YARDSTICKS, "a", "b"]) for one in rounds)
    places = collections.Counter(one.index("yardstick copy") for one in rounds)
    assert min(places.values()) > 15, "anywhere in the round"
    ahead = sum(one.index("a") < one.index("b") for one in rounds)
    assert ahead == 60, "the order of the subjects stays balanced"


def test_beside_short_subjects_they_leave_rounds_out(simulate):
    group, *_ = simulate({"a": 0.01}, Plan(warmup=0, iterations=3000))
    found = group.yardsticks[0]
    assert found.rounds[:30] == list(range(30)), "however short the group, some are there"
    assert 30 < len(found.rounds) < 30 + 0.2 * 3000
    assert len(found.samples_ms) == len(found.rounds) == len(found.sm_mhz)
    assert len(group.timings[0].samples_ms) == 3000


def test_what_a_timer_cannot_time_is_left_out(simulate):
    group, timer, _ = simulate({"a": 1.0}, Plan(warmup=0, iterations=5), refuses=["yardstick copy"])
    assert [one.name for one in group.yardsticks] == ["yardstick matmul"]
    assert "yardstick copy" not in timer.turns


def test_their_noise_does_not_keep_a_group_going(simulate, monkeypatch):
    asked = []
    monkeypatch.setattr(sampling.StopRule, "decide", lambda self, group, elapsed: asked.append(len(group)) or "rel-ci")
    simulate({"a": 1.0, "b": 1.0}, Plan(warmup=0))
    assert asked == [2]


def test_all_timers_leave_one_series(simulate, monkeypatch):
    timers = []
    for name in ("first", "second"):
        timers.append(SimulatedTimer(Card(), {"a": 1.0} | YARDSTICKS))
        timers[-1].name = name
    monkeypatch.setattr(sampling, "available", lambda device: timers)
    group, _, _ = simulate({"a": 1.0}, Plan(timer="all", warmup=0, iterations=8))
    assert {one.timer for one in group.yardsticks} == {"first"}
    assert [name in timers[1].turns for name in YARDSTICKS] == [False, False]


# ── the work itself ────────────────────────────────────────────────────────────────────────────────


def test_they_do_what_is_counted_and_always_the_same(monkeypatch):
    torch = pytest.importorskip("torch")
    state = torch.get_rng_state()
    first, second = yardsticks(CPU), yardsticks(CPU)
    assert torch.equal(state, torch.get_rng_state()), "the process's own random numbers stay as they were"
    for one, other in zip(first, second, strict=True):
        assert (one.subject.name, one.flops, one.bytes) == (other.subject.name, other.flops, other.bytes)
    by_name = {one.subject.name: one for one in first}
    a, b = by_name["yardstick matmul"].subject.call.args
    assert by_name["yardstick matmul"].flops == 2 * a.shape[0] * a.shape[1] * b.shape[1]
    assert by_name["yardstick matmul"].bytes == 3 * a.numel() * a.element_size()
    monkeypatch.setattr(torch, "matmul", lambda *args, **kwargs: pytest.fail("a backend's own matmul"))
    torch.testing.assert_close(by_name["yardstick matmul"].subject.call(), a @ b)
    (source,) = by_name["yardstick copy"].subject.call.args
    assert by_name["yardstick copy"].bytes == 2 * source.numel() * source.element_size()
    assert torch.equal(by_name["yardstick copy"].subject.call(), source)


def test_without_room_a_group_goes_without(monkeypatch):
    torch = pytest.importorskip("torch")

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randn", full)
    assert yardsticks(CPU) == ()


def test_a_record_keeps_samples_rounds_and_work():
    known = yardsticks(CPU)
    timing = Timing(
        name="yardstick matmul",
        timer="wall",
        l2="warm",
        regime="cpu",
        samples_ms=[0.02, 0.01],
        rounds=[0, 4],
        sm_mhz=[None, None],
    )
    found = measured(known, [timing])
    assert found == {
        "matmul": Yardstick(flops=2 * 128**3, bytes=3 * 128**2 * 4, samples_ms=(0.02, 0.01), rounds=(0, 4))
    }
    timing.sm_mhz = [1980.0, None]
    assert measured(known, [timing])["matmul"].sm_mhz == (1980.0, None)
    assert matmul_tflops(found) == pytest.approx(2 * 128**3 / 1e-5 / 1e12)
    assert matmul_tflops({}) is None
