"""Seed 003's plots: their names, the numbers in them, and files that are not such plots."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib

import pytest

from attnbench.errors import RunFileError, UsageError
from attnbench.formats.layouts import layout_names, load_layout, recognise
from attnbench.formats.layouts.base import imported_run, imported_time
from attnbench.formats.layouts.seed_003 import KEYWORD, LAYOUT, SIGNATURE, VERSION, _drawn, _lines, _pictures, _points
from attnbench.record import Record, Status, Work

DENSE = 10**12


def record(backend, ms, *, density=1.0, actual=None, workload="sparse", notes=(), **changed):
    case = {
        "batch": 4,
        "nheads": 32,
        "headdim": 128,
        "seqlen": 1024,
        "causal": False,
        "dtype": "fp16",
        "density": density,
        "pattern": "random",
        "block": "64x64",
        "map_seed": 0,
    } | changed
    case["seqlen_k"] = case.get("seqlen_k", case["seqlen"])
    share = density if actual is None else actual
    return Record(
        workload=workload,
        case=case,
        case_id=json.dumps(case),
        group=json.dumps(case),
        backend=backend,
        status=Status.PASSED,
        time=imported_time(mean_ms=ms, median_ms=2 * ms),
        notes=tuple(notes),
        work=Work(flops=int(share * DENSE), bytes=1, dense_flops=DENSE),
        counters={} if actual is None else {"density": actual},
    )


SPARGE = ("map predicted by SpargeAttn: simthreshd1 0, cdfthreshd 0.7, pvthreshd 50",)


def made_up():
    found = []
    for seqlen in (1024, 2048):
        for density in (1.0, 0.7):
            found += [
                record("dense[sdpa-flash]", 2.0, seqlen=seqlen, density=density),
                record("flash-sparse", 1.5, seqlen=seqlen, density=density),
            ]
    found += [
        record(
            f"sparge[sim0-cdf{cdf}-pv50]", 1.0 + cdf, seqlen=2048, density=0.7, actual=cdf, causal=True, notes=SPARGE
        )
        for cdf in (0.3, 0.5)
    ]
    return imported_run("mine", "x", found)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    pytest.importorskip("vl_convert")
    folder = tmp_path_factory.mktemp("seed-003")
    return folder, LAYOUT.write(made_up(), folder)


def test_files_have_the_seeds_names(written):
    folder, files = written
    assert "seed-003" in layout_names()
    assert sorted(str(file.relative_to(folder)) for file in files) == sorted(
        [f"seq_len_plots{end}/{metric}_causal_false.png" for end in ("", "_30") for metric in ("time_ms", "tflops")]
        + [f"seq_len_plots_{n}/{metric}_causal_true.png" for n in (50, 70) for metric in ("time_ms", "tflops")]
        + [
            f"sparge_sparsity_plots/{metric}_actual_sparsity_{plot}.png"
            for metric in ("time_ms", "tflops")
            for plot in ("seq1024_causal_false", "seq2048_causal_false", "seq2048_causal_true")
        ]
    )
    assert all(file.read_bytes().startswith(SIGNATURE) for file in files)


def test_a_run_comes_back_with_its_points_and_is_written_the_same(written, tmp_path):
    folder, files = written
    assert recognise(folder) is LAYOUT
    again = LAYOUT.read(folder)

    def keys(run):
        return sorted(
            (
                *(point.series, point.seqlen, point.sparsity, point.actual_sparsity, point.causal, point.mean_ms),
                *(point.map, point.pattern, point.block, point.map_seed),
            )
            for point in _points(run)
        )

    assert keys(again) == keys(made_up())
    assert {(one.case["pattern"], one.case["block"], one.case["map_seed"]) for one in again.records} == {
        ("random", "64x64", 0)
    }
    LAYOUT.write(again, tmp_path)
    for file in files:
        theirs = (tmp_path / file.relative_to(folder)).read_bytes()
        assert theirs[:2000] == file.read_bytes()[:2000]
    assert len({(record.group, record.backend) for record in again.records}) == len(again.records)
    one = LAYOUT.read(next(file for file in files if file.name == "time_ms_causal_true.png"))
    assert [(record.backend, record.time.mean_ms) for record in one.records] in (
        [("sparge[50%]", 1.5)],
        [("sparge[70%]", 1.3)],
    )


def test_points_of_one_series_at_one_length_lie_on_lines_of_their_own():
    found = [
        record("flash-sparse", 1.0, seqlen=seqlen, pattern=pattern, headdim=headdim, density=0.5)
        for seqlen in (1024, 2048)
        for pattern in ("random", "window")
        for headdim in (64, 128)
    ]
    points = _points(imported_run("mine", "x", found))
    assert sorted(set(_lines("seqlen", points))) == [
        f"flash-sparse, headdim {headdim}, map given: pattern {pattern}, blocks 64x64, seed 0"
        for headdim in (128, 64)
        for pattern in ("random", "window")
    ]
    assert set(_lines("seqlen", points[:1] + points[4:5])) == {"flash-sparse"}
    sweep = [point for point in _points(made_up()) if point.causal]
    assert _lines("actual_sparsity", sweep) == ["sparge", "sparge"]


def test_names_of_lines_are_whole_in_a_picture(monkeypatch):
    vl_convert = pytest.importorskip("vl_convert")
    found = [record("flash-sparse", 1.0, pattern=pattern, density=0.5) for pattern in ("random", "window")]
    specs = []
    monkeypatch.setattr(vl_convert, "vegalite_to_png", lambda spec, **_: specs.append(spec) or b"")
    points = _points(imported_run("mine", "x", found))
    _drawn("seqlen", "time_ms", points)
    svg = vl_convert.vegalite_to_svg(specs[0], vl_version=VERSION)
    for name in _lines("seqlen", points):
        assert f">{name}</text>" in svg


def test_two_flash_attentions_2_in_a_run_are_two_lines(tmp_path):
    pytest.importorskip("vl_convert")
    run = imported_run(
        "mine", "x", [record(f"dense[{name}]", ms) for name, ms in (("sdpa-flash", 2.0), ("flash-attn-2", 1.0))]
    )
    assert {point.series: point.mean_ms for point in _points(run)} == {"fa2": 2.0, "flash-attn-2": 1.0}
    LAYOUT.write(run, tmp_path)
    assert {one.backend: one.time.mean_ms for one in LAYOUT.read(tmp_path).records} == {
        "dense[sdpa-flash]": 2.0,
        "dense[flash-attn-2]": 1.0,
    }
    alone = imported_run("mine", "x", [record("dense[flash-attn-2]", 1.0)])
    assert [point.series for point in _points(alone)] == ["fa2"]


def test_other_heads_of_keys_are_lines_of_their_own(tmp_path):
    """Otherwise a plot would show their mean."""
    pytest.importorskip("vl_convert")
    cases = ({"nheads_kv": 32}, {"nheads_kv": 8}, {"nheads_kv": 32, "window": [128, 0]}, {"grid": "4:16:16"})
    run = imported_run("mine", "x", [record("sdpa-flash", 1.0 + at, **case) for at, case in enumerate(cases)])
    others = ["", "nheads_kv 8", "window 128:0", "grid 4:16:16"]
    assert [point.other for point in _points(run)] == others
    assert _lines("seqlen", _points(run)) == ["fa2", *(f"fa2, {other}" for other in others[1:])]
    LAYOUT.write(run, tmp_path)
    again = LAYOUT.read(tmp_path)
    assert [(point.other, point.mean_ms) for point in _points(again)] == list(zip(others, (1, 2, 3, 4), strict=True))
    assert len({one.group for one in again.records}) == 4


def test_a_predicted_map_stands_at_the_sparsity_it_reached_with_the_dense_rows_beside_it():
    """The seed's sweep: Sparge's defaults in `seq_len_plots`, simthreshd1 0 and cdfthreshd 0.7 in `seq_len_plots_30`."""
    defaults = ("map predicted by SpargeAttn: simthreshd1 0.6, cdfthreshd 0.98, pvthreshd 50",)
    found = [
        one
        for seqlen, reached in ((1024, 0.66), (2048, 0.71))
        for one in (
            record("dense[sdpa-flash]", 2.0, seqlen=seqlen),
            record("dense[sage2]", 1.5, seqlen=seqlen),
            record("sparge[sim0.6-cdf0.98-pv50]", 1.4, seqlen=seqlen, actual=0.999, notes=defaults),
            record("sparge[sim0-cdf0.7-pv50]", 1.1, seqlen=seqlen, actual=reached, notes=SPARGE),
        )
    ]
    pictures = _pictures(_points(imported_run("mine", "x", found)))
    lines = {
        name.partition("/")[0]: sorted((point.series, point.seqlen, point.mean_ms) for point in points)
        for name, (x, points) in pictures.items()
        if x == "seqlen"
    }
    dense = [(name, seqlen, ms) for name, ms in (("fa2", 2.0), ("sage2", 1.5)) for seqlen in (1024, 2048)]
    assert lines == {
        "seq_len_plots": [*dense, ("sparge", 1024, 1.4), ("sparge", 2048, 1.4)],
        "seq_len_plots_30": [*dense, ("sparge", 1024, 1.1), ("sparge", 2048, 1.1)],
    }


def test_the_map_of_a_file_stands_at_the_sparsity_it_has(tmp_path):
    pytest.importorskip("vl_convert")
    kept = [record("flash-sparse", 1.0, density=None, actual=share, pattern="m.npy@01234567") for share in (0.5, 0.001)]
    run = imported_run("mine", "x", kept)
    assert [point.sparsity for point in _points(run)] == [50, 100]
    LAYOUT.write(run, tmp_path)
    assert (tmp_path / "seq_len_plots_50").is_dir()
    again = LAYOUT.read(tmp_path)
    assert sorted(point.actual_sparsity for point in _points(again)) == [50.0, 99.9]
    assert {(one.case["pattern"], one.case["density"]) for one in again.records} == {("m.npy@01234567", None)}


def test_rates_are_effective_and_of_the_mean():
    points = {point.series: point for point in _points(made_up())}
    assert points["fa2"].tflops == pytest.approx(4 * 4 * 32 * 128 * 2048**2 / 2.0 / 1e9)
    assert points["sparge"].tflops == pytest.approx(4 * 4 * 32 * 128 * 2048**2 / 2 / 1.5 / 1e9)
    assert set(points) == {"fa2", "flash-sparse", "sparge"}
    quantised = _points(
        imported_run(
            "mine",
            "x",
            [record("sage2", 1.0, workload="attention", window=None), record("sparge-fp8", 1.0, actual=0.5)],
        )
    )
    assert [point.series for point in quantised] == ["sage2", "sparge_fp8"]
    assert [point.map for point in quantised] == ["", "map given: pattern random, blocks 64x64, seed 0"]


def test_a_picture_written_before_patterns_were_kept_is_read_still(written, tmp_path):
    _, files = written
    data = files[0].read_bytes()
    start = data.index(KEYWORD + b"\0") + len(KEYWORD) + 1
    length = int.from_bytes(data[start - len(KEYWORD) - 9 : start - len(KEYWORD) - 5], "big")
    old = [
        {name: value for name, value in point.items() if name not in ("pattern", "block", "map_seed")}
        for point in json.loads(data[start : start - len(KEYWORD) - 1 + length])
    ]
    body = b"tEXt" + KEYWORD + b"\0" + json.dumps(old).encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    (tmp_path / files[0].name).write_bytes(SIGNATURE + chunk)
    found = LAYOUT.read(tmp_path / files[0].name).records
    assert len(found) == len(old)
    assert not any("pattern" in one.case for one in found)


def test_the_console_says_what_the_pictures_show():
    lines = LAYOUT.console(made_up()).splitlines()
    assert lines[0] == "fa2: seq_len 1024, causal false, sparsity 0 %: 2 ms, 34.36 TFLOP/s"
    assert lines[-1] == "sparge: seq_len 2048, causal true, sparsity 50 %: 1.5 ms, 91.63 TFLOP/s"
    assert len(lines) == 10


def test_how_maps_came_about_is_said():
    notes = LAYOUT.notes(made_up())
    assert "seed-003: map given: pattern random, blocks 64x64, seed 0" in notes
    assert "seed-003: map predicted by SpargeAttn: simthreshd1 0, cdfthreshd 0.7, pvthreshd 50" in notes
    assert notes[-1] == "seed-003: SpargeAttn's defaults (sim 0.6, cdf 0.98) skip nothing on random data"


def test_a_picture_says_of_every_map_how_it_came_about(tmp_path, monkeypatch):
    drawn = []
    vl_convert = pytest.importorskip("vl_convert")
    monkeypatch.setattr(
        vl_convert, "vegalite_to_png", lambda text, **_: drawn.append(text) or SIGNATURE + chunk(b"IEND", b"")
    )
    ways = [f"map predicted by SpargeAttn: simthreshd1 0, cdfthreshd 0.{cdf}" for cdf in range(2, 9)]
    rows = [
        record("sparge", 1.0, actual=0.1 * cdf, notes=(way,), seqlen=32768) for cdf, way in enumerate(ways, start=2)
    ]
    LAYOUT.write(imported_run("mine", "x", rows), tmp_path)
    over_sparsity = next(json.loads(text) for text in drawn if '"actual sparsity, %"' in text)
    assert over_sparsity["title"]["subtitle"][:-1] == ways


def test_inputs_that_are_not_normal_are_said_and_have_lines_of_their_own(tmp_path):
    pytest.importorskip("vl_convert")
    rows = [record("flash-sparse", 1.0), record("flash-sparse", 2.0)]
    run = imported_run("mine", "x", [rows[0], dataclasses.replace(rows[1], input="video")])
    points = _points(run)
    assert [point.input for point in points] == ["", "video"]
    assert _lines("seqlen", points) == ["flash-sparse", "flash-sparse, input video"]
    LAYOUT.write(run, tmp_path)
    assert {one.input for one in LAYOUT.read(tmp_path).records} == {None, "video"}


def test_a_run_without_such_problems_is_refused():
    for records in ([], [record("eager", 1.0, seqlen_k=512)], [record("eager", 1.0, workload="hstu")]):
        with pytest.raises(UsageError, match="seed-003: records=0 have a time, a length and a head size"):
            LAYOUT.write(imported_run("mine", "x", records), "nowhere")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


POINT = {
    "series": "fa2",
    "batch": 1,
    "nheads": 1,
    "headdim": 64,
    "seqlen": 8,
    "causal": False,
    "dtype": "fp16",
    "sparsity": 0,
    "actual_sparsity": 0.0,
    "mean_ms": 1.0,
    "map": "",
}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GIF89a", "is no PNG; a PNG"),
        (
            SIGNATURE + chunk(b"IEND", b""),
            "carries no numbers; a picture that `attnbench export --layout seed-003` wrote",
        ),
        (SIGNATURE + struct.pack(">I", 99) + b"tEXt" + 20 * b"x", "is torn; a whole PNG"),
        (SIGNATURE + chunk(b"tEXt", KEYWORD + b"\0{"), "carries numbers that cannot be used"),
        (SIGNATURE + chunk(b"tEXt", KEYWORD + b"\0" + b"[" * 10**5), "carries numbers that cannot be used"),
        (SIGNATURE + chunk(b"tEXt", KEYWORD + b"\0[{}]"), "carries numbers that cannot be used"),
        *[
            (
                SIGNATURE + chunk(b"tEXt", KEYWORD + b"\0" + json.dumps([POINT | {name: value}]).encode()),
                "carries numbers that cannot be used",
            )
            for name, value in [
                ("mean_ms", -1.0),
                ("mean_ms", "1"),
                ("seqlen", True),
                ("sparsity", 101),
                ("series", 3),
                ("other", 1),
            ]
        ],
    ],
)
def test_what_is_no_such_picture_is_refused_in_one_line(data, words, tmp_path):
    file = tmp_path / "time_ms_causal_true.png"
    file.write_bytes(data)
    assert LAYOUT.recognises(file)
    with pytest.raises(RunFileError, match=words) as caught:
        LAYOUT.read(file)
    assert "\n" not in str(caught.value)


def test_a_folder_without_pictures_is_not_ours(tmp_path):
    assert not LAYOUT.recognises(tmp_path)
    assert not load_layout("seed-003").recognises(tmp_path / "other.png")
    with pytest.raises(RunFileError, match="has nothing of seed-003"):
        LAYOUT.read(tmp_path)
