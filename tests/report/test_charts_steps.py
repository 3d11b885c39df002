"""Charts of whole models: the parts of a step, predicted and measured steps, latents by step."""

from __future__ import annotations

import itertools
import json

import pytest

from attnbench.report.charts import figures
from attnbench.report.charts.base.stacks import colours_of
from attnbench.report.charts.base.style import COLOURS, PLAIN
from made_up_run import make_maps, make_run, make_served, make_steps


@pytest.fixture(scope="module")
def drawn():
    return {one.kind: one for one in figures([make_steps()])}


def test_other_runs_have_none_of_them():
    assert not {"step", "predicted", "latents", "serving"} & {one.kind for one in figures([make_run()])}


def test_the_parts_of_a_step_follow_from_its_phases_or_from_a_capture(drawn):
    rows = drawn["step"].spec["datasets"]["rows"]
    found = {}
    for one in rows:
        found.setdefault(one["b"], {})[one["p"]] = pytest.approx(one["e"] - one["s"])
    assert found == {
        # 80 ms: 34 of attention of which 4 prepare, 3 of copies, 2 idle.
        "quick": {"attention": 30.0, "attention preparation": 7.0, "the rest": 41.0, "idle": 2.0},
        "captured": {"attention": 48.0, "matmul": 30.0, "other": 1.0, "idle": 2.0},
        "base": {"attention": 60.0, "the rest": 38.0, "idle": 2.0},
    }
    for name in found:
        parts = [one for one in rows if one["b"] == name]
        assert parts[0]["s"] == 0
        assert all(one["e"] == after["s"] for one, after in itertools.pairwise(parts))
    ends = {one["b"]: one["t"] for one in drawn["step"].spec["datasets"]["ends"]}
    assert ends == {"quick": "80.0 ms", "captured": "81.0 ms", "base": "100 ms"}


def test_parts_have_colours_of_their_own_and_what_is_nothing_is_grey():
    found = colours_of(("attention", "matmul", "other", "the rest", "idle"))
    assert found[:2] == [COLOURS[0], COLOURS[1]]
    assert (found[3], len(set(found))) == (PLAIN, 5)
    for grey in found[2:]:
        red, green, blue = (int(grey[place : place + 2], 16) for place in (1, 3, 5))
        assert max(red, green, blue) - min(red, green, blue) < 24


def test_a_predicted_step_stands_beside_the_measured_one(drawn):
    rows = {one["b"]: one for one in drawn["predicted"].spec["datasets"]["rows"]}
    assert next(iter(rows)) == "base"
    assert "p" not in rows["base"]
    # 100 - 4 x 14 + 4 x 8, and with 4 x 12.
    assert (rows["quick"]["m"], rows["quick"]["p"]) == (80, 76)
    assert (rows["captured"]["m"], rows["captured"]["p"]) == (90, 92)
    assert rows["quick"]["t"] == "80.0 ms, +5.3 %"
    assert "plain" not in rows


def test_distances_are_drawn_by_step_and_equal_latents_are_said(drawn):
    figure = drawn["latents"]
    assert [(one["b"], one["x"], one["m"]) for one in figure.spec["datasets"]["rows"]] == [
        ("quick", 1, 1e-3),
        ("quick", 2, 2e-3),
        ("quick", 10, 1e-2),
    ]
    assert figure.alt.endswith("after the last one quick 1.0e-02, captured equal.")


def test_ranking_steps_are_drawn_over_each_quantity_that_varies():
    found = {one.stem: one for one in figures([make_served()]) if one.kind == "serving"}
    assert set(found) == {
        "cached_plots/time_ms_cached_batch1",
        "cached_plots/time_ms_cached_batch8",
        "batch_plots/time_ms_batch_cached0",
        "batch_plots/time_ms_batch_cached1024",
        "batch_plots/time_ms_batch_cached4096",
    }
    one = found["cached_plots/time_ms_cached_batch8"]
    assert one.title == "Time over cached tokens of a user: batch 8"
    assert one.alt == (
        "Time of 2 backends over cached tokens of a user; best serving-paged at 0 (1.6 ms), "
        "serving-paged at 1024 (2.42 ms), serving-paged at 4096 (4.88 ms), batch 8."
    )
    assert found["batch_plots/time_ms_batch_cached0"].title == "Time over users of a step: cached 0"


def test_maps_are_drawn_over_their_densities_which_are_read_at_the_axis():
    [one] = [one for one in figures([make_maps()]) if one.kind == "density"]
    assert one.stem == "density_plots/time_ms_density_seq4096_causal_false"
    [axis] = {json.dumps(layer["encoding"]["x"]["axis"]) for layer in one.spec["layer"] if "x" in layer["encoding"]
              and "axis" in layer["encoding"]["x"]}  # fmt: skip
    assert json.loads(axis) == {"grid": False, "format": ".6~g", "values": [0.1, 0.25, 1.0]}
    assert "flash-sparse at 0.25 (1.3 ms)" in one.alt


def test_two_densities_are_lines_of_a_sweep_over_length_alone():
    assert not [one for one in figures([make_maps((0.7, 1.0))]) if one.kind == "density"]
