"""Phases of a launch: measured by the requested timer, if it can time them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from small_runs import small_run

from attnbench.errors import Unavailable
from attnbench.machine.devices import resolve
from attnbench.measure.timer import Untimed
from attnbench.worker import phases

CPU = resolve("cpu")


def timed(monkeypatch, timer, cannot=(), names=("look-up", "attention", "append"), together=None):
    """Timers that phases got, by name, and in which order they were announced."""
    asked = []

    def sample(subjects, *, plan, **_):
        asked.append((plan.timer, [one.name for one in subjects]))
        if plan.timer != "wall" and (idle := [one.name for one in subjects if one.name in cannot]):
            raise Untimed(idle[0], f"{plan.timer}: {idle[0]} launched nothing", idle[:together])
        return SimpleNamespace(timings=[SimpleNamespace(name=one.name, timer=plan.timer) for one in subjects])

    monkeypatch.setattr(phases, "sample", sample)
    monkeypatch.setattr(phases, "to_time", lambda timing: timing.timer)
    launch = SimpleNamespace(phases=dict.fromkeys(names, lambda: None), reset=None)
    entry = SimpleNamespace(launch=launch, run_once=lambda mode: None)
    settings = dataclasses.replace(small_run(["honest"]).settings, timer=timer)
    return phases.timed_phases(entry, "fwd", settings, CPU, lambda text: None), asked


def test_a_phase_that_the_timer_cannot_time_has_the_wall_clock_and_the_others_keep_theirs(monkeypatch):
    for together, attempts in ((None, 2), (1, 3)):
        found, asked = timed(monkeypatch, "cupti", cannot=("look-up", "append"), together=together)
        assert list(found.items()) == [("look-up", "wall"), ("attention", "cupti"), ("append", "wall")]
        assert [names for timer, names in asked if timer == "cupti"][-1] == ["attention"]
        assert len(asked) == attempts + 2
        assert sorted(names for timer, names in asked if timer == "wall") == [["append"], ["look-up"]]


def test_what_any_timer_can_time_is_sampled_together(monkeypatch):
    assert timed(monkeypatch, "cupti")[1] == [("cupti", ["look-up", "attention", "append"])]
    assert timed(monkeypatch, "auto")[1] == [("wall", ["look-up", "attention", "append"])]


@pytest.mark.parametrize("name", ["auto", "all"])
@pytest.mark.parametrize(("best", "used"), [("cupti", "cupti"), ("events", "wall"), ("wall", "wall")])
def test_phases_have_the_timer_of_the_step_unless_it_cannot_tell_host_work(monkeypatch, name, best, used):
    monkeypatch.setattr(phases, "choose", lambda name, device: SimpleNamespace(name=best))
    assert timed(monkeypatch, name)[1] == [(used, ["look-up", "attention", "append"])]


def test_what_no_timer_can_time_stays_an_error(monkeypatch):
    def sample(subjects, *, plan, **_):
        raise Unavailable(f"{plan.timer} does not work here")

    monkeypatch.setattr(phases, "sample", sample)
    launch = SimpleNamespace(phases={"look-up": lambda: None}, reset=None)
    settings = dataclasses.replace(small_run(["honest"]).settings, timer="cupti")
    with pytest.raises(Unavailable, match="cupti does not work here"):
        phases.timed_phases(SimpleNamespace(launch=launch), "fwd", settings, CPU, lambda text: None)
