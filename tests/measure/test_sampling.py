"""The sampler on a simulated GPU with its own clock: all results are known in advance."""

from __future__ import annotations

import collections
import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.errors import Unavailable, UsageError
from attnbench.machine.device import CPU
from attnbench.measure import inspections, sampling, stage
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import Interrupted, sample
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Untimed
from attnbench.measure.timers import wall
from attnbench.record import INTERRUPTED, PowerSeries
from attnbench.stats.ratio import paired_ratio
from attnbench.stats.summary import FEWEST_FOR_INTERVAL
from waiting import Clock

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from simulated_card import Card, SimulatedStage, SimulatedTimer


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch):
    """Measure subjects with the given true times on a card; returns (group, timer, stage)."""

    def run(
        card: Card,
        truth: dict[str, float],
        plan: Plan,
        announce=lambda index, phase: None,
        reset=None,
        ending=lambda enough: False,
    ):
        on_card = SimulatedStage()

        class PauseClock(Clock):
            def sleep(self, seconds: float) -> None:
                on_card.pauses.append(seconds)
                super().sleep(seconds)

        clock = PauseClock()
        clock.put_into(monkeypatch, sampling, stage)
        timer = SimulatedTimer(card, truth, clock)
        monkeypatch.setattr(sampling, "choose", lambda name, device: timer)
        monkeypatch.setattr(sampling, "open_stage", lambda device, l2: on_card)
        monkeypatch.setattr(sampling, "HEAT_S", 0.01)
        subjects = [Subject(name=name, call=lambda: clock.pass_by(1e-5), reset=reset) for name in truth]
        return sample(subjects, device=CPU, plan=plan, announce=announce, ending=ending), timer, on_card

    return run


def ratio(group, a=0, b=1):
    first, second = (dict(zip(t.rounds, t.samples_ms, strict=True)) for t in (group.timings[a], group.timings[b]))
    return paired_ratio(first, second, tick=group.timings[a].tick_ms)


def test_a_fixed_number_of_rounds_is_kept_to_the_letter(simulate) -> None:
    group, timer, _ = simulate(Card(), {"a": 1.0, "b": 2.0, "c": 3.0}, Plan(warmup=5, iterations=30))
    assert [len(t.samples_ms) for t in group.timings] == [30, 30, 30]
    assert {t.stopped_by for t in group.timings} == {"iterations"}
    assert collections.Counter(timer.turns) == {"a": 35, "b": 35, "c": 35}


def test_one_shot_does_no_warm_up(simulate) -> None:
    group, timer, _ = simulate(Card(), {"a": 1.0}, Plan(warmup=0, iterations=1))
    assert timer.turns == ["a"]
    assert len(group.timings[0].samples_ms) == 1


def test_rounds_hold_every_subject_once_and_orders_are_balanced(simulate) -> None:
    _, timer, _ = simulate(Card(), {"a": 1.0, "b": 1.0, "c": 1.0}, Plan(warmup=0, iterations=60))
    rounds = [tuple(timer.turns[i : i + 3]) for i in range(0, 180, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    for place in range(3):
        assert set(collections.Counter(one[place] for one in rounds).values()) == {20}


def test_the_order_follows_the_seed(simulate) -> None:
    turns = [
        simulate(Card(), {"a": 1.0, "b": 1.0, "c": 1.0}, Plan(warmup=0, iterations=20, seed=seed))[1].turns
        for seed in (0, 0, 1)
    ]
    assert turns[0] == turns[1] != turns[2]


def test_it_stops_when_the_ratio_is_known(simulate) -> None:
    group, _, _ = simulate(Card(noise=0.003), {"a": 1.0, "b": 0.8}, Plan(warmup=1, rel_ci=0.01, max_seconds=60))
    assert group.timings[0].stopped_by == "rel-ci"
    found = ratio(group)
    assert found.ratio == pytest.approx(1.25, rel=0.01)
    assert found.ci_high - found.ci_low <= 0.02 * found.ratio * 1.0001
    assert found.verdict == "faster"


def test_it_stops_when_the_time_is_spent(simulate) -> None:
    group, _, _ = simulate(Card(noise=0.3), {"a": 1.0, "b": 1.0}, Plan(rel_ci=1e-6, max_seconds=0.2))
    assert group.timings[0].stopped_by == "max-seconds"
    assert 0.2 <= group.sampling_s < 2


def test_where_the_run_is_to_end_it_stops_after_the_batch_with_samples_for_an_interval(simulate) -> None:
    told = []
    group, _, _ = simulate(
        Card(noise=0.3),
        {"a": 1.0, "b": 1.0},
        Plan(iterations=10**6),
        ending=lambda enough: told.append(enough) or enough,
    )
    assert {timing.stopped_by for timing in group.timings} == {INTERRUPTED}
    assert {len(timing.samples_ms) for timing in group.timings} <= set(range(FEWEST_FOR_INTERVAL, 10**4))
    assert told[0] is False, "while it warms up"


def test_too_few_samples_are_none(simulate) -> None:
    with pytest.raises(Interrupted):
        simulate(Card(), {"a": 1.0}, Plan(warmup=0, iterations=100), ending=lambda enough: True)
    with pytest.raises(Interrupted):
        simulate(Card(), {"a": 1.0}, Plan(warmup=5, iterations=1), ending=lambda enough: True)


def test_samples_that_are_all_that_was_asked_for_are_no_fewer_for_an_end(simulate) -> None:
    group, _, _ = simulate(Card(), {"a": 1.0}, Plan(warmup=0, iterations=1), ending=lambda enough: True)
    assert group.timings[0].stopped_by == "iterations"


@pytest.mark.parametrize("seed", range(6))
def test_a_drift_of_ten_percent_leaves_the_ratio_alone(simulate, seed: int) -> None:
    card = Card(noise=0.002, drift=0.1, period=60.0, seed=seed)
    group, _, _ = simulate(card, {"a": 1.0, "b": 1.0}, Plan(warmup=1, rel_ci=0.002, max_seconds=60, seed=seed))
    assert max(group.timings[0].samples_ms) / min(group.timings[0].samples_ms) > 1.05
    assert ratio(group).ratio == pytest.approx(1.0, abs=0.004)


@pytest.mark.parametrize("seed", range(12))
def test_one_percent_is_found_with_the_right_sign(simulate, seed: int) -> None:
    card = Card(noise=0.005, drift=0.05, seed=seed)
    group, _, _ = simulate(card, {"a": 1.0, "b": 1.01}, Plan(warmup=1, rel_ci=0.002, max_seconds=60, seed=seed))
    assert ratio(group).ci_high < 1
    assert ratio(group).verdict == "slower"


def test_a_timer_tick_does_not_break_a_tie(simulate) -> None:
    card = Card(noise=0.004, tick_ms=3.2e-5)
    group, _, _ = simulate(card, {"a": 5.5e-3, "b": 5.5e-3}, Plan(warmup=1, rel_ci=0.002, max_seconds=60))
    assert ratio(group).ratio == pytest.approx(1.0, abs=0.002)
    assert ratio(group).verdict == "same"


@pytest.mark.parametrize(
    ("falls", "regime", "pauses"), [(True, "burst", True), (False, "burst", False), (True, "sustained", False)]
)
def test_burst_pauses_while_the_card_holds_its_clock_down(simulate, falls: bool, regime: str, pauses: bool) -> None:
    card = Card(noise=0.05, power_limited=falls)
    plan = Plan(rel_ci=1e-5, max_seconds=0.3, regime=regime, warmup=1)
    group, _, stage = simulate(card, {"a": 1.0, "b": 1.0}, plan)
    assert group.timings[0].regime == regime
    assert bool(stage.pauses) == pauses
    assert (group.timings[0].sm_mhz[-1] < group.timings[0].sm_mhz[0]) == falls


def test_every_turn_is_announced_before_it_is_taken(simulate) -> None:
    said: list[tuple[int, str]] = []
    _, timer, _ = simulate(
        Card(),
        {"a": 1.0, "b": 1.0},
        Plan(warmup=1, iterations=4),
        announce=lambda index, phase: said.append((index, phase)),
    )
    assert [("a", "b")[index] for index, _ in said] == timer.turns
    assert {phase for _, phase in said} == {"sample"}


def test_state_is_reset_before_every_call(simulate) -> None:
    resets: list[int] = []
    _, timer, _ = simulate(Card(), {"a": 1.0}, Plan(warmup=2, iterations=7), reset=lambda: resets.append(1))
    assert len(resets) == len(timer.turns) == 9


def test_more_rounds_than_the_marker_has_slots_are_cut(simulate) -> None:
    group, _, stage = simulate(Card(), {"a": 1.0, "b": 1.0}, Plan(warmup=0, iterations=700))
    assert len(group.timings[0].samples_ms) == 700
    sizes, count = [], 0
    for event in stage.events:
        if event == "begin":
            sizes.append(count)
            count = 0
        count += event.startswith("ready")
    assert max([*sizes, count]) <= sampling.MAX_BATCH


def test_the_first_batch_is_one_round_whatever_is_asked_for(simulate) -> None:
    """Its head start is a guess: with a longer one the host would be late."""
    for plan in (Plan(warmup=0, iterations=40), Plan(warmup=40, iterations=1)):
        _, _, stage = simulate(Card(), {"a": 1.0, "b": 1.0}, plan)
        assert stage.events.index("end") == len(["begin", "ready", "ready"])
        assert len(stage.leads) < 40, "the rest in longer ones"


def test_what_a_call_leaves_in_circles_is_freed_between_batches() -> None:
    alive = most = 0

    class Circle:
        def __init__(self) -> None:
            nonlocal alive, most
            self.me = self
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    sample([Subject(name="a", call=Circle)], device=CPU, plan=Plan(warmup=0, iterations=5000))
    assert most <= sampling.MAX_BATCH


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"iterations": 0}, "iterations=0 cannot be used; a whole number, at least 1"),
        ({"iterations": 2.5}, "iterations=2.5 cannot be used; a whole number, at least 1"),
        ({"warmup": -1}, "warmup=-1 cannot be used; a whole number, at least 0"),
        ({"rel_ci": float("nan")}, "rel_ci=nan cannot be used; a number above 0 and below 1"),
        ({"max_seconds": 0}, "max_seconds=0 cannot be used; a number above 0"),
    ],
)
def test_a_plan_that_means_nothing_is_refused(wrong, words: str) -> None:
    with pytest.raises(UsageError, match=f"^measure: {words}$"):
        Plan(**wrong)


def test_an_unknown_regime_names_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"measure: regime=hot is not known; one of burst, sustained"):
        Plan(regime="hot")


def test_an_unknown_timer_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"timer=walll is not known; .*; did you mean wall\?"):
        sample([Subject(name="a", call=lambda: None)], device=CPU, plan=Plan(timer="walll"))


@pytest.mark.parametrize("chosen", ["", "auto,", "wall,,auto", "all,wall"])
def test_a_list_of_timers_has_names_alone(chosen):
    with pytest.raises(UsageError, match=r"measure: timer='.*' is no list of timers; one, such as auto"):
        sample([Subject(name="a", call=lambda: None)], device=CPU, plan=Plan(timer=chosen))


def test_a_timer_named_twice_measures_once():
    group = sample([Subject(name="a", call=lambda: None)], device=CPU, plan=Plan(timer="auto,wall", iterations=6))
    assert group.timings[0].timer == "wall"
    assert not group.by_timer


def test_a_gpu_timer_is_refused_on_a_cpu() -> None:
    with pytest.raises(Unavailable, match="timer=cupti does not work on cpu; for cuda"):
        sample([Subject(name="a", call=lambda: None)], device=CPU, plan=Plan(timer="cupti"))


def test_cold_l2_is_refused_on_a_cpu() -> None:
    with pytest.raises(UsageError, match="cpu: l2=cold is for GPUs; warm or auto on a CPU"):
        sample([Subject(name="a", call=lambda: None)], device=CPU, plan=Plan(l2="cold"))


def test_a_subject_that_reports_nothing_cannot_be_asked() -> None:
    with pytest.raises(Unavailable, match="reported: subject=a cannot be timed; the launch reports no time of its own"):
        sample([Subject(name="a", call=lambda: None)], device=CPU, plan=Plan(timer="reported"))


def test_reported_is_what_the_subject_says() -> None:
    subject = Subject(name="a", call=lambda: None, reported_ms=lambda: 1.25)
    group = sample([subject], device=CPU, plan=Plan(timer="reported", warmup=0, iterations=3))
    assert group.timings[0].samples_ms == [1.25, 1.25, 1.25]


class Inspecting:
    """Finds nothing, once."""

    undecided = False

    def __init__(self) -> None:
        self.seen: list[float] = []

    def begin(self) -> None: ...

    def disturb(self) -> None: ...

    def prepare(self) -> None: ...

    def finish(
        self, recorded_ms: float | None, repeated_ms: float, ordinary_ms: float, new_ms: float, lead_s: float
    ) -> str | None:
        self.seen.append(new_ms)
        return None


def test_a_subject_that_launches_nothing_here_is_inspected_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are processes of their own: the device's timer finds no kernel of this process."""

    class OfThisProcess(SimulatedTimer):
        def measure(self, stage, batch, lead_s, announce):
            raise Untimed(batch[0][1].name, "launched nothing on the device")

    blind, chosen = OfThisProcess(Card(noise=0), {}), inspections.choose
    monkeypatch.setattr(inspections, "choose", lambda name, device: blind if name == "auto" else chosen(name, device))
    inspector = Inspecting()
    subject = Subject(name="a", call=lambda: None, reported_ms=lambda: 1.25, inspector=inspector)
    group = sample([subject], device=CPU, plan=Plan(timer="reported", warmup=0, iterations=3))
    assert group.timings[0].samples_ms == [1.25] * 3
    assert len(inspector.seen) == 1
    assert 0 < inspector.seen[0] < 1.25


def test_all_timers_are_kept_apart_and_disagreement_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = SimulatedTimer(Card(noise=0), {"a": 1.0}), SimulatedTimer(Card(noise=0), {"a": 1.2})
    slow.name = "other"
    monkeypatch.setattr(sampling, "available", lambda device: [fast, slow])
    group = sample([Subject(name="a", call=lambda: None)], device=CPU, plan=Plan(timer="all", warmup=0, iterations=5))
    assert {name: timings[0].samples_ms[0] for name, timings in group.by_timer.items()} == {
        "simulated": pytest.approx(1.0),
        "other": pytest.approx(1.2),
    }
    assert group.timings[0].timer == "simulated"
    assert group.timings[0].notes == ("timers disagree: other 1200 µs, simulated 1000 µs (+20 %)",)


def test_power_is_read_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has the power of the first timer; phases have none."""
    timers, opened = [SimulatedTimer(Card(noise=0), {"a": 1.0}) for _ in range(2)], []
    timers[1].name = "other"
    found = PowerSeries(at_s=(0.0,), watts=(700.0,), celsius=(50.0,))

    def power_sampler(device):
        opened.append(device)
        return contextlib.nullcontext(SimpleNamespace(series=lambda start_s: found))

    monkeypatch.setattr(sampling, "available", lambda device: timers)
    monkeypatch.setattr("attnbench.machine.telemetry.PowerSampler", power_sampler)
    subjects, plan = [Subject(name="a", call=lambda: None)], Plan(timer="all", warmup=0, iterations=5)
    assert sample(subjects, device=CPU, plan=plan).power is found
    assert opened == [CPU]
    assert sample(subjects, device=CPU, plan=plan, power=False).power is None
    assert opened == [CPU]


def test_the_wall_timer_times_the_call_and_not_the_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.put_into(monkeypatch, sampling, stage, wall)
    subject = Subject(name="a", call=lambda: clock.sleep(0.002), reset=lambda: clock.sleep(0.01))
    group = sample([subject], device=CPU, plan=Plan(warmup=0, iterations=5))
    timing = group.timings[0]
    assert timing.timer == "wall"
    assert (timing.l2, timing.regime) == ("warm", "cpu")
    assert timing.samples_ms == [2.0] * 5
    assert timing.sm_mhz == [None] * 5
    assert timing.at_s == [0.01, 0.022, 0.034, 0.046, 0.058]


def test_what_an_empty_call_reads_is_said_beside_short_samples_and_not_taken_off(monkeypatch) -> None:
    class Slow(Clock):
        """To read it takes 125 ns."""

        def perf_counter_ns(self):
            self.now_ns += 125
            return self.now_ns

    clock = Slow()
    clock.put_into(monkeypatch, sampling, stage, wall)
    short, long = (
        sample([Subject(name="a", call=call)], device=CPU, plan=Plan(warmup=0, iterations=30)).timings[0]
        for call in (lambda: None, lambda: clock.sleep(2e-3))
    )
    assert short.samples_ms == pytest.approx([250e-6] * 30), "as it was read"
    assert short.notes == ("an empty call reads 0.25 µs by this timer: so much of each sample is the harness",)
    assert long.samples_ms == pytest.approx([2.00025] * 30)
    assert long.notes == ()
