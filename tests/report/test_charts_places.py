"""Positions of names, the points of a line, and the bound of a case: the logic behind the charts, by hand."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.record import Rate, Work
from attnbench.report.charts import figures
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import slug
from attnbench.report.charts.base.labels import LETTER, LINE, NARROW, around, scaled, shortened, spread
from attnbench.report.charts.base.lines import steps
from attnbench.report.charts.base.panels import named, panels
from attnbench.report.charts.base.roofs import Roof, intensity, measured, promised, promised_at
from attnbench.store.derive import derive
from made_up_run import make_case, make_group, make_record, make_run


@given(st.lists(st.floats(0, 300), min_size=1, max_size=20))
def test_names_are_moved_apart_in_their_order_and_no_further(wanted):
    found = spread(wanted, LINE, 0.0, 300.0)
    ordered = sorted(zip(wanted, found, strict=True))
    for (_, below), (_, above) in itertools.pairwise(ordered):
        assert above - below >= LINE - 1e-6
    assert min(found) >= -1e-6
    assert max(found) <= 300 + 1e-6
    if all(b - a >= LINE for a, b in itertools.pairwise(sorted(wanted))):
        assert found == pytest.approx(wanted)


def test_names_that_do_not_fit_share_the_room_evenly():
    assert spread([5.0] * 5, 10.0, 0.0, 20.0) == pytest.approx([0, 5, 10, 15, 20])
    assert spread([150.0], 10.0, 0.0, 100.0) == [100.0]
    assert spread([], 10.0, 0.0, 100.0) == []


def overlaps(points, names):
    """Pairs of names that lie on one another; every name within the plot's height."""
    found = around([x for x, _ in points], [y for _, y in points], names, 260)
    boxes = []
    for (x, y), name, place in zip(points, names, found, strict=True):
        left = x + place.dx - (LETTER * len(name) if place.align == "right" else 0)
        boxes.append((left, y + place.dy, left + LETTER * len(name)))
        assert -1 <= y + place.dy <= 261
    return [
        (one, other)
        for one, other in itertools.combinations(boxes, 2)
        if one[0] < other[2] - 1e-6 and other[0] < one[2] - 1e-6 and abs(one[1] - other[1]) < LINE - 1e-6
    ]


# Names are placed one by one: a crowd can be contrived that leaves the last one no room, so no shrinking search.
@settings(max_examples=150, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, NARROW), st.floats(10, 250)), min_size=1, max_size=6))
def test_names_around_points_do_not_lie_on_one_another(points):
    assert not overlaps(points, ["sdpa-flash"] * len(points))


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 10.0)] * 6,
        [(130.0, 250.0)] * 8,
        [(260.0, 130.0)] * 8,
        [(20.0 * place, 200.0) for place in range(12)],
        [(20.0 * place, 200.0 - 15 * place) for place in range(12)],
    ],
)
def test_names_of_a_crowd_are_stacked(points):
    assert not overlaps(points, ["xformers-cutlass"] * len(points))


def test_a_lone_point_has_its_name_beside_it():
    (place,) = around([50.0], [100.0], ["flex"], 260)
    assert (place.dy, place.align) == (0.0, "left")


def test_pixels_along_an_axis():
    assert scaled([1, 10, 100], 200, log=True) == pytest.approx([0, 100, 200])
    assert scaled([0, 5, 10], 200, log=False) == [0, 100, 200]
    assert scaled([7, 7], 200, log=True) == [100, 100]


def test_lines_of_a_logarithmic_axis():
    assert steps(0.04, 3) == (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    assert steps(0.0009, 3000) == (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def test_names_of_files():
    assert slug(True) == "true"
    assert slug(None) == "none"
    assert slug("../../etc/passwd") == "etc_passwd"
    assert slug("..") == "unnamed"
    assert slug("b1-s128 <script>") == "b1-s128_script"
    assert len(slug("x" * 500)) == 80
    assert shortened("x" * 50) == "x" * 27 + "…"


def tables(*cases):
    return RunData(make_run([record for case in cases for record in make_group(case, {"a": 300.0, "b": 200.0})])).tables


def test_what_follows_the_length_goes_with_it_and_what_does_not_stands_apart():
    cases = [
        make_case(seqlen=length, seqlen_k=length, batch=16384 // length, causal=causal, dtype=dtype)
        for length in (4096, 512)
        for causal in (False, True)
        for dtype in ("bf16", "fp16")
    ]
    found = panels(tables(*cases), "seqlen")
    assert [one.fixed for one in found] == [
        {"causal": causal, "dtype": dtype} for causal in (False, True) for dtype in ("bf16", "fp16")
    ]
    assert [one.words for one in found[:3]] == ["not causal, bf16", "not causal, fp16", "causal, bf16"]
    assert [table.case["seqlen"] for table in found[0].tables] == [512, 4096]
    assert found[0].following == {"batch": [32, 4]}
    assert found[0].goes_with == "batch 32, 4"
    assert found[0].ending == "_causal_false_dtypebf16"


def test_a_batch_of_its_own_is_no_follower():
    cases = [make_case(seqlen=length, seqlen_k=length, batch=batch) for length in (512, 4096) for batch in (1, 4)]
    found = panels(tables(*cases), "seqlen")
    assert [one.fixed for one in found] == [{"batch": 1}, {"batch": 4}]
    assert [one.ending for one in found] == ["_causal_false_batch1", "_causal_false_batch4"]


def test_causal_is_never_taken_for_a_follower():
    found = panels(
        tables(make_case(seqlen=512, seqlen_k=512), make_case(seqlen=1024, seqlen_k=1024, causal=True)), "seqlen"
    )
    assert [len(one.tables) for one in found] == [1, 1]


def test_all_that_changes_with_the_length_is_named_while_it_fits():
    cases = [
        make_case(
            seqlen=length, seqlen_k=length, batch=place, nheads=2 * place, nheads_kv=3 * place, headdim=16 * place
        )
        for place, length in enumerate((64, 128, 256, 512, 1024), 1)
    ]
    (found,) = panels(tables(*cases), "seqlen")
    assert found.goes_with == "with batch, nheads, nheads_kv and 1 more axis"


FLOPS, BYTES = 989.5, 4.8
"An H200's data sheet: TFLOP/s, TB/s."


def on_h200(at, tflops=100.0, copy=4240.0, matmul=792.0):
    """A record at an intensity, with the share of the roof that a worker would have written."""
    record = make_record(make_case(seqlen=int(at)), "flex")
    work = Work(flops=int(at * 1e6), bytes=10**6)
    roof = min(FLOPS, BYTES * at)
    ceilings = {name: value for name, value in (("copy_gbps", copy), ("matmul_tflops", matmul)) if value}
    return dataclasses.replace(
        record, work=work, ceilings=ceilings, rate=Rate(tflops=tflops, percent_of_peak=100 * tflops / roof)
    )


def test_the_data_sheet_follows_from_what_was_measured():
    assert promised([on_h200(64), on_h200(2048)]) == Roof(pytest.approx(FLOPS), pytest.approx(BYTES))
    assert promised([on_h200(64)]) == Roof(None, pytest.approx(BYTES))
    assert promised([on_h200(2048)]) == Roof(pytest.approx(FLOPS), None)


def test_what_does_not_follow_is_not_said():
    """At 200 FLOP/byte 960 TFLOP/s could be the flat part, or the slope of 4.8 TB/s: both are above what was seen."""
    assert promised([on_h200(200)]) == Roof()
    assert promised([on_h200(2048, copy=None, matmul=None)]) == Roof()
    assert promised_at(on_h200(200)) == pytest.approx(960)
    rates = [Rate(tflops=rate, percent_of_peak=100 * rate / 989.5) for rate in (1.1, 3.3, 515.7, 749.63, 700.001)]
    assert {promised_at(dataclasses.replace(on_h200(200), rate=rate)) for rate in rates} == {989.5}
    assert promised_at(dataclasses.replace(on_h200(200), rate=Rate(tflops=100.0))) is None


def test_a_ceiling_is_the_highest_that_was_measured():
    assert measured([on_h200(64), on_h200(64, copy=4300.0, matmul=None)]) == Roof(792.0, 4.3)
    assert measured([on_h200(64, copy=None, matmul=None)]) == Roof()


def test_a_roof_bends_at_its_ridge():
    roof = Roof(800.0, 4.0)
    assert roof.ridge == 200
    assert roof.line(50, 1000) == [(50, 200), (200, 800), (1000, 800)]
    assert roof.line(300, 1000) == [(300, 800), (1000, 800)]
    assert Roof(None, 4.0).line(10, 20) == [(10, 40), (20, 80)]
    assert Roof(800.0).line(10, 20) == [(10, 800), (20, 800)]
    assert Roof().line(10, 20) == []


def test_no_bytes_no_intensity():
    record = make_record(make_case(), "flex")
    assert intensity(dataclasses.replace(record, work=None)) is None
    assert intensity(dataclasses.replace(record, work=Work(flops=5, bytes=0))) is None
    assert intensity(dataclasses.replace(record, work=Work(flops=10, bytes=4))) == 2.5


def test_no_two_cases_share_a_folder():
    case = make_case()
    records = [
        dataclasses.replace(make_record(case, "a", tflops=300.0), case_id=name, group=name)
        for name in ("a/b", "a_b", "a_b-2", "A?B", "..", "")
    ]
    assert [table.folder for table in RunData(make_run(records)).tables] == [
        "a_b",
        "a_b-2",
        "a_b-2-2",
        "A_B-3",
        "unnamed",
        "unnamed-2",
    ]


def test_a_launch_that_skips_work_stands_below_the_roof():
    """At what it executes, hollow; its useful work, over the roof, is in the words alone."""
    dense = make_record(make_case(), "dense", tflops=600.0)
    sparse = make_record(make_case(), "sparse", tflops=2000.0)
    work = dataclasses.replace(sparse.work, executed_flops=sparse.work.flops // 10)
    sparse = dataclasses.replace(sparse, work=work, rate=dataclasses.replace(sparse.rate, percent_of_peak=202.2))
    found = [one for one in figures([derive(make_run([dense, sparse]))]) if one.kind == "roofline" and one.case_id]
    points = {one["b"]: one for one in found[0].spec["datasets"]["rows"]}
    assert points["sparse"]["m"] == pytest.approx(200, rel=0.02)
    assert points["sparse"]["x"] == pytest.approx(work.executed_flops / work.bytes, rel=1e-3)
    assert points["sparse"]["o"] == 1
    assert "o" not in points["dense"]
    assert "executed 200" in points["sparse"]["t"]
    assert "20.2 % of the data sheet" in points["sparse"]["t"]
    assert max(one["m"] for one in found[0].spec["datasets"]["roofs"]) == pytest.approx(989, rel=0.02)


HSTU = {"batch": 32, "seqlen": 1024, "nheads": 4, "attn_dim": 128, "linear_dim": 128, "alpha": 128**-0.5,
        "scaling_seqlen": 1024, "causal": True, "dtype": "bf16", "mode": "fwd"}  # fmt: skip


def hstu(attn_dim, nheads, seqlen=1024, **changed):
    size = {"attn_dim": attn_dim, "linear_dim": attn_dim, "alpha": attn_dim**-0.5, "nheads": nheads}
    return HSTU | size | {"seqlen": seqlen, "scaling_seqlen": seqlen, "batch": 2**18 // seqlen} | changed


@pytest.mark.parametrize(("cases", "expected"), [
    ([hstu(128, 4), hstu(64, 8), hstu(32, 8, linear_dim=64)], ["nheads", "attn_dim", "linear_dim"]),
    ([hstu(128, 4), hstu(64, 4)], ["attn_dim"]),
    ([hstu(128, 4), hstu(128, 4, alpha=0.5)], ["alpha"]),
    ([hstu(128, 4), hstu(64, 4), hstu(64, 4, alpha=0.5)], ["attn_dim", "alpha"]),
    ([hstu(128, 4, seqlen) for seqlen in (512, 1024)], ["batch", "seqlen"]),
    ([make_case(window=window) for window in (None, 128)], ["window"]),
    ([hstu(128, 4) | {"sparsity": share} for share in (0.3, 0.6)], ["sparsity"]),
])  # fmt: skip
def test_a_shape_is_named_by_whole_numbers_and_a_fraction_only_where_it_says_more(cases, expected):
    assert named(cases) == expected


@pytest.mark.parametrize("sizes", [[(128, 4), (64, 8)], [(128, 4), (64, 8), (32, 8)], [(256, 2), (32, 16)]])
def test_panels_of_hstu_are_named_by_the_size_of_a_head(sizes):
    cases = [hstu(attn_dim, nheads, seqlen) for attn_dim, nheads in sizes for seqlen in (512, 2048)]
    tables_of_all = RunData(make_run(_records(cases))).tables
    assert [one.words for one in panels(tables_of_all, "seqlen")] == [f"attn_dim {size}" for size, _ in sizes]
    single = [hstu(attn_dim, nheads) for attn_dim, nheads in sizes]
    (winner,) = [one for one in figures([derive(make_run(_records(single)))]) if one.kind == "winner"]
    assert {cell["x"] for cell in winner.spec["datasets"]["cells"]} == {str(size) for size, _ in sizes}


def _records(cases):
    """Two backends on each of some cases of any workload."""
    return [
        dataclasses.replace(
            make_record(make_case(), name, tflops=rate), case=case, case_id=f"{place}", group=f"{place}"
        )
        for place, case in enumerate(cases)
        for name, rate in (("a", 300.0), ("b", 200.0))
    ]
