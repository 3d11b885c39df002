"""The budget of a race, who continues when it is short, and the final's sample: every number by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from attnbench.stats import racing
from attnbench.stats.placing import Placing, hope
from attnbench.stats.race_data import Rules
from attnbench.stats.racing import Race


def names(count):
    return [f"c{index}" for index in range(count)]


def take(race, ms=1.0, **apart):
    """One heat at these times."""
    heat = race.heat
    race.take({name: dict.fromkeys(range(heat.rounds), apart.get(name, ms)) for name in heat.names})
    return heat


def after_first_stage(count=20, **rules):
    """Everyone at 1 ms, nobody dropped; the second stage has not begun."""
    race = Race(names(count), Rules(**rules))
    while race.stage == 1 and race.heat and not race.heat.final:
        take(race)
    return race


def test_what_was_sampled_is_counted_with_the_warm_up():
    race = Race(names(20), Rules())
    assert [len(heat.names) for heat in race._waiting] == [11, 10]
    assert race.sampled_s == 0.0
    take(race)
    assert race.sampled_s == pytest.approx(11 * 6e-3)
    take(race, ms=2.0)
    assert race.sampled_s == pytest.approx(11 * 6e-3 + 10 * 12e-3)


def test_a_stage_leaves_room_for_the_final_within_its_share():
    race = after_first_stage()
    assert (race.stage, len(race.running), race.heat.rounds) == (2, 20, 10)
    assert race.sampled_s == pytest.approx(0.126)
    # A round of all takes 20 ms; the final of 8 takes 101 * 8 ms, and of so small a space no stage need take less.
    assert race._affordable(33)
    assert not race._affordable(34)
    race.rules = Rules(share=1.0)
    # Everyone as often as a finalist, less the final: 2.02 - 0.808 s.
    assert race._affordable(53)
    assert not race._affordable(54)
    race.rules = Rules(share=1.0, seconds=0.5)
    assert not race._affordable(53), "nor in time"


def test_a_stage_leaves_time_for_the_shortest_final():
    race = after_first_stage()
    race.rules = Rules(seconds=1.0)
    # 0.126 s, so many rounds and one of warm-up, and 11 rounds of 8 of 20.
    assert race._in_time(38)
    assert not race._in_time(39)
    race.running = names(5)
    # Five that are left are all finalists: 0.126 + (rounds + 1 + 11) * 5 ms.
    assert race._in_time(162)
    assert not race._in_time(163)


@pytest.mark.parametrize(("seconds", "left"), [(None, 10), (0.13, 8)])
def test_where_a_stage_does_not_fit_half_go_on_and_in_a_hurry_the_finalists(seconds, left):
    race = after_first_stage(seconds=seconds, share=0.0, first_rounds=30)
    assert len(race.running) == left
    assert race.heat.final is (left == 8)
    assert set(race._ended.values()) == {"cut"}
    assert len(race._ended) == 20 - left
    odd = after_first_stage(21, seconds=seconds, share=0.0, first_rounds=30)
    assert len(odd.running) == {10: 11, 8: 8}[left]


def test_who_is_cut_is_who_least_is_to_be_hoped_of_and_never_the_anchor():
    race = after_first_stage()
    errors = {"c1": 0.001, "c2": 0.5, "c3": 0.001, "c4": math.inf}
    logs = {"c1": 0.01, "c2": 0.3, "c3": 0.02, "c4": 0.0}
    race.running = ["c1", "c0", "c3", "c2", "c4"]
    race.anchor = "c0"
    race._placings = {"c0": Placing(0.0, 0.0, "c0", 1, 5, 3.0)} | {
        name: Placing(log, errors[name], "c0", 1, 5, 3.0 * math.exp(log)) for name, log in logs.items()
    }
    assert race._hope("c2") == pytest.approx(hope(0.3, 0.5))
    assert race._hope("c4") == race._hope("nobody") == math.inf
    race._ended = {}
    race._narrow(3)
    assert race.running == ["c0", "c2", "c4"], "one hardly known, one not at all; in the order that they had"
    assert race._ended == {"c1": "cut", "c3": "cut"}


@pytest.mark.parametrize(
    ("seconds", "rounds", "heats"), [(10.0, 25, 4), (0.5, 12, 4), (0.31, 11, 2), (0.1, 10, 1), (0.23, 11, 1)]
)
def test_a_final_is_cut_to_the_seconds_left(seconds, rounds, heats):
    race = after_first_stage()
    race.rules = Rules(seconds=seconds)
    race._start_final()
    # 0.126 s are gone, and a round of eight takes 8 ms, one of warm-up among them; ten rounds at least.
    assert [heat.rounds for heat in race._waiting] == [rounds] * heats
    assert [heat.seed for heat in race._waiting] == [999_983 * (place + 1) for place in range(heats)]
    assert race.heat.names[0] == race.anchor


def test_a_final_without_its_anchor_has_another_and_short_times_are_times():
    race = after_first_stage()
    race.running, race.anchor = ["c4", "c7", "c9"], "c0"
    race._start_final()
    assert race.heat.names == ("c4", "c7", "c9")
    assert take(race, ms=1e-4).final


@pytest.mark.parametrize(("seconds", "more"), [(0.2601, 5), (0.2599, 4)])
def test_another_heat_of_the_final_is_held_where_it_fits(monkeypatch, seconds, more):
    monkeypatch.setattr(Race, "_decided", lambda self: False)
    race, heats = Race(names(2), Rules(seconds=seconds)), 0
    while race.heat is not None:
        assert take(race).rounds == 25
        heats += 1
    # Four heats of two take 208 ms, one more 52.
    assert heats == more


@pytest.mark.parametrize(("first", "most", "held"), [(1, 9, 1), (2, 3, 3), (2, 2, 2)])
def test_a_final_of_several_heats_goes_on_to_the_most_and_one_of_one_does_not(monkeypatch, first, most, held):
    monkeypatch.setattr(Race, "_decided", lambda self: False)
    race, seeds = Race(names(2), Rules(final_heats=first, most_heats=most), seed=5), []
    while race.heat is not None:
        seeds.append(take(race).seed)
    assert seeds == [5 + 999_983, 5 + 2 * 999_983, 5 + 2 * 999_983 + 1][:held]


@pytest.mark.parametrize(("ahead", "decided"), [(1e-6, True), (-1e-6, False)])
def test_a_final_is_decided_where_nobody_may_be_over_one_per_cent_faster(monkeypatch, ahead, decided):
    reach = 1.645 * math.hypot(0.01, 0.02)
    levels = {"a": 5.0, "b": 5.0 + reach - 0.01 + ahead, "c": 9.0}
    monkeypatch.setattr(racing, "final_levels", lambda heats, tick: (levels, {"a": 0.01, "b": 0.02, "c": 0.0}, 0.0))
    assert Race(names(2), Rules())._decided() is decided


def test_who_led_instead_of_the_anchor_is_what_the_anchor_is_linked_by():
    assert after_first_stage()._leads == {}
    race = Race(names(20), Rules())
    while race.stage == 1:
        take(race, c4=0.5)
    assert (race.anchor, list(race._leads)) == ("c4", [1])
    lead = race._leads[1]
    assert (lead.log, lead.anchor) == (pytest.approx(math.log(2)), "c4")


@pytest.mark.parametrize("count", range(9, 50))
def test_no_heat_is_larger_than_asked_for_and_each_has_the_anchor_once(count):
    race = Race(names(count), Rules(heat=8))
    heats = []
    while race.stage == 1 and not race.heat.final:
        heats.append(race.heat.names)
        take(race)
    assert max(map(len, heats)) <= 8
    assert {one[0] for one in heats} == {"c0"}
    assert sorted(name for one in heats for name in one[1:]) == sorted(names(count)[1:])


def test_every_stage_has_its_share_of_the_risk(monkeypatch):
    asked = []
    monkeypatch.setattr(racing, "slower", lambda placed, risk: asked.append(risk) or set())
    after_first_stage()
    assert asked == [0.05 / 4]


def test_what_was_simulated_of_the_risk_keeps_it_and_costs_no_power_at_the_usual_stages():
    path = Path(__file__).parents[2] / "benchmarks/results/race-risk-simulated.json"
    found = {
        (row["landscape"], row["risk"], row["stages"], row["shares"]): row
        for row in json.loads(path.read_text())["rows"]
    }
    assert all(row["best_dropped"] <= row["risk"] for row in found.values())
    for (landscape, risk, stages, shares), halves in found.items():
        if shares == "halves":
            equal = found[landscape, risk, stages, "equal"]
            assert halves["best_dropped"] <= equal["best_dropped"]
            assert stages < 4 or halves["mean_share"] <= 1.02 * equal["mean_share"]


@pytest.mark.parametrize(("stages", "count"), [(4, 60), (1, 40), (2, 200)])
def test_all_stages_together_spend_no_more_than_the_risk(monkeypatch, stages, count):
    asked = []
    monkeypatch.setattr(racing, "slower", lambda placed, risk: asked.append(risk) or set())
    race = Race(names(count), Rules(stages=stages, share=100.0, risk=0.08))
    while race.heat is not None:
        take(race)
    assert len(asked) > stages
    assert asked[: stages - 1] == [0.08 / stages] * (stages - 1)
    assert asked[stages - 1 :] == [0.08 / stages / 2 ** (1 + place) for place in range(len(asked) - stages + 1)]
    assert sum(asked) < 0.08


def test_rounds_double_from_stage_to_stage():
    race = after_first_stage(share=100.0)
    found = []
    while not race.heat.final:
        found.append((race.stage, race.heat.rounds, len(race.running)))
        take(race)
    # After the fourth, half of those that nothing distinguishes.
    assert list(dict.fromkeys(found)) == [(2, 10, 20), (3, 20, 20), (4, 40, 20), (5, 80, 10)]


@pytest.mark.parametrize(("count", "degrees"), [(2, 3), (3, 6)])
def test_the_loss_is_drawn_from_the_errors_of_the_levels(monkeypatch, count, degrees):
    levels = {name: 0.005 * place for place, name in enumerate(names(count))}
    errors = {name: 0.004 * (place + 1) for place, name in enumerate(levels)}
    monkeypatch.setattr(racing, "final_levels", lambda heats, tick: (levels, errors, 0.001))
    monkeypatch.setattr(Race, "_decided", lambda self: True)
    race = Race(names(count), Rules(), seed=4)
    while race.heat is not None:
        take(race)
    lots = np.random.default_rng(4)
    drawn = {name: levels[name] + errors[name] * lots.standard_t(degrees, 4000) for name in levels}
    losses = 1 - np.exp(np.min(list(drawn.values()), axis=0) - drawn["c0"])
    found = race.outcome()
    assert found.pick == "c0"
    assert found.regret == pytest.approx(losses.mean())
    assert found.most == pytest.approx(np.quantile(losses, 0.95))
    assert found.close == (losses <= 0.01).mean()
    assert found.exhaustive_s == pytest.approx(count * 101e-3)


def test_a_placing_is_drawn_towards_its_stage_as_far_as_it_is_noise():
    race = Race(names(2), Rules())
    one = Placing(0.05, 0.02, "c0", 1, 5, 1.0)
    weight = 0.03**2 / (0.03**2 + 0.02**2)
    log, error = race._believed(one, (0.01, 0.03**2))
    assert log == pytest.approx(0.01 + weight * 0.04)
    assert error == pytest.approx(math.sqrt(weight) * 0.02)
    assert race._believed(one, None) == (0.05, 0.02)
    still = Placing(0.05, 0.0, "c0", 1, 5, 1.0)
    assert race._believed(still, (0.01, 0.03**2)) == (0.05, 0.0)
    race._leads[1] = one
    assert race._believed(one, (0.01, 0.03**2)) == (0.05, 0.02), "of an anchor, who led instead: no member of the stage"


def test_one_whose_anchor_is_gone_is_linked_by_the_bare_times():
    race = Race(names(2), Rules())
    race.final = {"c0": {0: 2.0, 1: 2.2}, "c1": {0: 1.5, 1: 1.7}}
    race._placings = {"x": Placing(0.1, 0.01, "gone", 3, 5, 4.8)}
    assert race._link("x", {"c0", "c1"}) == Placing(pytest.approx(math.log(3.0)), math.inf, "c1", 3, 5, 4.8)
    assert race._link("x", {"gone"}) == race._placings["x"]


def test_who_left_before_the_final_stands_by_its_link_to_the_pick():
    race = Race(names(2), Rules())
    race._placings, race._ended, race._pick_ms = {"x": Placing(0.1, 0.01, "c0", 3, 7, 4.8)}, {"x": "dropped"}, 2.0
    found = race._out_before("x", 0.2, 0.03)
    assert (found.ratio, found.median_ms) == pytest.approx((math.exp(0.2), 2.0 * math.exp(0.2)))
    assert (found.ci_low, found.ci_high) == pytest.approx(
        (math.exp(0.2 - 1.959964 * 0.03), math.exp(0.2 + 1.959964 * 0.03))
    )
    assert (found.rounds, found.stage, found.ended) == (7, 3, "dropped")
    unknown = race._out_before("x", 0.2, math.inf)
    assert (unknown.ratio, unknown.ci_low, unknown.ci_high) == (pytest.approx(math.exp(0.2)), None, None)


def test_a_finalist_stands_by_its_rounds_beside_the_pick():
    race = Race(names(3), Rules())
    pick = {index: 1.0 + 0.1 * index for index in range(9)}
    race.final = {"c0": pick, "c1": {index: 1.02 * ms for index, ms in pick.items()}, "c2": {99: 2.1}}
    first, second, third = (race._in_final(name, "c0") for name in names(3))
    assert (first.ended, first.ratio, first.ci_low, first.median_ms) == ("picked", 1.0, None, pytest.approx(1.4))
    assert (second.ended, second.ratio, second.ci_low) == ("final", pytest.approx(1.02), pytest.approx(1.02))
    assert (second.median_ms, second.rounds) == (pytest.approx(1.02 * 1.4), 9)
    assert (third.ended, third.ratio, third.ci_low) == ("final", pytest.approx(1.5), None)
