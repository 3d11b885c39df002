"""The benchmark of sweeps in small: on two simulated H200 with real workers, and what its files say of the bars."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from small_runs import FAKES, small_run

from attnbench.machine.device import Device
from attnbench.sweep.executor import DeviceExecutor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import scale
import scale_tables

FILE = str(FAKES / "on_card.py")
LOAD = "import sys\nprint('busy', flush=True)\nsys.stdin.read()\nprint(7)\n"
CARDS = (Device("cuda", 0), Device("cuda", 1))


@pytest.fixture
def cards(nvml, monkeypatch):
    monkeypatch.syspath_prepend(str(FAKES / "simulated_h200"))
    monkeypatch.setenv("ATTNBENCH_TIMERS", str(FAKES / "simulated_timers.py"))
    return nvml.card()["uuid"], nvml.add("NVIDIA H200", 2)


def on_cards(folder, **changed):
    plan = small_run(
        *[["reference", "twice-as-fast"]] * 3, device="cuda:0", baseline="reference", warmup=0, iterations=5
    )
    return scale.Bench(folder, plan, CARDS, **({"files": (FILE,)} | changed))


def test_a_sweep_on_one_pretended_gpu_and_on_two_by_either_engine(cards, tmp_path):
    events = []

    def like_ray(closing):
        closing.callback(events.append, "disconnected")
        events.append("connected")
        return [DeviceExecutor(device, (FILE,)) for device in CARDS]

    on_cards(tmp_path, ray=like_ray).measure("sweep", 1)
    told = json.loads((tmp_path / "scaled.json").read_text())
    assert [(run["engine"], run["gpus"]) for run in told["runs"]] == [
        ("local", 1),
        ("local", 2),
        ("ray", 2),
        ("local", 1),
    ]
    assert events == ["connected", "disconnected"] * 2, "the warm-up that is not kept, then the run"
    for run in told["runs"]:
        assert run["wall_s"] > run["steady_s"] >= 0
        assert list(run["steps_s"]) == ["executors", "open", *(f"group {1 + number}" for number in range(run["gpus"]))]
        assert list(run["steps_s"].values()) == sorted(run["steps_s"].values())
        assert run["steps_s"]["group 1"] == pytest.approx(run["first_s"], abs=0.01)
        assert {row[2] for row in run["rows"]} <= set(cards[: run["gpus"]])
        assert sorted(row[5] for row in run["rows"] if row[5]) == pytest.approx([2.0] * 3, rel=1e-3)
    assert {one["gpu_uuid"] for one in told["environments"]} == set(cards)
    figures = {what: (measured, wanted) for what, measured, wanted in scale_tables.rows([tmp_path / "scaled.json"])}
    measured, wanted = figures["sweep of 3 groups through Ray, start of workers included"]
    assert "; one GPU twice: " in measured
    assert wanted == "at least 1.8x: not decided", "three groups are no forty, whatever they took"


def test_each_group_by_both_engines_in_turn(cards, tmp_path):
    class Elsewhere(DeviceExecutor):
        def measure(self, group, settings, on_progress):
            time.sleep(0.3)
            return super().measure(group, settings, on_progress)

    on_cards(tmp_path, ray=lambda closing: [Elsewhere(CARDS[0], (FILE,))], warm=True).measure("turns", 1)
    *starts, run = json.loads((tmp_path / "scaled.json").read_text())["runs"]
    assert [(each["engine"], each["groups"], each["turns"]) for each in starts] == [
        (engine, 1, []) for engine in ("local", "ray", "ray", "local")
    ]
    assert all(each["wall_s"] > each["first_s"] > 0 for each in starts)
    assert len(run["turns"]) == run["groups"] == 3
    _, *later = run["turns"]
    assert all(through > local + 0.15 for _, local, through in later)
    assert sorted(row[5] for row in run["rows"] if row[5]) == pytest.approx([2.0] * 3, rel=1e-3)
    figures = [what for what, _, _ in scale_tables.rows([tmp_path / "scaled.json"])]
    assert figures[0] == "2 groups on one GPU through Ray, each in turn with the local engine"


def test_ratios_beside_a_load_that_began_before_and_was_there_at_the_end(cards, tmp_path):
    bench = on_cards(tmp_path, burn=LOAD)
    bench.measure("neighbour", 1)
    told = json.loads((tmp_path / "scaled.json").read_text())
    assert [run["beside"] for run in told["runs"]] == [False, True, True, False]
    assert [run["neighbour"] and run["neighbour"]["batches"] for run in told["runs"]] == [None, 7, 7, None]
    assert {row[2] for run in told["runs"] for row in run["rows"]} == {cards[0]}
    first = scale_tables.rows([tmp_path / "scaled.json"])[0]
    assert first[2] == "at most 0.5 %: reached", "simulated times are equal"
    text = (tmp_path / "scaled.json").read_text()
    assert scale_tables.text(told) == text


@pytest.mark.parametrize(
    ("burn", "message"),
    [
        ("raise SystemExit(3)", "did not begin: it ended with 3"),
        ("print('busy', flush=True)", "ended with 0 before the run did"),
    ],
)
def test_a_load_that_ends_early_is_an_error(burn, message):
    with pytest.raises(RuntimeError, match=message), scale.neighbour(burn) as told:
        assert told == {}


def test_each_part_and_all_rounds_have_a_time_that_fits_a_command(tmp_path, capsys):
    scale.main([str(tmp_path), "sweep", "ray", "neighbour", "--address", "h:1", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "sweep, round 1",
        "ray, round 1",
        "ray, round 2",
        "neighbour, round 1",
        "neighbour, round 2",
        "neighbour, round 3",
        "together",
    ]
    minutes = [float(line.split()[-2]) for line in lines]
    assert max(minutes[:-1]) < 9, "one command has ten minutes"
    assert sum(minutes[:-1]) == pytest.approx(minutes[-1], abs=0.3)
    assert not (tmp_path / "scaled.json").exists()
    scale.main([str(tmp_path), "neighbour", "--rounds", "3,4", "--dry-run"])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "neighbour, round 3",
        "neighbour, round 4",
        "together",
    ]


@pytest.mark.parametrize("rounds", ["x", "0", "1,", "-1"])
def test_rounds_that_are_none_are_refused(rounds, tmp_path, capsys):
    with pytest.raises(SystemExit):
        scale.main([str(tmp_path), "sweep", f"--rounds={rounds}", "--dry-run"])
    assert f"--rounds: {rounds} is no list of rounds; numbers from 1 on, such as 1,2" in capsys.readouterr().err


# ── what the files say ─────────────────────────────────────────────────────────────────────────────


def told(part, *runs, groups=40):
    """A file: of each run its round, what distinguishes it, seconds, and the ratios of its groups."""
    made = []
    for round_, changed, wall, ratios in runs:
        rows = [[f"g{number}", "own", "gpu", "passed", 1.0, ratio] for number, ratio in enumerate(ratios)]
        rows += [[f"g{number}", "base", "gpu", "passed", 1.0, None] for number, _ in enumerate(ratios)]
        base = {"part": part, "round": round_, "engine": "local", "gpus": 1, "beside": False, "groups": groups}
        made.append(
            {**base, "wall_s": wall, "steady_s": wall - 5, "neighbour": None, "spread": [], "rows": rows, **changed}
        )
    return made


def shown(tmp_path, runs):
    path = tmp_path / "scaled.json"
    path.write_text(scale_tables.text({"environments": [], "runs": runs}))
    return {what: (measured, wanted) for what, measured, wanted in scale_tables.rows([path])}


ABBA = (False, True, True, False)


@pytest.mark.parametrize(
    ("walls", "groups", "verdict"),
    [
        ((100.0, 101.0, 101.2, 100.1), 40, "reached"),
        ((100.0, 106.0, 106.2, 100.1), 40, "**missed**"),
        ((100.0, 101.0, 106.0, 100.0), 40, "not decided"),
        ((100.0, 101.0, 101.2, 100.1), 12, "not decided"),
    ],
)
def test_ray_is_held_to_its_bar_by_an_interval_over_pairs_of_runs(tmp_path, walls, groups, verdict):
    runs = [
        (round_, {"engine": "ray" if ray else "local"}, wall * (1 + 0.0001 * round_ * ray), [2.0])
        for round_ in (1, 2)
        for ray, wall in zip(ABBA, walls, strict=True)
    ]
    measured, wanted = shown(tmp_path, told("ray", *runs, groups=groups))[
        f"{groups} groups on one GPU through Ray, against the local engine"
    ]
    assert wanted == f"at most 3 % over 40 groups: {verdict}"
    assert measured.endswith("local twice: " + ", ".join([f"{walls[3] - walls[0]:+.1f} %"] * 2))


@pytest.mark.parametrize(
    ("through", "start", "verdict"),
    [(3.02, 10.0, "reached"), (3.12, 10.0, "**missed**"), (3.02, 16.0, "**missed**"), (3.07, 10.0, "not decided")],
)
def test_ray_is_held_to_its_bar_by_groups_in_turn(tmp_path, through, start, verdict):
    starts = [
        (1, {"engine": engine, "groups": 1, "first_s": first, "turns": []}, 12.0, [])
        for engine, first in (("local", 9.0), ("ray", start), ("ray", start + 0.1), ("local", 9.1))
    ]
    noise = (0.02, -0.02, 0.01, -0.01) * 5
    in_turn = [["first", 8.0, 20.0]] + [[f"g{number}", 3.0, through + each] for number, each in enumerate(noise)]
    runs = told("turns", *starts, (1, {"engine": "both", "groups": 21, "turns": in_turn}, 130.0, []))
    figures = shown(tmp_path, runs)
    assert figures["20 groups on one GPU through Ray, each in turn with the local engine"][0].endswith("of 3.00 s")
    measured, wanted = figures["so a sweep of 40 such groups through Ray, against the local engine"]
    assert wanted == f"at most 3 %: {verdict}", measured


def test_a_neighbour_is_held_to_its_bar_in_each_group(tmp_path):
    def ratios(busy, round_):
        wobble = 0.0002 * (round_ - 2)
        return [2.0 * (1 + wobble * busy), 1.5 * (1 + (0.01 + wobble) * busy), 1.2 * (1 + 40 * wobble * (1 - busy))]

    runs = [(round_, {"beside": busy}, 30.0, ratios(busy, round_)) for round_ in (1, 2, 3) for busy in ABBA]
    found = shown(tmp_path, told("neighbour", *runs, groups=10))
    measured, wanted = found["ratios of 3 groups beside a busy neighbour GPU against those alone, 6 pairs of runs"]
    assert wanted == "at most 0.5 %: 1 reached, 1 **missed**, 1 not decided"
    assert measured.startswith("furthest +1.00 % (+0.98 to +1.02); ")
    assert "their mean over the groups" in found
    assert found["ratios alone against alone, within a round"][0].endswith("of 9")


@pytest.mark.parametrize(("two", "verdict"), [(66.0, "reached"), (72.2, "**missed**"), (71.4, "not decided")])
def test_a_sweep_on_two_gpus_is_held_to_its_bar_by_every_pair_of_runs(tmp_path, two, verdict):
    runs = [(1, {}, 128.0, [2.0]), (1, {"gpus": 2, "engine": "ray"}, two, [2.0]), (1, {}, 129.0, [2.0])]
    measured, wanted = shown(tmp_path, told("sweep", *runs))[
        "sweep of 40 groups through Ray, start of workers included"
    ]
    assert wanted == f"at least 1.8x: {verdict}"
    assert measured.startswith(f"128.0 s and 129.0 s on one GPU, {two:.1f} s on two: **")
    assert measured.endswith("one GPU twice: 0.8 % apart")


def test_rounds_of_several_files_add_up(tmp_path):
    runs = told("ray", *[(1, {"engine": "ray" if ray else "local"}, 100.0 + ray, [2.0]) for ray in ABBA])
    second = [dict(run, round=2) for run in runs]
    for name, of in (("a", runs), ("b", second)):
        (tmp_path / name).write_text(scale_tables.text({"environments": [], "runs": of}))
    both = scale_tables.rows([tmp_path / "a", tmp_path / "b"])
    assert both[0][1].startswith("+1.00 % (+1.00 to +1.00); local twice: +0.0 %, +0.0 %")
