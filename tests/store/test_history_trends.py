"""One row's trend: row selection, separate series, level changes and the differences beside them."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import random
from pathlib import Path

import pytest
from history_places import as_read, fill, numbered
from rich.console import Console

from attnbench.errors import UsageError
from attnbench.record import Settings, Status
from attnbench.report.trend import render_losses, render_trend
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import Place
from attnbench.store.history.reading import Filters
from attnbench.store.history.trends import find_row, trends
from made_up_run import H200, make_case, make_group, make_lost, make_run, make_time

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "history.py"


def trend_of(place, text, filters=Filters(), **parts):  # noqa: B008
    with open_history(place, write=False) as history:
        return trends(history, find_row(history, text, **parts), filters)


def shifted(count, at, factor, *, noise=0.008, **changed):
    """Runs whose times are longer by `factor` from one on, with another torch."""
    lots = random.Random(5)
    return [
        numbered(
            number,
            factor=lots.gauss(1.0, noise) * (factor if number >= at else 1.0),
            torch="2.12.0" if number >= at else "2.11.0",
            **changed,
        )
        for number in range(count)
    ]


def drawn(trend, width=100, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    render_trend(trend, Console(file=stream, width=width, highlight=False))
    stream.seek(0)
    return stream.read()


# ── which row ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rows(sqlite):
    records = [
        record
        for length in (4096, 40960)
        for causal in (False, True)
        for record in make_group(
            make_case(seqlen=length, causal=causal), {"sdpa-flash": 349.0, "flash": 400.0}, samples=6
        )
    ]
    fill(sqlite, [as_read(make_run(records))])
    return sqlite


@pytest.mark.parametrize(
    ("text", "parts", "row"),
    [
        ("b1-s4096-h16-d128-bf16-fwd/flash", {}, "b1-s4096-h16-d128-bf16-fwd/flash"),
        ("s4096-h16-d128-bf16/SDPA", {}, "b1-s4096-h16-d128-bf16-fwd/sdpa-flash"),
        ("s40960-h16-d128-causal/flash", {}, "b1-s40960-h16-d128-causal-bf16-fwd/flash"),
        (None, {"case": "s4096-h16-d128-causal", "backend": "flash"}, "b1-s4096-h16-d128-causal-bf16-fwd/flash"),
    ],
)
def test_a_row_is_named_by_any_part_that_it_alone_has(rows, text, parts, row):
    with open_history(rows, write=False) as history:
        assert str(find_row(history, text, **parts)) == row


@pytest.mark.parametrize(
    ("text", "parts", "words"),
    [
        ("s4096/flash", {}, "ROW=s4096/flash fits 4 rows; one of b1-s4096-h16-d128-bf16-fwd/flash, "),
        ("fwd", {}, "ROW=fwd fits 8 rows; one of .* and 2 more$"),
        ("s9999/flash", {}, "ROW=s9999/flash fits no row in the history; such as b1-"),
        (None, {"backend": "flahs"}, "--backend=flahs fits no row in the history; .*did you mean flash"),
        (None, {"case": "s40960"}, "ROW=s40960 fits 4 rows"),
        ("postgresql://me:secret@host/x", {}, "ROW is a URL; CASE/BACKEND, and the URL after --db"),
    ],
)
def test_what_fits_none_or_several_is_answered_in_one_line(rows, text, parts, words):
    with open_history(rows, write=False) as history, pytest.raises(UsageError, match=words) as error:
        find_row(history, text, **parts)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


# ── a trend ────────────────────────────────────────────────────────────────────────────────────────


def test_a_shift_is_found_with_what_changed_beside_it(place):
    runs = shifted(40, 22, 1.04)
    fill(place, runs[::-1])
    [trend], losses = trend_of(place, "sdpa-cudnn")
    assert losses == []
    assert [point.run_id for point in trend.points] == [run.id for run in runs]
    times = [run.records[1].time for run in runs]
    assert [(point.median_ms, point.low_ms, point.high_ms) for point in trend.points] == [
        (time.median_ms, time.ci_low_ms, time.ci_high_ms) for time in times
    ]
    [change] = trend.changes
    assert abs(change.index - 22) <= 2
    assert change.ratio == pytest.approx(1.04, abs=0.01)
    assert change.differences == ("torch 2.11.0 → 2.12.0",)
    assert change.index + change.offset == 22
    page = drawn(trend)
    assert "4 % slower" in page or "3.9 % slower" in page or "4.1 % slower" in page
    assert "changed torch 2.11.0 → 2.12.0" in page
    assert "┊" in page
    assert "b1-s16384-h16-d128-bf16-fwd/sdpa-cudnn   NVIDIA H200, timer cupti, cold L2, burst" in page


def test_times_near_the_largest_number_are_drawn(sqlite):
    """A damaged database may hold them: in microseconds they are infinite."""
    fill(sqlite, [numbered(number) for number in range(3)])
    [trend], _ = trend_of(sqlite, "cudnn")
    least, *most = trend.points
    least = dataclasses.replace(least, median_ms=1e-3, low_ms=1e-3, high_ms=1e-3)
    damaged = [dataclasses.replace(point, median_ms=1.7e308, low_ms=1e308, high_ms=1.7e308) for point in most]
    assert "inf" in drawn(dataclasses.replace(trend, points=(least, *damaged)))


def test_another_kernel_or_source_is_named(sqlite):
    runs = []
    for number, run in enumerate(shifted(30, 15, 0.9)):
        records = [
            dataclasses.replace(
                item, kernels=(f"kernel_v{1 + (number >= 15)}",), source_hash="a" * 40 if number < 15 else "b" * 40
            )
            for item in run.records
        ]
        runs.append(as_read(dataclasses.replace(run, records=tuple(records), environments=(H200,))))
    fill(sqlite, runs)
    [trend], _ = trend_of(sqlite, "cudnn")
    assert trend.changes[0].differences == ("source aaaaaaaa → bbbbbbbb", "kernels kernel_v1 → kernel_v2")
    assert "faster" in drawn(trend)


def test_steady_runs_and_few_runs_have_no_change(sqlite):
    fill(sqlite, [numbered(number, factor=1.0 + 0.001 * (number % 3)) for number in range(14)])
    [trend], _ = trend_of(sqlite, "cudnn")
    assert trend.changes == ()
    assert "no change of level in 14 runs" in drawn(trend)
    [short], _ = trend_of(sqlite, "cudnn", Filters(limit=5))
    assert [point.run_id for point in short.points] == [f"{number:08x}" for number in range(9, 14)]
    assert "no change is looked for in fewer than 12 runs" in drawn(short)


CONDITIONS = {
    "timer": lambda run: with_time(run, timer="events"),
    "l2": lambda run: with_time(run, l2="warm"),
    "regime": lambda run: with_time(run, regime="sustained"),
    "config": lambda run: with_record(run, config="bm128"),
    "machine": lambda run: dataclasses.replace(run, environments=(dataclasses.replace(H200, gpu="NVIDIA B200"),)),
    "input": lambda run: dataclasses.replace(run, settings=Settings(device="cuda", input="zeros")),
    "lock_clocks": lambda run: dataclasses.replace(run, settings=Settings(device="cuda", lock_clocks="1500")),
}


def with_record(run, **changed):
    return dataclasses.replace(run, records=tuple(dataclasses.replace(item, **changed) for item in run.records))


def with_time(run, **changed):
    return dataclasses.replace(
        run,
        records=tuple(
            dataclasses.replace(item, time=dataclasses.replace(item.time, **changed)) for item in run.records
        ),
    )


@pytest.mark.parametrize("name", CONDITIONS)
def test_times_under_other_conditions_are_a_series_of_their_own(sqlite, name):
    others = [as_read(CONDITIONS[name](numbered(number))) for number in (5, 6, 7)]
    fill(sqlite, [*(numbered(number) for number in range(5)), *others])
    first, second = trend_of(sqlite, "cudnn")[0]
    assert [len(first.points), len(second.points)] == [5, 3]
    assert getattr(first, name) != getattr(second, name)
    assert str(getattr(second, name)) in drawn(second)


def test_every_timer_of_a_run_is_a_series(sqlite):
    run = numbered(0)
    graph = make_time([2.0, 2.1, 2.2], timer="graph")
    records = [dataclasses.replace(item, timers={"cupti": item.time, "graph": graph}) for item in run.records]
    fill(sqlite, [as_read(dataclasses.replace(run, records=tuple(records)))])
    found, _ = trend_of(sqlite, "cudnn")
    assert {trend.timer: trend.points[0].median_ms for trend in found} == {
        "cupti": run.records[1].time.median_ms,
        "graph": 2.1,
    }


def test_processes_of_one_run_are_one_point(sqlite):
    run = numbered(0)
    records = [
        dataclasses.replace(
            item,
            replicate=replicate,
            time=make_time([1.0 + 0.1 * replicate] * 6),
            group=f"{item.group}#{replicate}" if replicate else item.group,
        )
        for replicate in range(3)
        for item in run.records
    ]
    fill(sqlite, [as_read(dataclasses.replace(run, records=tuple(records)))])
    [trend], _ = trend_of(sqlite, "cudnn")
    [point] = trend.points
    assert (point.median_ms, point.low_ms, point.high_ms) == pytest.approx((1.1, 1.0, 1.2))
    assert (point.processes, point.num_samples) == (3, 18)
    assert "18 in 3 processes" in drawn(trend)


def test_runs_in_which_a_row_did_not_pass_are_counted(sqlite):
    lost = as_read(
        make_run(
            [make_lost(make_case(), "sdpa-cudnn", Status.INCORRECT, "out: max_abs=0.3")],
            id="000000ff",
            started="2026-06-01T00:00:00Z",
        )
    )
    fill(sqlite, [numbered(0), lost])
    [trend], losses = trend_of(sqlite, "cudnn")
    assert len(trend.points) == 1
    [loss] = losses
    assert (loss.run_id, loss.status, loss.reason) == ("000000ff", "incorrect", "out: max_abs=0.3")
    stream = io.StringIO()
    render_losses(losses, Console(file=stream, width=200))
    assert stream.getvalue() == (
        "did not pass in 1 run; the latest: 000000ff of 2026-06-01, incorrect, out: max_abs=0.3\n"
    )


def test_a_suite_and_a_date_narrow_a_trend(sqlite):
    fill(sqlite, [numbered(0), numbered(1, suite="other"), numbered(2)])
    assert len(trend_of(sqlite, "cudnn", Filters(suite="other"))[0][0].points) == 1
    assert len(trend_of(sqlite, "cudnn", Filters(since="2026-01-02T00:00:00Z"))[0][0].points) == 2


# ── drawing ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1, 2, 13, 60, 400])
@pytest.mark.parametrize("width", [40, 100])
def test_a_plot_fits_its_page(sqlite, count, width):
    run = numbered(0)
    fill(sqlite, [run])
    [trend], _ = trend_of(sqlite, "cudnn")
    lots = random.Random(1)
    points = tuple(
        dataclasses.replace(trend.points[0], median_ms=lots.gauss(1.0, 0.01), low_ms=0.99, high_ms=1.01)
        for _ in range(count)
    )
    page = drawn(dataclasses.replace(trend, points=points), width)
    plot = [line for line in page.splitlines() if "●" in line]
    assert plot
    assert max(map(len, page.split("no change")[0].splitlines()[2:])) <= width


def test_an_outlier_does_not_flatten_the_plot(sqlite):
    fill(sqlite, [numbered(number, factor=8.0 if number == 50 else 1.0 + 0.01 * (number % 3)) for number in range(60)])
    page = drawn(trend_of(sqlite, "cudnn")[0][0])
    assert "▲" in page
    assert len([line for line in page.splitlines() if "●" in line]) >= 3


def test_an_interval_to_the_end_of_the_numbers_is_drawn_to_the_edge(sqlite):
    fill(sqlite, [numbered(number) for number in range(20)])
    [trend], _ = trend_of(sqlite, "cudnn")
    points = (dataclasses.replace(trend.points[0], high_ms=1.7e308), *trend.points[1:])
    assert "●" in drawn(dataclasses.replace(trend, points=points))


def test_a_terminal_without_the_signs_gets_plain_letters(sqlite):
    fill(sqlite, shifted(40, 20, 1.05))
    page = drawn(trend_of(sqlite, "cudnn")[0][0], encoding="ascii")
    assert "?" not in page
    assert "torch 2.11.0 -> 2.12.0" in page
    assert " o" in page


# ── the benchmark, scaled down ─────────────────────────────────────────────────────────────────────


def test_the_benchmark_fills_and_asks(tmp_path):
    spec = importlib.util.spec_from_file_location("history_benchmark", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    place = Place("history.sqlite", tmp_path / "history.sqlite")
    benchmark.fill(place, runs=80, rows=9, samples=12)  # of 24 runs, 3 % at 1 % is within what every look may show
    parts, changes = benchmark.ask(place, 0)
    assert changes == 1
    assert benchmark.ask(place, 1)[1] == 0
    assert set(parts) == {"open_ms", "find_row_ms", "trend_ms", "all_ms", "cpu_ms"}
    # A plan that reads the whole table would not do for a million points.
    with open_history(place, write=False) as history, history.begin():
        plan = history.exec_driver_sql(
            'EXPLAIN QUERY PLAN SELECT p.*, r.id FROM attnbench_points p JOIN attnbench_runs r ON r."key" = p.run '
            "WHERE p.series = 1 AND 1 = 1 ORDER BY r.started"
        ).all()
    assert "SEARCH p USING PRIMARY KEY (series=?)" in str(plan)
    assert "SCAN p" not in str(plan)
