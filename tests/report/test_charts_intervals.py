"""Uncertainty in charts: intervals of lines, and time axes that end above 0."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics

import pytest

from attnbench.presentation.figures import wild_time
from attnbench.record import Rate, Speedup
from attnbench.report.charts import figures
from attnbench.report.charts.base.columns import interval_of
from attnbench.report.plots import pictures
from attnbench.store.derive import derive
from made_up_run import make_case, make_record, make_run, make_time


@pytest.mark.parametrize("samples", [
    [1.0], [1.0] * 8, [1.0, 1.1, 90.0], [1.0, 0.9, 3.9], [0.0, 1.0, 1.0], [5e-4] * 7 + [0.2], [9e2, 1.0, 2.0, 3.9e3],
])  # fmt: skip
def test_no_time_axis_goes_below_zero(samples):
    """Whatever outlier is among the samples: negative labels begin with a minus sign (or a hyphen) in the SVG."""
    case = make_case()
    records = [make_record(case, "a", tflops=500.0, time=make_time(samples)),
               make_record(case, "b", tflops=500.0, time=make_time([2.0 * sample for sample in samples]))]  # fmt: skip
    run = derive(make_run(records))
    drawn = [one for one in figures([run]) if one.kind in ("time", "error")]
    # A median of 0, or one whose interval is wider than itself, has no point.
    known = statistics.median(samples) and not any(wild_time(one.time) for one in run.records)
    assert {one.kind for one in drawn} == ({"time", "error"} if known else set())
    for figure in drawn:
        (svg,) = pictures(figure, ("svg",))
        assert not re.search(r">[−-][0-9.]", svg.decode()), figure.kind


def time_chart(**samples):
    records = [
        make_record(make_case(), name, tflops=500.0, time=make_time(list(times))) for name, times in samples.items()
    ]
    (figure,) = [one for one in figures([derive(make_run(records))]) if one.kind == "time"]
    return figure, {one["b"]: one for one in figure.spec["datasets"]["rows"]}


def test_a_few_slow_samples_do_not_stretch_the_time_axis():
    usual = [1.0 + 0.001 * (7 * place % 38) for place in range(38)]  # in no order, as a drift widens intervals
    figure, rows = time_chart(one=[*usual, 90.0], two=[*usual, 40.0, 95.5], three=usual)
    assert all(max(one["s"]) < 1.04 for one in rows.values())
    assert (rows["one"]["o"], rows["two"]["o"]) == ("1, at 90.0", "2, up to 95.5")
    assert "o" not in rows["three"]
    assert figure.alt.endswith(" Samples beyond the axis: 1, at 90.0 of one, 2, up to 95.5 of two.")
    (svg,) = pictures(figure, ("svg",))
    assert "2, up to 95.5 →" in svg.decode()
    assert ">90" not in svg.decode(), "no such tick"


@pytest.mark.parametrize(
    "samples",
    [
        {"one": [1.0 + 0.01 * (7 * place % 40) for place in range(40)]},
        {
            "one": [1.0 + 0.01 * (7 * place % 40) for place in range(40)] + [1.5]
        },  # longer, but the rest keeps two thirds
        {"one": [1.0, 1.01] * 20 + [1.9], "slow": [2.0] * 40},  # within the times of another backend
        {"one": [1.0, 1.01] * 20, "slow": [90.0] * 40 + [120.0]},  # a little longer on a logarithmic axis
    ],
)
def test_a_time_axis_that_slow_samples_do_not_stretch_has_all(samples):
    figure, rows = time_chart(**samples)
    assert {name: max(one["s"]) for name, one in rows.items()} == {
        name: pytest.approx(max(times)) for name, times in samples.items()
    }
    assert "beyond" not in figure.alt + json.dumps(figure.spec)


def test_lines_have_the_intervals_of_their_points():
    cases = [make_case(seqlen=length, seqlen_k=length) for length in (1024, 2048)]
    run = derive(make_run([make_record(case, "a", tflops=500.0, samples=30, noise=0.05) for case in cases]
                          + [make_record(case, "few", tflops=400.0, samples=3) for case in cases]))  # fmt: skip
    records = {(record.backend, record.case["seqlen"]): record for record in run.records}
    time, tflops = (next(one for one in figures([run]) if one.name.startswith(name)) for name in ("time_ms", "tflops"))
    for row in time.spec["datasets"]["rows"]:
        found = records[row["b"], row["x"]].time
        if row["b"] == "few":
            assert not {"l", "h"} & set(row)
        else:
            assert (row["l"], row["h"]) == pytest.approx((found.ci_low_ms, found.ci_high_ms), rel=1e-4)
            assert row["l"] < row["m"] < row["h"]
    for row in tflops.spec["datasets"]["rows"]:
        record = records[row["b"], row["x"]]
        if row["b"] == "a":
            ends = (record.work.flops / ms / 1e9 for ms in (record.time.ci_high_ms, record.time.ci_low_ms))
            assert (row["l"], row["h"]) == pytest.approx(tuple(ends), rel=1e-4)
    assert "95 %" in json.dumps(time.spec)
    svg = next(pictures(time, ("svg",))).decode()
    assert svg.count('aria-roledescription="tick"') == 4, "two ends at each of two points"


@pytest.mark.parametrize(("column", "expected"), [
    ("speedup.ratio", (1.9, 2.1)), ("rate.gbps", (50.0, 200.0)), ("memory.peak_allocated_mb", None),
    ("time.median_ms", (0.5, 2.0)), ("rate.executed_tflops", None), ("time.p95_ms", None)])  # fmt: skip
def test_the_interval_of_a_column(column, expected):
    record = make_record(make_case(), "a", tflops=500.0, time=make_time([1.0] * 8, ci_low_ms=0.5, ci_high_ms=2.0),
                         rate=Rate(tflops=1.0, gbps=100.0),
                         speedup=Speedup(baseline="b", ratio=2.0, ci_low=1.9, ci_high=2.1))  # fmt: skip
    assert interval_of(column)(record) == expected
    assert interval_of(column)(dataclasses.replace(record, time=None, speedup=None)) is None
