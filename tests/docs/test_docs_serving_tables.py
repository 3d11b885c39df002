"""Rows of the tables of ranking steps: which record fills each cell, and what is compared."""

from __future__ import annotations

from dataclasses import replace

import serving_tables as tables

from attnbench.formats.layouts.base import imported_time
from attnbench.record import Record, Speedup, Status
from made_up_run import make_run


def record(name, wall, gpu, *, counters=None, speedup=None, **case):
    case = {"batch": 2, "num_candidates": 128, "cached": 4096, "cache": "gpu-hit", "on_host_hit": "reload"} | case
    time = replace(imported_time(mean_ms=gpu, median_ms=gpu), timer="cupti")
    percentiles = {"p95_ms": 2 * wall, "p99_ms": 3 * wall, "num_samples": 1000}
    whole = replace(imported_time(mean_ms=wall, median_ms=wall), timer="wall", **percentiles)
    key = "-".join(map(str, case.values()))
    short = name.partition("[")[2].rstrip("]") or None
    return Record(
        workload="hstu-serving",
        case=case,
        case_id=key,
        group=key,
        backend=name,
        config=short,
        status=Status.PASSED,
        time=time,
        timers={"cupti": time, "wall": whole},
        counters=counters or {"requests": 2.0},
        speedup=None if speedup is None else Speedup(baseline="base", ratio=speedup, verdict="faster"),
    )


def test_a_case_is_a_line_and_each_way_a_column():
    records = [
        record(tables.BASE, 4.0, 3.0),
        record(tables.GRAPH, 1.0, 0.5, speedup=6.0),
        record(tables.EAGER, 5.0, 0.6),
        record(tables.GRAPH, 2.0, 1.5, cached=0),
    ]
    assert tables.sweep_rows([make_run(records)]) == [
        ["2 × 128", "0", "2 ms", "1.5 ms", "1000", "", "", "", "", ""],
        ["2 × 128", "4096", "1 ms", "0.5 ms", "2000", "", "3 ms", "6.00×", "5 ms", ""],
    ]


def test_auto_is_held_against_the_better_of_both():
    how = {"reload": 3.0, "recompute": 2.0, "auto": 2.05}
    records = [record(tables.GRAPH, ms, 1.0, cache="host-hit", on_host_hit=name) for name, ms in how.items()]
    records.append(record(tables.BASE, 1.9, 1.8, cache="host-hit"))
    assert tables.host_hit_rows(make_run(records)) == [
        ["2 × 128", "4096", "3 ms", "2 ms", "2.05 ms", "1.025×", "1.9 ms"]
    ]


def test_times_of_a_pool_are_of_one_step():
    counts = {"requests": 16.0, "evicted_users": 5.0, "hit_tokens": 60.0, "missed_tokens": 40.0, "host_hit_tokens": 0.0}
    records = [record(tables.GRAPH, 8.0, 4.0, counters=counts, cache="pool", pool_share=0.4, speedup=1.5)]
    assert tables.pool_rows(make_run(records)) == [
        ["2", "128", "40 % of all users", "60 %", "5", "1 ms", "0.5 ms", "1.50×"]
    ]


def test_a_step_is_predicted_from_the_attention_of_the_first_row():
    def row(name, attention, gpu):
        phases = {"attention": replace(imported_time(mean_ms=attention, median_ms=attention), timer="cupti")}
        return replace(record(name, 9.0, gpu, counters={"layers": 8, "requests": 2}), phases=phases)

    rows = tables.explained_rows(make_run([row(tables.EAGER, 0.25, 4.0), row(tables.GATHERED, 0.5, 6.6)]))
    assert [one[1:6] for one in rows] == [
        [f"`{tables.EAGER}`", "2 ms", "", "4 ms", ""],
        [f"`{tables.GATHERED}`", "4 ms", "6 ms", "6.6 ms", "+10.0 %"],
    ]
    clock = replace(row(tables.GATHERED, 0.5, 6.6), phases={"attention": imported_time(mean_ms=0.5, median_ms=0.5)})
    walled = replace(clock, phases={"attention": replace(clock.phases["attention"], timer="wall")})
    assert tables.explained_rows(make_run([row(tables.EAGER, 0.25, 4.0), walled])) == []


def test_percentiles_of_many_steps():
    assert tables.step_rows(make_run([record(tables.GRAPH, 1.0, 0.5)]))[0][:7] == [
        "2 × 128",
        "4096",
        "1000",
        "1 ms",
        "2 ms",
        "3 ms",
        "3.00",
    ]
