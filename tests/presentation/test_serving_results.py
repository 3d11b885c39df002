"""The joint results of all rows of a serving run: a grid, the cost of doubling, and whether it works here."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from attnbench.formats.layouts.base import imported_time
from attnbench.presentation.matrix import summary
from attnbench.presentation.serving_run import doublings, grids, tails, works
from attnbench.record import Error, PlannedGroup, Record, Run, Status
from attnbench.report.html.assemble import assemble
from attnbench.store.derive import derive

RIGHT = Error(max_abs=1e-6, rel_l1=1e-6, rmse=1e-7, cosine=1.0, budget=1e-5, ok=True)


def record(batch, candidates, cached, ms, *, backend="serving-paged", timers=("wall", "cupti"), **more):
    name = f"b{batch}-t{candidates}-c{cached}"
    times = {timer: replace(imported_time(mean_ms=ms, median_ms=ms), timer=timer) for timer in timers}
    given = {
        "workload": "hstu-serving",
        "case": {"batch": batch, "num_candidates": candidates, "cached": cached, "new_tokens": 256},
        "case_id": name,
        "group": name,
        "backend": backend,
        "status": Status.PASSED,
        "time": times[timers[-1]] if timers else None,
        "timers": times,
        "errors": {"out": RIGHT},
    }
    return Record(**given | more)


def run_of(records, plan=()):
    return Run(id="abcd1234", suite="hstu-serving", command="run", started="2026-01-01", records=records, plan=plan)


def lost(status, reason, backend="serving-paged", batch=1):
    return record(batch, 128, 0, 1.0, backend=backend, timers=(), status=status, reason=reason, errors={})


SWEEP = [
    record(batch, candidates, cached, batch * (10 + candidates / 128) * (1 + cached / 1024))
    for cached in (1024, 2048)
    for batch in (8, 1, 2)
    for candidates in (256, 128)
]


def test_a_grid_has_users_down_and_candidates_across_for_each_cached_length():
    (block,) = grids(run_of(SWEEP))
    assert block.title == "serving-paged: p50 end to end, ms"
    assert [column.title for column in block.columns] == ["cached", "users", "128 candidates", "256 candidates"]
    assert [[line.cells[column.key] for column in block.columns] for line in block.lines] == [
        ["1024", "1", "22.0", "24.0"],
        ["1024", "2", "44.0", "48.0"],
        ["1024", "8", "176", "192"],
        ["2048", "1", "33.0", "36.0"],
        ["2048", "2", "66.0", "72.0"],
        ["2048", "8", "264", "288"],
    ]
    assert grids(run_of([one for one in SWEEP if one.case["batch"] == 1])) == []
    assert grids(run_of([one for one in SWEEP if one.case["num_candidates"] == 128])) == []


def test_doubling_is_of_one_quantity_by_two_and_nothing_else():
    """8 is not twice 2, nor is 0 twice anything."""
    (sentence,) = doublings(run_of([*SWEEP, record(1, 128, 0, 1.0)]))
    assert sentence == (
        "p50 end to end of serving-paged: twice the users 2.00x (2.00 to 2.00 in 4 pairs of cases), twice the candidates "
        "1.09x (1.09 to 1.09 in 6 pairs of cases), twice the cached tokens 1.50x (1.50 to 1.50 in 6 pairs of cases)"
    )
    two = [record(1, 128, 0, 1.0), record(2, 128, 0, 1.5), record(2, 256, 1024, 99.0)]
    assert doublings(run_of(two)) == ["p50 end to end of serving-paged: twice the users 1.50x"]
    assert doublings(run_of([record(1, 128, 0, 1.0, timers=("cupti",)), record(2, 128, 0, 3.0)])) == [
        "median of serving-paged: twice the users 3.00x"
    ]
    assert doublings(run_of([record(2, 128, 0, 1.0), record(8, 128, 0, 1.0)])) == []


def test_the_last_sentence_says_that_it_works_here():
    eager = record(1, 128, 0, 1.0, backend="serving-eager")
    assert works(run_of([eager, record(2, 128, 0, 1.0, backend="serving-eager")])) == [
        "works here: serving-eager gave the right logits in 2 cases"
    ]
    run = run_of([eager, lost(Status.SKIPPED, "needs a CUDA device")])
    assert works(run) == ["works here: serving-eager gave the right logits in 1 case; not here: serving-paged"]
    stopped = replace(lost(Status.SKIPPED, "interrupted by SIGTERM"), backend="serving-eager")
    assert works(run_of([eager, stopped])) == [
        "works here: serving-eager gave the right logits in 1 case; skipped in 1 case: serving-eager"
    ]
    plan = [
        PlannedGroup(group=name, workload="hstu-serving", case={}, case_id=name, backends=()) for name in ("x", "y")
    ]
    assert works(run_of([eager], plan))[0].endswith("1 case; 2 of 2 cases were not reached")
    assert works(run_of([lost(Status.SKIPPED, "needs a CUDA device")])) == []
    assert works(run_of([replace(eager, errors={})])) == [], "a time from a file says nothing of answers"
    assert works(run_of([replace(eager, workload="attention")])) == []


def test_the_last_sentence_says_what_does_not_work():
    eager = record(1, 128, 0, 1.0, backend="serving-eager")
    wrong = lost(Status.INCORRECT, "out is off\nby 3", batch=2)
    assert works(run_of([eager, wrong, lost(Status.OOM, "full", backend="other")])) == [
        "does not work here: serving-paged, other, 2 of 3 rows; incorrect in b2-t128-c0: out is off by 3"
    ]
    run = derive(run_of([eager, wrong]))
    assert summary(run).results[-1].startswith("does not work here: serving-paged, 1 of 2 rows")


def test_the_page_has_what_the_terminal_says_last():
    run = derive(run_of(SWEEP))
    page = assemble([run])
    (block,) = grids(run)
    assert block.title in page
    assert "128 candidates" in page
    assert all(escape(words) in page for words in summary(run).results)


def test_a_run_whose_rows_have_too_few_samples_for_a_tail_says_so_once():
    def rows(*counts):
        made = [record(1, 128, place, 1.0, timers=("wall",), counters={"requests": 1}) for place in range(len(counts))]
        times = [replace(one.time, num_samples=count) for one, count in zip(made, counts, strict=True)]
        return run_of([replace(one, time=time, timers={}) for one, time in zip(made, times, strict=True)])

    said = "p95 takes 20 samples of a row, p99 takes 100, a row here has {}: --iterations 100"
    assert tails(rows(12, 12)) == [said.format("12")]
    assert tails(rows(12, 100)) == [said.format("12 or more")]
    assert said.format("99") in summary(rows(99, 99)).results
    assert tails(rows(100, 1000)) == []
    assert tails(run_of([])) == []
