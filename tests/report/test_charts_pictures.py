"""PNG and SVG without a browser: stable file names, any axis or measured quantity."""

import argparse
import dataclasses
import math
import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnbench.errors import Unavailable, UsageError
from attnbench.record import Status
from attnbench.report.charts import figures
from attnbench.report.plots import add_plot_arguments, check_plot_arguments, picture, write_plots
from attnbench.store.derive import derive
from attnbench.store.runfile import read
from made_up_run import make_case, make_group, make_lost, make_maps, make_run

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def stems(paths, folder):
    return [str(path.relative_to(folder).with_suffix("")) for path in paths]


def sparse(backends=("sparge", "flash-attn-3"), lengths=(32768,), knobs=(0.1, 0.5, 0.9), causal=(False, True)):
    """Cases with a knob; only the sparse backend counts what it really left out."""
    records = []
    for length in lengths:
        for knob in knobs:
            for mask in causal:
                case = make_case(seqlen=length, seqlen_k=length, causal=mask) | {"knob": knob}
                for record in make_group(case, dict(zip(backends, (900.0, 700.0), strict=True)), samples=8):
                    counted = {"actual_sparsity": round(knob * 0.8 + 0.01, 3)} if record.backend == "sparge" else {}
                    name = f"{record.case_id}-k{knob}"
                    records.append(dataclasses.replace(record, case_id=name, group=name, counters=counted))
    return make_run(records)


@pytest.fixture(scope="module")
def cpu():
    return read(RESULTS / "quick-cpu.json")


def test_an_axis_of_fractions_has_them_whole(tmp_path):
    write_plots([make_maps((0.25, 0.5, 0.75))], tmp_path)
    found = texts(next(tmp_path.rglob("time_ms_density_*.svg")).read_text())
    assert {"0.25", "0.5", "0.75"} <= {*found}


def test_an_axis_that_some_cases_leave_open_is_said_to_be_without_a_value(tmp_path):
    run = make_maps((0.25, 0.5, 0.75))
    gridded = [
        dataclasses.replace(
            one, case=one.case | {"grid": "2:32:64"}, case_id=f"{one.case_id}-g", group=f"{one.case_id}-g"
        )
        for one in run.records
    ]
    plain = [dataclasses.replace(one, case=one.case | {"grid": None}) for one in run.records]
    titles = [one.title for one in figures([make_run([*plain, *gridded])]) if one.kind == "density"]
    assert titles == ["Time over density: no grid", "Time over density: grid 2:32:64"]


def test_a_shape_of_many_axes_is_named_whole_in_the_map_of_winners():
    cases = [
        make_case(seqlen=length, seqlen_k=length, nheads=heads, headdim=size, causal=mask, dtype=dtype)
        for length in (1024, 4096)
        for heads in (16, 128)
        for size in (64, 256)
        for mask in (False, True)
        for dtype in ("bf16", "fp16")
    ]
    run = make_run([record for case in cases for record in make_group(case, samples=8)])
    (figure,) = (one for one in figures([run]) if one.kind == "winner")
    said = [
        part for text in ElementTree.fromstring(picture(figure, "svg")).iter(f"{SVG}text") for part in text.itertext()
    ]
    assert not [part for part in said if "…" in part]
    for words in ("nheads 128", "headdim 256", "not causal", "fp16"):
        assert sum(words in part for part in said) == 8


def test_the_standard_set_is_every_figure_in_every_format(cpu, tmp_path):
    one = dataclasses.replace(
        cpu,
        records=tuple(record for record in cpu.records if record.case["seqlen"] < 512 and not record.case["causal"]),
    )
    paths = write_plots([one], tmp_path / "new" / "plots")
    assert stems(paths[::2], tmp_path / "new" / "plots") == [figure.stem for figure in figures([one])]
    assert "seq_len_plots/time_ms_causal_false" in stems(paths, tmp_path / "new" / "plots")
    assert {path.suffix for path in paths} == {".png", ".svg"}
    for path in paths:
        data = path.read_bytes()
        if path.suffix == ".svg":
            assert ElementTree.fromstring(data).tag == f"{SVG}svg"
        else:
            assert data.startswith(b"\x89PNG\r\n\x1a\n")
            width, height = struct.unpack(">II", data[16:24])
            assert width > 1200
            assert height > 150


def test_a_picture_says_what_the_page_says_and_cuts_nothing_off(cpu):
    for figure in figures([cpu])[:9]:
        svg = picture(figure, "svg").decode()
        root, said = ElementTree.fromstring(svg), texts(svg)
        assert figure.title in said
        assert {record.backend for record in cpu.records if record.time} <= set(said) or figure.kind in (
            "winner",
            "speedup",
        )
        assert 'fill="#ffffff"' in svg or 'fill="white"' in svg  # readable wherever it is put
        width, height = (float(root.get(name)) for name in ("width", "height"))
        assert 600 < width < 1200
        for x, y in places(root):
            assert 0 <= x <= width
            assert 0 <= y <= height


def places(root, x=0.0, y=0.0):
    """Where texts begin, their groups' shifts added up."""
    for element in root:
        shift = re.search(r"translate\(([-\d.e]+),([-\d.e]+)\)", element.get("transform", ""))
        dx, dy = (float(part) for part in shift.groups()) if shift else (0.0, 0.0)
        if element.tag == f"{SVG}text" and element.text:
            yield x + dx, y + dy
        yield from places(element, x + dx, y + dy)


def test_hostile_names_stay_text():
    names = {"<script>alert(1)</script>": 300.0, '"&\\': 320.0}
    found = figures([make_run(make_group(make_case(), names, samples=8))])
    for figure in found:
        svg = picture(figure, "svg").decode()
        assert "<script" not in svg
        assert set(names) & set(texts(svg))


def test_a_measured_quantity_on_x_has_the_older_scripts_names(tmp_path):
    paths = write_plots([sparse()], tmp_path, x="actual_sparsity", formats=("png",))
    assert stems(paths, tmp_path) == [
        f"sparge_sparsity_plots/{what}_actual_sparsity_seq32768_causal_{causal}"
        for causal in ("false", "true")
        for what in ("time_ms", "tflops")
    ]
    both = write_plots(
        [sparse(lengths=(1024, 32768), causal=(True,))],
        tmp_path,
        x="counters.actual_sparsity",
        metric="time.median_ms",
        formats=("png",),
    )
    assert [path.name for path in both] == [
        f"time_ms_actual_sparsity_seq{length}_causal_true.png" for length in (1024, 32768)
    ]


def test_what_counts_nothing_is_not_drawn_at_zero(tmp_path):
    write_plots([sparse(causal=(False,))], tmp_path, x="actual-sparsity", metric="tflops", formats=("svg",))
    (svg,) = (path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.svg"))
    said = texts(svg)
    assert "sparge" in said
    assert "flash-attn-3" not in said
    assert {"0.1", "0.7"} & {text.rstrip("0") for text in said}


def test_configurations_that_a_measured_quantity_tells_apart_are_one_line(tmp_path):
    run = sparse(knobs=(0.1,), causal=(False,))
    base = next(record for record in run.records if record.backend == "sparge")
    records = [
        dataclasses.replace(base, backend=f"sparge[k{place}]", counters={"actual_sparsity": share})
        for place, share in enumerate((0.2, 0.4, 0.6))
    ]
    write_plots([make_run(records)], tmp_path, x="actual_sparsity", metric="tflops", formats=("svg",))
    (svg,) = (path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.svg"))
    assert texts(svg).count("sparge") == 1
    assert "sparge[k0]" not in texts(svg)


@pytest.mark.parametrize(
    ("x", "metric", "expected"),
    [
        (
            "seqlen",
            None,
            [
                "seq_len_plots/time_ms_causal_false",
                "seq_len_plots/tflops_causal_false",
                "seq_len_plots/time_ms_causal_true",
                "seq_len_plots/tflops_causal_true",
            ],
        ),
        (
            None,
            "peak_allocated_mb",
            [f"seq_len_plots/memory.peak_allocated_mb_causal_{causal}" for causal in ("false", "true")],
        ),
        (
            "causal",
            "errors.out.max_abs",
            [f"causal_plots/errors.out.max_abs_causal_seq{length}" for length in (128, 256, 512, 1000)],
        ),
        (
            "time-ms",
            "memory.peak_allocated_mb",
            [
                f"time_ms_plots/memory.peak_allocated_mb_time_ms_seq{length}_causal_{mask}"
                for length in (128, 256, 512, 1000)
                for mask in ("false", "true")
            ],
        ),
    ],
)
def test_any_axis_and_any_metric(cpu, tmp_path, x, metric, expected):
    paths = write_plots([cpu], tmp_path, x=x, metric=metric, formats=("svg",))
    found = stems(paths, tmp_path)
    assert [name.removesuffix("_causal_false") if x == "causal" else name for name in found] == expected


def test_an_axis_without_a_value_has_a_place_on_x(tmp_path):
    records = [record for window in (None, "1024:0") for record in make_group(make_case(window=window), samples=8)]
    records = [dataclasses.replace(record, group=f"w{record.case['window']}") for record in records]
    (path,) = write_plots([make_run(records)], tmp_path, x="window", metric="tflops", formats=("svg",))
    assert path.name == "tflops_window_seq16384_causal_false.svg"
    assert {"none", "1024:0"} <= set(texts(path.read_text(encoding="utf-8")))


def test_several_runs_have_a_folder_each(cpu, tmp_path):
    paths = write_plots([cpu, dataclasses.replace(cpu, id="0badcafe")], tmp_path, x="seqlen", formats=("svg",))
    assert {path.relative_to(tmp_path).parts[0] for path in paths} == {cpu.id, "0badcafe"}


@pytest.mark.parametrize(
    ("x", "metric", "message"),
    [
        (
            "seqlem",
            None,
            r"^attnbench report: --x=seqlem is not known; one of batch, .*tflops.*; did you mean seqlen\?$",
        ),
        (None, "tflop", r"^attnbench report: --metric=tflop is not known; one of .*time_ms.*; did you mean tflops\?$"),
        (None, "seqlen", r"^attnbench report: --metric=seqlen is not known; one of [^;]*$"),
        ("backend", None, r"^attnbench report: --x=backend is not known; one of "),
        ("nheads", None, r"^attnbench report: --x=nheads has no two values .*; an axis of which the run has several"),
        (None, "max_abs", r"^attnbench report: --metric=max_abs is the end of several; one of errors.out.max_abs, "),
    ],
)
def test_what_cannot_be_drawn_is_answered_in_one_line(cpu, tmp_path, x, metric, message):
    first = cpu.records[0]
    if metric == "max_abs":
        cpu = dataclasses.replace(
            cpu,
            records=(dataclasses.replace(first, errors={"dq": first.errors["out"], **first.errors}), *cpu.records[1:]),
        )
    with pytest.raises(UsageError, match=message) as caught:
        write_plots([cpu], tmp_path / "plots", x=x, metric=metric)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "plots").exists()


def test_a_run_without_times_and_a_file_in_the_way(tmp_path):
    lost = make_run([make_lost(make_case(), "eager", Status.SKIPPED, "eager: not here")])
    with pytest.raises(UsageError, match="would stay empty, nothing was timed; a run with times"):
        write_plots([lost], tmp_path)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"--plots=.*file is a file; a folder"):
        write_plots([make_run()], tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        write_plots([make_run()], tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def arguments(*words):
    parser = argparse.ArgumentParser()
    add_plot_arguments(parser.add_argument_group("output"))
    return parser.parse_args(words)


def test_flags_that_say_how_but_not_where(tmp_path):
    check_plot_arguments("attnbench report", arguments())
    check_plot_arguments("attnbench report", arguments("--plots", str(tmp_path), "--x", "seqlen"))
    with pytest.raises(UsageError, match=r"^attnbench report: --x=seqlen says what .*; it goes with --plots DIR$"):
        check_plot_arguments("attnbench report", arguments("--x", "seqlen"))
    with pytest.raises(UsageError, match="--metric=tflops"):
        check_plot_arguments("attnbench report", arguments("--metric", "tflops"))
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named_before_anything_is_drawn(monkeypatch, tmp_path):
    monkeypatch.setattr("attnbench.report.libraries.find_spec", lambda name: None)
    for refused in (
        lambda: write_plots([make_run()], tmp_path / "new"),
        lambda: check_plot_arguments("attnbench report", arguments("--plots", str(tmp_path / "new"))),
    ):
        with pytest.raises(Unavailable, match=r"module=altair is not installed; .*; pip install altair$"):
            refused()
    assert not (tmp_path / "new").exists()


def test_more_backends_than_colours_are_told_apart_by_colour_and_sign():
    """Each with its sign in the map of winners, in the key below, and beside its name at the end of its line."""
    names = [f"backend-{letter}" for letter in "abcdefghijklmn"]
    records = []
    for place in range(14):
        rates = {name: 300.0 - 9 * ((number + place) % 14) for number, name in enumerate(names)}
        records += make_group(make_case(seqlen=128 << place, seqlen_k=128 << place), rates, samples=12)
    drawn = {one.name: one for one in figures([derive(make_run(records))]) if one.case_id is None}
    lines = drawn["time_ms_causal_false"].spec["datasets"]
    assert len({(one["c"], one["g"]) for one in lines["ends"]}) == 14 > len({one["c"] for one in lines["ends"]})
    assert len({(one["c"], tuple(one["d"])) for one in lines["rows"]}) == 14, "lines, too"
    svg = picture(drawn["winner"], "svg").decode()
    key = re.findall(r'role-legend-symbol"[^>]*><path[^>]*d="([^"]+)" fill="(#[0-9a-f]+)"', svg)
    assert len(key) == len(set(key)) == 14 > len({fill for _, fill in key})
    assert set(names) <= set(texts(svg))


@pytest.mark.parametrize("name", ["quick-h200", "hstu-bsa-fwd-h200", "hstu-dense-fwd-h200"])
def test_what_the_roofs_are_stands_above_them_and_above_all_signs(name):
    """Lines of text and a room for them: neither signs nor names of backends lie there."""
    drawn = [one for one in figures([read(RESULTS / f"{name}.json")]) if one.kind == "roofline"]
    assert drawn
    for figure in drawn:
        data = figure.spec["datasets"]
        bottom, top = (edge(one["m"] for one in data["room"]) for edge in (min, max))
        lowest_label = max(one["y"] for one in data["labels"]) + 6.5
        highest = max(one[key] for one in (*data["rows"], *data["roofs"]) for key in ("m", "e", "y") if key in one)
        from_the_top = figure.spec["height"] * math.log(top / highest) / math.log(top / bottom)
        assert lowest_label <= from_the_top + 1, figure.title
        assert {one["n"].split()[0] for one in data["labels"]} <= {"——", "-"}
