"""Every chart of a page: it is Vega-Lite, shows what was measured, and omits what was not."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import pytest

from attnbench.presentation.block import backend_name
from attnbench.record import Memory, Status
from attnbench.report.charts import chart_names, figures
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.style import COLOURS, Style, Styles, luminance
from attnbench.report.charts.time import MOST_SAMPLES, drawn_samples
from attnbench.store.runfile import read
from made_up_run import (
    TFLOPS,
    case_id,
    make_case,
    make_group,
    make_lost,
    make_maps,
    make_record,
    make_run,
    make_served,
    make_steps,
    make_time,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
HOSTILE = ("<script>alert(1)</script>", '"quotes" & \\back\n', "x" * 120, "注意力-🚀", "</script><img src=x>", "b'];}{")
OF_A_CASE = ("time", "speedup", "error", "memory", "roofline")
OF_STEPS = ("step", "predicted", "latents")


def sweep(backends=TFLOPS, lengths=(512, 1000, 4096), **changed):
    """Two head sizes, causal and not, over three lengths, with as many tokens at each."""
    return [
        record
        for length in lengths
        for headdim in (64, 128)
        for causal in (False, True)
        for record in make_group(
            make_case(
                seqlen=length, seqlen_k=length, headdim=headdim, headdim_v=headdim, causal=causal, batch=65536 // length
            ),
            backends,
            **changed,
        )
    ]


@pytest.fixture(scope="module")
def drawn():
    """Figures of two real runs and of one with hostile names."""
    made_up = make_run(sweep(dict(zip(HOSTILE, (300.0, 320.0, 310.0, 500.0, 480.0, 100.0), strict=True))))
    runs = [
        read(RESULTS / "quick-h200.json"),
        read(RESULTS / "quick-cpu.json"),
        make_run(),
        made_up,
        make_steps(),
        make_served(),
        make_maps(),
    ]
    names = ("h200", "cpu", "one", "hostile", "steps", "served", "maps")
    return {name: (run, figures([run])) for name, run in zip(names, runs, strict=True)}


def of(found, kind, **where):
    return [
        one for one in found if one.kind == kind and all(getattr(one, name) == value for name, value in where.items())
    ]


def form(figure):
    """What a page writes once for all figures that share it."""
    return json.dumps({name: part for name, part in figure.spec.items() if name not in ("datasets", "height")})


def test_every_form_is_vega_lite_and_stands_alone(drawn):
    import altair as alt

    forms = {form(figure): figure for _, found in drawn.values() for figure in found}
    assert {figure.kind for figure in forms.values()} == set(chart_names())
    for text, figure in forms.items():
        alt.Chart.from_dict(figure.spec)  # raises where Vega-Lite's schema does not take it
        assert not re.search(r"https?:|\$schema|\"config\"|\"url\"", text)
        used = set(re.findall(r'"data": \{"name": "(\w+)"\}', text))
        assert used == set(figure.spec["datasets"])
        assert figure.spec["width"] == "container"
        assert isinstance(figure.spec["height"], int | float)


def test_figures_are_plain_data_under_safe_names(drawn):
    for run, found in drawn.values():
        assert found
        assert len({one.stem.casefold() for one in found}) == len(found)
        for figure in found:
            assert re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", figure.stem)
            assert ".." not in figure.stem.split("/")
            assert figure.run == run.id
            assert figure.title
            assert figure.alt.endswith(".")
            text = json.dumps(figure.spec, allow_nan=False)
            assert json.loads(text) == figure.spec
            assert (figure.case_id is not None) == (figure.kind in OF_A_CASE + OF_STEPS and figure.folder != "")


def test_an_axis_never_falls_back_to_zero_on_a_logarithm(drawn):
    """Vega-Lite warns on the console of whoever opens the page."""
    for _, found in drawn.values():
        for figure in found:
            assert '"type": "log", "zero"' not in form(figure)
            assert '"zero": false, "type": "log"' not in form(figure)


def test_hostile_names_are_data(drawn):
    _, found = drawn["hostile"]
    for figure in found:
        assert not any(name in form(figure) for name in HOSTILE)
    rows = of(found, "time")[0].spec["datasets"]["rows"]
    assert {one["b"] for one in rows} == set(HOSTILE)


def test_figures_come_by_the_run_then_case_by_case(drawn):
    run, found = drawn["h200"]
    cases = [one.case_id for one in found]
    first = cases.index(next(case for case in cases if case))
    assert not any(cases[:first])
    assert list(dict.fromkeys(cases[first:])) == list(dict.fromkeys(record.case_id for record in run.records))
    assert [one.kind for one in found if one.case_id == run.records[0].case_id] == list(OF_A_CASE)


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_times_are_those_of_the_records(drawn, name):
    run, found = drawn[name]
    for figure in of(found, "time"):
        records = {record.backend: record for record in run.records if record.case_id == figure.case_id and record.time}
        rows = figure.spec["datasets"]["rows"]
        assert [one["b"] for one in rows] == sorted(records, key=lambda who: records[who].time.median_ms)
        scale = 1e3 if "µs" in rows[0]["t"] else 1.0
        for one in rows:
            time = records[one["b"]].time
            assert one["m"] == pytest.approx(time.median_ms * scale, rel=1e-4)
            assert (one["l"], one["h"]) == pytest.approx((time.ci_low_ms * scale, time.ci_high_ms * scale), rel=1e-4)
            assert one["s"][0] == pytest.approx(min(time.samples_ms) * scale, rel=1e-4)
            if "o" in one:
                assert one["s"][-1] < max(time.samples_ms) * scale
            else:
                assert one["s"][-1] == pytest.approx(max(time.samples_ms) * scale, rel=1e-4)


def test_many_samples_are_drawn_at_even_ranks():
    samples = [float((7 * place) % 1009) for place in range(1009)]
    found = drawn_samples(samples)
    assert len(found) == MOST_SAMPLES
    assert (found[0], found[-1]) == (0.0, 1008.0)
    steps = {second - first for first, second in itertools.pairwise(found)}
    assert steps <= {25.0, 26.0}
    assert drawn_samples([3.0, 1.0, 2.0]) == [1.0, 2.0, 3.0]
    assert drawn_samples([]) == []


def test_speedups_are_those_of_the_records(drawn):
    run, found = drawn["h200"]
    for figure in of(found, "speedup"):
        known = {
            record.backend: record.speedup
            for record in run.records
            if record.case_id == figure.case_id and record.speedup and record.speedup.baseline != record.backend
        }
        rows = figure.spec["datasets"]["rows"]
        assert {one["b"]: one["v"] for one in rows} == {name: one.verdict for name, one in known.items()}
        for one in rows:
            assert one["m"] == pytest.approx(known[one["b"]].ratio, rel=1e-4)
            assert one["l"] == pytest.approx(known[one["b"]].ci_low, rel=1e-4)


def test_errors_are_the_worst_output_over_its_budget(drawn):
    run, found = drawn["h200"]
    for figure in of(found, "error"):
        worst = {
            record.backend: max(100 * error.max_abs / error.budget for error in record.errors.values())
            for record in run.records
            if record.case_id == figure.case_id and record.errors
        }
        rows = figure.spec["datasets"]["rows"]
        assert {one["b"]: one["e"] for one in rows} == pytest.approx(worst, rel=1e-2)


def test_what_is_missing_is_left_out():
    case = make_case()
    group = make_group(case)
    bare = dataclasses.replace(
        group[1], memory=None, errors={}, speedup=None, rate=None, ceilings={}, time=make_time([1.0, 1.1, 1.2])
    )
    found = figures([make_run([*group[:1], bare, *group[2:], make_lost(case, "gone", Status.OOM, "no room")])])
    rows = {figure.kind: {one["b"]: one for one in figure.spec["datasets"]["rows"]} for figure in found}
    assert set(rows) == set(OF_A_CASE)
    name = bare.backend
    assert name in rows["time"]
    assert not {"l", "h"} & set(rows["time"][name])
    assert not any(name in rows[kind] for kind in ("speedup", "error", "memory", "roofline"))
    assert not any("gone" in one for one in rows.values())
    assert all(one["m"] > 0 for of_kind in rows.values() for one in of_kind.values())


def test_a_peak_that_is_half_known_is_no_peak():
    record = dataclasses.replace(make_record(make_case(), "flex"), memory=Memory(peak_reserved_mb=300.0))
    assert not of(figures([make_run([record])]), "memory")


def test_a_chart_that_would_show_nothing_is_left_out():
    alone = dataclasses.replace(make_record(make_case(), "flex"), ceilings={}, rate=None)
    assert [figure.kind for figure in figures([make_run([alone])])] == ["time", "memory"]
    lost = make_run([make_lost(make_case(), "eager", Status.SKIPPED, "eager: not here")])
    assert figures([lost]) == []
    assert figures([make_run([])]) == []
    assert figures([]) == []


def test_lengths_have_the_older_scripts_names_and_their_own_lines(drawn):
    found = of(figures([make_run([record for record in sweep() if record.case["headdim"] == 64])]), "length")
    assert [one.stem for one in found] == [
        f"seq_len_plots/{what}_causal_{causal}" for causal in ("false", "true") for what in ("time_ms", "tflops")
    ]
    run, several = drawn["hostile"]
    assert {one.stem for one in of(several, "length")} == {
        f"seq_len_plots/{what}_causal_{causal}_headdim{size}"
        for what in ("time_ms", "tflops")
        for causal in ("false", "true")
        for size in (64, 128)
    }
    figure = next(one for one in of(several, "length") if one.name == "time_ms_causal_true_headdim128")
    known = {
        (record.backend, record.case["seqlen"]): record.time.median_ms
        for record in run.records
        if record.case["causal"] and record.case["headdim"] == 128
    }
    rows = figure.spec["datasets"]["rows"]
    assert {(one["b"], one["x"]): one["m"] for one in rows} == pytest.approx(known, rel=1e-4)
    assert '"values": [512, 1000, 4096]' in form(figure)
    assert "(batch 128, 65, 16)" in form(figure)  # as many tokens at each length


@pytest.mark.parametrize("axis", ["seqlen", "headdim", "window"])
def test_an_axis_may_hold_lists(axis):
    """A run file may: a window has two numbers.  Each list is one place, whichever run of a comparison has it."""
    records = [
        dataclasses.replace(record, case={**record.case, axis: value})
        for batch, value in enumerate(([128, 0], [128, 64], 512, None), 1)
        for record in make_group(make_case(batch=batch))
    ]
    run = make_run(records)
    assert figures([run, dataclasses.replace(run, id="0badcafe")])
    if axis == "seqlen":
        places = {row["x"] for one in of(figures([run]), "length") for row in one.spec["datasets"]["rows"]}
        assert places == {"128, 0", "128, 64", "512"}


def test_a_line_ends_where_its_backend_does():
    records = [record for record in sweep() if record.case["headdim"] == 64 and not record.case["causal"]]
    short = [record for record in records if record.backend != "flex" or record.case["seqlen"] < 4096]
    figure = of(figures([make_run(short)]), "length")[0]
    ends = {one["b"]: one["x"] for one in figure.spec["datasets"]["ends"]}
    assert ends == {name: 1000 if name == "flex" else 4096 for name in TFLOPS}
    [to_names] = [layer["mark"] for layer in figure.spec["layer"]
                  if layer["mark"]["type"] == "rule" and layer["data"]["name"] == "ends"]  # fmt: skip
    assert to_names["strokeDash"] == [1, 3], "dotted: it is no data"


def test_omitted_blocks_have_folders_of_their_own():
    records = [
        dataclasses.replace(
            record,
            case={**record.case, "density": share},
            case_id=f"{record.case_id}-{share}",
            group=f"{record.group}-{share}",
        )
        for share in (1.0, 0.7)
        for record in sweep()
        if record.case["headdim"] == 64
    ]
    found = of(figures([make_run(records)]), "length")
    assert {f"{one.folder}/{one.name}" for one in found} == {
        f"seq_len_plots{end}/{what}_causal_{causal}"
        for end in ("", "_30")
        for what in ("time_ms", "tflops")
        for causal in ("false", "true")
    }


def test_the_winner_is_named_only_where_it_has_won():
    backends = {"first": 600.0, "second": 400.0, "third": 200.0}
    clear = make_group(make_case(seqlen=512, seqlen_k=512), backends)
    even = make_group(
        make_case(seqlen=4096, seqlen_k=4096), {"first": 600.0, "second": 600.0, "third": 200.0}, noise=0.05
    )
    (figure,) = of(figures([make_run([*clear, *even])]), "winner")
    won, tied = figure.spec["datasets"]["cells"]
    ratio = clear[1].time.median_ms / clear[0].time.median_ms
    assert (won["x"], won["b"], won["l"]) == ("512", "first", f"{ratio:.2f}x")
    assert won["c"] in COLOURS
    assert (tied["x"], tied["b"]) == ("4096", "no clear winner")
    assert set(tied["l"].split(" / ")) == {"first", "second"}
    assert "c" not in tied
    assert figure.alt == "Fastest backend of each of 2 shapes: first wins 1, 1 without a clear winner."


def test_real_winners_agree_with_the_tables(drawn):
    from attnbench.presentation.blocks import arrange

    run, found = drawn["h200"]
    (figure,) = of(found, "winner")
    unclear = sum(note.startswith("no clear winner") for block in arrange(run).blocks for note in block.notes)
    cells = figure.spec["datasets"]["cells"]
    assert len(cells) == 12
    assert sum("c" not in one for one in cells) == unclear > 0


def test_a_backend_has_one_ink_on_a_page(drawn):
    run, found = drawn["h200"]
    seen = {}
    for figure in found:
        for one in figure.spec["datasets"].get("rows", []):
            seen.setdefault(one["b"], set()).add(one["c"])
    assert set(seen) == {backend_name(record) for record in run.records if record.time}
    assert all(len(colours) == 1 for colours in seen.values())


def test_inks_of_fifty_six_backends_differ():
    styles = Styles([])
    assert len({(styles.of(str(place)).colour, styles.of(str(place)).shape) for place in range(56)}) == 56


def contrast(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", COLOURS)
def test_colours_are_seen_on_light_and_dark(colour):
    """WCAG 2.2, 1.4.11: 3:1 for what must be seen; 1.4.3: 4.5:1 for the letters on it."""
    assert contrast(colour, "#ffffff") >= 3.0
    assert contrast(colour, "#0d1117") >= 3.0
    assert contrast(colour, Style(colour, "circle", (1, 0)).text_on_it) >= 4.5


# Linear RGB as seen without one kind of cone, severity 1 (Machado, Oliveira, Fernandes 2009).
BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def lab(colour, matrix):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    red, green, blue = (min(1.0, max(0.0, sum(a * b for a, b in zip(line, linear, strict=True)))) for line in matrix)
    x, y, z = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    fx, fy, fz = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_are_told_apart(kind):
    """ΔE of 10 is plain side by side; the sign of a backend tells it, too."""
    seen = [lab(colour, BLINDNESS[kind]) for colour in COLOURS]
    assert min(math.dist(one, other) for place, one in enumerate(seen) for other in seen[:place]) > 10


def test_several_runs_share_styles():
    first = make_run(make_group(make_case(), {"a": 300.0, "b": 200.0}), id="aaaa1111")
    second = make_run(make_group(make_case(), {"c": 300.0, "b": 200.0}), id="bbbb2222")
    found = figures([first, second])
    assert {(one.folder.split("/")[0], one.run) for one in found} == {
        ("aaaa1111", "aaaa1111"),
        ("bbbb2222", "bbbb2222"),
        ("A-and-B", None),
    }
    colours = [{row["b"]: row["c"] for row in one.spec["datasets"]["rows"]} for one in of(found, "time")]
    assert [set(one) for one in colours] == [{"a", "b"}, {"c", "b"}]
    assert colours[0]["b"] == colours[1]["b"]
    assert len({*colours[0].values(), *colours[1].values()}) == 3
    same = figures([first, first])
    assert len({one.stem for one in same}) == len(same)


def test_processes_are_combined_and_ways_of_measuring_kept_apart():
    case = make_case()
    name = case_id(case)
    records = [
        make_record(
            case,
            backend,
            tflops=tflops + 10 * place,
            replicate=place,
            samples=8,
            group=f"{name}#{place}" if place else name,
        )
        for place in range(3)
        for backend, tflops in {"a": 300.0, "b": 500.0}.items()
    ]
    (figure,) = of(figures([make_run(records)]), "time")
    rows = figure.spec["datasets"]["rows"]
    assert [one["b"] for one in rows] == ["b", "a"]
    medians = sorted(record.time.median_ms for record in records if record.backend == "b")
    assert rows[0]["m"] == pytest.approx(medians[1] * 1e3 if "µs" in rows[0]["t"] else medians[1], rel=1e-4)
    assert len(rows[0]["s"]) == 24
    assert "l" not in rows[0]  # an interval of samples says nothing of processes

    warm = dataclasses.replace(records[0], backend="c", time=make_time([1.0] * 8, l2="warm"))
    two = of(figures([make_run([*records[:2], warm])]), "time")
    assert [one.folder for one in two] == [name, f"{name}-2"]
    assert [{row["b"] for row in one.spec["datasets"]["rows"]} for one in two] == [{"a", "b"}, {"c"}]
    assert len(RunData(make_run([*records[:2], warm])).by_conditions()) == 2


def test_two_thousand_records_stay_small():
    """400 cases: the forms are few, and all of the data leave the page room for its tables."""
    records = [
        record
        for length in range(512, 512 + 100)
        for headdim in (64, 128)
        for causal in (False, True)
        for record in make_group(
            make_case(seqlen=length, seqlen_k=length, headdim=headdim, headdim_v=headdim, causal=causal), samples=100
        )
    ]
    found = figures([make_run(records)])
    assert len(records) == 2000
    assert len(of(found, "time")) == 400
    assert len({form(figure) for figure in found}) < 20
    data = sum(len(json.dumps(figure.spec["datasets"], separators=(",", ":"))) for figure in found)
    words = sum(len(figure.alt) + len(figure.title) for figure in found)
    assert data < 3.0e6
    assert words < 1.0e6


def test_a_wide_map_names_its_colours_below():
    backends = {"first": 600.0, "second": 300.0}
    groups = [
        make_group(make_case(seqlen=512 * place, seqlen_k=512 * place), backends, samples=10) for place in range(1, 7)
    ]
    narrow, wide = (of(figures([make_run([*itertools.chain(*groups[:count])])]), "winner")[0] for count in (5, 6))
    assert '"legend": {' not in form(narrow)
    assert '"legend": {' in form(wide)
    assert f'"domain": ["first"], "range": ["{COLOURS[0]}"]' in form(wide)


def test_of_many_cases_each_backend_is_named_once_under_the_roofs(drawn):
    _, found = drawn["h200"]
    figure = next(one for one in of(found, "roofline") if one.case_id is None)
    rows = figure.spec["datasets"]["rows"]
    named = [one["n"] for one in rows if "n" in one]
    assert sorted(named) == sorted({one["b"] for one in rows})
    assert all("y" in one for one in rows if "n" in one)
