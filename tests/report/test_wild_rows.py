"""Rows with too much noise: no verdict, no point on a chart, the ratio as a range; a loaded CPU is reported."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from test_table import noted

from attnbench.presentation.figures import MILLISECONDS, interval, ratio, wild_time
from attnbench.presentation.matrix import summary
from attnbench.record import Environment, Speedup
from attnbench.report.charts import figures
from attnbench.report.charts.winner import NOBODY
from attnbench.stats.summary import is_wild
from attnbench.store.derive import derive
from made_up_run import make_case, make_group, make_record, make_run, make_time


def wild_run():
    """The second backend is ten times slower in each round, by times that are anything from 1 to 1,000."""
    source = random.Random(1)
    steps = [10 ** source.uniform(0, 3) for _ in range(8)]
    steady = make_record(make_case(), "steady", tflops=100.0)
    wild = [
        dataclasses.replace(
            make_record(make_case(), name, tflops=100.0),
            time=make_time([factor * step * source.uniform(0.99, 1.01) for step in steps]),
        )
        for name, factor in (("base", 0.1), ("own", 1.0))
    ]
    run = make_run([*wild, steady])
    return derive(dataclasses.replace(run, settings=dataclasses.replace(run.settings, baseline="base")))


def test_a_row_whose_interval_is_wider_than_its_value_has_no_verdict():
    _, own, _ = wild_run().records
    assert is_wild(own.time.median_ms, own.time.ci_low_ms, own.time.ci_high_ms)
    assert own.speedup.baseline == "base"
    assert own.speedup.ratio == pytest.approx(0.1, rel=0.02)  # within rounds they differ by as much each time
    assert own.speedup.verdict == "unclear"


def test_it_has_no_point_on_a_chart_and_a_note_says_so():
    run = wild_run()
    drawn = " ".join(figure.alt for figure in figures([run]))
    assert "steady" in drawn
    assert "own" not in drawn.split()
    notes = noted(list(run.records))
    wanted = "no verdict and no point on a chart: base, own: the interval is wider than the value"
    assert [note for note in notes if note.startswith(wanted)]
    assert not [note for note in notes if note.startswith("noisy") and "own" in note]  # said once is enough


def test_its_interval_is_shown_by_both_ends():
    own = next(record for record in wild_run().records if record.backend == "own")
    low, high = (float(end) for end in interval(own.time, MILLISECONDS).split(" to "))
    assert (low, high) == pytest.approx((own.time.ci_low_ms, own.time.ci_high_ms), rel=0.06)
    assert interval(make_time([2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0]), MILLISECONDS).startswith("±0.")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((2.0, 1.9, 2.1), ("2.00x", "±0.10")),
        ((2.0, 0.21, 9.0), ("0.21x to 9.0x", "")),
        ((2.0, 1.1, 3.0), ("2.0x", "±1.0")),
        ((2.0, None, None), ("2.00x", "")),
        ((104.0, 3.0, 4000.0), ("3.0x to 4000x", "")),
        ((1.2, 1.02, 1.8), ("1.02x to 1.80x", "")),  # 1.2x ±0.6 beside "faster" would not be believed
        ((0.8, 0.3, 0.95), ("0.300x to 0.950x", "")),
    ],
)
def test_a_ratio_wider_than_itself_is_a_range(values, shown):
    middle, low, high = values
    assert ratio(Speedup(baseline="b", ratio=middle, ci_low=low, ci_high=high, verdict="unclear")) == shown


@pytest.mark.parametrize(
    ("cores", "load", "note"),
    [
        (2, 1.34, "loaded: other processes used 1.3 of 2 cores meanwhile; times may be longer and noisier for it"),
        (2, 0.2, None),
        (64, 2.0, None),
        (64, 3.3, "loaded: other processes used 3.3 of 64 cores meanwhile; times may be longer and noisier for it"),
        (2, None, None),
    ],
)
def test_a_loaded_cpu_has_a_note_of_its_own(cores, load, note):
    records = [
        dataclasses.replace(one, time=dataclasses.replace(one.time, other_cores=load))
        for one in make_group(make_case())
    ]
    environment = Environment(os="Linux", python="3.11.0", torch="2.13.0", cpu="a CPU", cores=cores)
    assert noted(records, environments=(environment,)) == ([] if note is None else [note])


def loaded_run():
    """Of each case `base` is the fastest by its median, and not known to within itself; `own` is half as fast or as fast."""
    source, records = random.Random(2), []
    for seqlen, factor in ((1024, 2.0), (2048, 1.0), (4096, 0.0)):
        case = make_case(seqlen=seqlen)
        base = [10 ** source.uniform(-0.7, 1.0) for _ in range(15)]
        steady = [2.0 * source.uniform(0.99, 1.01) for _ in range(15)]
        times = {"base": base, "own": [one * factor * source.uniform(0.9, 1.1) for one in base] if factor else steady,
                 "late": [30.0 * one for one in steady], "later": [40.0 * one for one in steady]}  # fmt: skip
        records += [
            dataclasses.replace(make_record(case, name, tflops=100.0), time=make_time(samples))
            for name, samples in times.items()
        ]
    return derive(make_run(records))


def test_no_line_passes_over_a_length_without_a_point():
    source, records = random.Random(3), []
    for seqlen in (512, 1024, 2048, 4096, 8192):
        case = make_case(seqlen=seqlen, seqlen_k=seqlen)
        for name in ("whole", "parted"):
            uneven = seqlen == 4096 or (seqlen, name) == (1024, "parted")
            samples = [10 ** source.uniform(0, 3) if uneven else 2.0 for _ in range(20)]
            records.append(dataclasses.replace(make_record(case, name, tflops=100.0), time=make_time(samples)))
    every = figures([derive(make_run(records))])
    (winner,) = [figure for figure in every if figure.kind == "winner"]
    cells = {cell["x"]: cell["n"] for cell in winner.spec["datasets"]["cells"]}
    assert cells["4096"] == "no time"
    assert cells["1024"] == "whole"  # the other is slower by far, and cannot be drawn
    assert set(cells) - {"1024", "4096"} == {"512", "2048", "8192"}
    assert '["512", "1024", "2048", "4096", "8192"]' in json.dumps(winner.spec)
    drawn = [figure for figure in every if figure.kind == "length"]
    assert len(drawn) == 2
    for figure in drawn:
        pieces = {(row["b"], row["x"]): row.get("p", 0) for row in figure.spec["datasets"]["rows"]}
        assert pieces == {
            ("whole", 512): 0, ("whole", 1024): 0, ("whole", 2048): 0, ("whole", 8192): 1,
            ("parted", 512): 0, ("parted", 2048): 1, ("parted", 8192): 2,
        }  # fmt: skip
        (line,) = [
            one for one in figure.spec["layer"] if isinstance(one["mark"], dict) and one["mark"]["type"] == "line"
        ]
        assert [one["field"] for one in line["encoding"]["detail"]] == ["b", "p"]
        assert 4096 in line["encoding"]["x"]["axis"]["values"]  # the length is there, without a point


def test_who_has_no_point_is_not_passed_over_in_the_map_of_winners():
    run = loaded_run()
    assert [wild_time(one.time) for one in run.records if one.backend == "base"] == [True, True, True]
    (winner,) = [figure for figure in figures([run]) if figure.kind == "winner"]
    cells = {cell["x"]: cell for cell in winner.spec["datasets"]["cells"]}
    for length in ("1024", "2048", "4096"):  # in one in every round, and even so nobody knows its time
        assert cells[length]["n"] == NOBODY
        assert cells[length]["l"].startswith("base / own")
    titles = [figure.title for figure in figures([run]) if figure.kind == "time"]
    assert len(titles) == 3
    assert not [title for title in titles if "first" in title]


def test_who_is_not_known_to_within_itself_is_called_fastest_nowhere():
    run = loaded_run()
    assert "base is fastest" not in summary(run).sentence
    assert summary(run).sentence == "no clear winner in any of 3 cases; base has the lowest median in 3"
    (note, *_) = noted([one for one in run.records if one.case["seqlen"] == 1024])
    assert note == "no clear winner: base cannot be distinguished from own, late, later"


def test_of_a_slower_one_not_known_to_within_itself_the_fastest_may_still_be_told_apart():
    source, case = random.Random(4), make_case()
    times = {"steady": [1.0 * source.uniform(0.99, 1.01) for _ in range(15)],
             "wild": [10 ** source.uniform(1, 3) for _ in range(15)]}  # fmt: skip
    records = [dataclasses.replace(make_record(case, name, tflops=100.0), time=make_time(one))
               for name, one in times.items()]  # fmt: skip
    run = derive(make_run(records))
    assert wild_time(run.records[1].time)
    assert summary(run).sentence == "steady is fastest"  # by how much nobody knows
