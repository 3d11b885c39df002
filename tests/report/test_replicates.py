"""Runs with replicates whose combined result is known by hand, on a terminal, in Markdown and in rows."""

import dataclasses
import io
import math
import statistics

import pytest
from rich.console import Console

from attnbench.formats.exports import md
from attnbench.record import Memory, Settings, Status
from attnbench.report.table import render_run
from attnbench.store.derive import derive
from attnbench.store.rows import rows
from made_up_run import case_id, make_case, make_lost, make_record, make_run, make_time

# Student's t at 0.975 as tables print it: 1, 2 and 4 degrees of freedom.
QUANTILE = {2: 12.706, 3: 4.303, 5: 2.776}
RATIOS = (1.10, 1.14, 1.12, 1.18, 1.09)
BASE_MS = (2.0, 2.3, 2.1, 2.2, 1.9)


def record_of(backend, replicate, median_ms, case=None, **changed):
    """Twenty equal samples, so that a process is its median."""
    case = case or make_case()
    name = case_id(case)
    return make_record(
        case,
        backend,
        tflops=1.0,
        time=make_time([median_ms] * 20),
        replicate=replicate,
        group=f"{name}#{replicate}" if replicate else name,
        **changed,
    )


def pair(count, case=None):
    """Process after process: `slow`, the baseline, and `fast` with the ratios above."""
    return [
        [record_of("slow", index, base, case), record_of("fast", index, base / ratio, case)]
        for index, (base, ratio) in enumerate(zip(BASE_MS[:count], RATIOS, strict=False))
    ]


def run_of(processes, **changed):
    return make_run(
        [record for process in processes for record in process],
        **{"settings": Settings(device="cuda", baseline="slow", replicates=len(processes)), **changed},
    )


def printed(run, width=200):
    text = io.StringIO()
    render_run(derive(run), Console(file=text, width=width))
    return text.getvalue()


def cells(text, backend):
    """The words of a line; the mark of the fastest is none."""
    return next(line for line in text.splitlines() if line.startswith(backend)).replace(" *", "").split()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_case_has_one_table_over_its_processes(count):
    text = printed(run_of(pair(count)))
    assert text.count("timer cupti") == 1
    assert "replicate" not in text
    assert " ".join(cells(text, "backend")).startswith("backend median ms spread vs slow 95 % processes TFLOP/s")
    logs = [math.log(ratio) for ratio in RATIOS[:count]]
    centre, half = statistics.fmean(logs), QUANTILE[count] * statistics.stdev(logs) / math.sqrt(count)
    _, median, spread, ratio, margin, verdict, processes, *_ = cells(text, "fast")
    own = [base / ratio for base, ratio in zip(BASE_MS, RATIOS, strict=True)][:count]
    assert float(median) == pytest.approx(statistics.median(own), abs=0.006)
    assert float(spread) == pytest.approx(max(own) - min(own), abs=0.006)
    assert float(ratio.rstrip("x")) == pytest.approx(math.exp(centre), rel=0.02)
    assert float(margin.lstrip("±")) == pytest.approx(math.exp(centre + half) - math.exp(centre), abs=0.006)
    assert verdict == {2: "unclear", 3: "faster", 5: "faster"}[count]
    assert processes == str(count)
    assert cells(text, "slow")[3:5] == ["baseline", str(count)]
    assert str(20 * count) in cells(text, "fast")


def test_two_processes_of_no_difference_leave_the_winner_open():
    assert "note  no clear winner: fast cannot be distinguished from slow" in printed(run_of(pair(2)))
    assert "no clear winner" not in printed(run_of(pair(3)))


def test_markdown_shows_the_same_table():
    text = md.render(derive(run_of(pair(3)))).decode()
    (row,) = [line for line in text.splitlines() if line.startswith("| fast")]
    shown = [cell.strip() for cell in row.split("|")[1:-1]]
    assert shown[0] == r"fast \*"
    assert shown[1:7] == cells(printed(run_of(pair(3))), "fast")[1:7]
    assert text.count("###") == 1
    assert text.endswith("of the processes.\n")
    assert text.count("± the longer arm") == 1


def test_rows_keep_every_process():
    found = rows(derive(run_of(pair(3))))
    assert [(row["backend"], row["replicate"]) for row in found] == [
        (name, index) for index in range(3) for name in ("slow", "fast")
    ]
    assert [row["time.median_ms"] for row in found[::2]] == list(BASE_MS[:3])
    assert [row["speedup.ratio"] for row in found[1::2]] == pytest.approx(RATIOS[:3])


def test_a_process_that_failed_is_counted_and_said():
    first, second, third = pair(3)
    case = make_case()
    lost = make_lost(case, "fast", Status.CRASHED, "signal 11 during first call")
    second[1] = dataclasses.replace(lost, replicate=1, group=f"{case_id(case)}#1")
    text = printed(run_of([first, second, third]))
    row = cells(text, "fast")
    assert float(row[1]) == pytest.approx((2.0 / 1.10 + 2.1 / 1.12) / 2, abs=0.006)
    assert row[6:9] == ["2", "of", "3"]
    assert float(row[3].rstrip("x")) == pytest.approx(math.sqrt(1.10 * 1.12), abs=0.006)
    assert cells(text, "slow")[4] == "3"
    assert "crashed  fast  signal 11 during first call (1 of 3 processes)" in text


def test_a_backend_that_a_process_lacks_is_counted():
    first, second, third = pair(3)
    text = printed(run_of([first, second, third[:1]]))
    assert cells(text, "fast")[6:9] == ["2", "of", "3"]
    assert "crashed" not in text


def test_a_baseline_without_a_time_takes_its_ratio_along():
    first, second, third = pair(3)
    text = printed(run_of([first, second[1:], third]))
    row = cells(text, "fast")
    assert row[6] == "3"
    assert float(row[3].rstrip("x")) == pytest.approx(math.sqrt(1.10 * 1.12), abs=0.006)
    assert "note  fast: its speed-up is of 2 of 3 processes, the baseline has no time in the others" in text


def test_a_single_ratio_has_no_interval_over_processes():
    first, second = pair(2)
    row = cells(printed(run_of([first, second[:1]])), "fast")
    assert row[1:4] == ["1.82", "1.10x", "unclear"]
    assert row[4:7] == ["1", "of", "2"]


def test_a_run_stopped_in_its_first_replicate_is_a_plain_run():
    plan = run_of(pair(3)).plan
    text = printed(run_of(pair(1), plan=plan))
    assert "processes" not in text
    assert "±0.00" in text


def test_what_a_process_lost_everywhere_is_said_once():
    cases = [make_case(seqlen=length) for length in (63, 127)]
    found = [
        [
            record
            for case in cases
            for record in (
                *pair(2, case)[index],
                dataclasses.replace(
                    make_lost(case, "gone", Status.SKIPPED, "not installed"),
                    replicate=index,
                    group=case_id(case) + (f"#{index}" if index else ""),
                ),
            )
        ]
        for index in range(2)
    ]
    text = printed(run_of(found))
    assert text.count("gone") == 2
    assert "skipped  gone  not installed (all 2 cases)" in text
    assert text.count("timer cupti") == 3


def test_many_cases_are_rows_of_one_matrix():
    cases = [make_case(seqlen=64 + index) for index in range(41)]
    found = [[record for case in cases for record in pair(3, case)[index]] for index in range(3)]
    text = printed(run_of(found))
    assert sum("fast *" in line for line in text.splitlines()) == 41
    assert sum(line.startswith("s") and line[1:3].isdigit() for line in text.splitlines()) == 41
    assert "fast is fastest in 41 of 41 cases; " in text
    assert max(map(len, printed(run_of(found), width=80).splitlines())) <= 80


def test_a_narrow_page_keeps_the_interval_over_processes_and_their_number():
    text = printed(run_of(pair(3)), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert cells(text, "fast")[1:8] == cells(printed(run_of(pair(3))), "fast")[1:8]


def test_the_worst_of_the_processes_is_the_tables():
    (one, other), *_ = pair(1)
    error = dataclasses.replace(other.errors["out"], max_abs=8e-4)
    again = record_of("fast", 1, 1.0, errors={"out": error}, memory=Memory(peak_allocated_mb=300.0))
    text = printed(run_of([[one, other], [record_of("slow", 1, 2.0), again]]))
    assert {"8.0e-04", "300.0"} <= set(cells(text, "fast"))


def test_timers_and_phases_are_over_processes_too():
    def timed(index, factor):
        record = record_of("fast", index, 1.0)
        times = {"cupti": make_time([factor] * 9), "events": make_time([2 * factor] * 9)}
        return dataclasses.replace(record, timers=times, phases={"plan": make_time([3 * factor] * 9)})

    run = run_of([[timed(index, factor)] for index, factor in enumerate((1.0, 1.5, 1.25))])
    lines = [line.split() for line in printed(run).splitlines()]
    at = lines.index(["by", "timer,", "ms", "cupti", "events"])
    assert lines[at + 1] == ["fast", "1.25", "2.50"]
    assert ["fast", "plan", "3.75"] in lines


def test_a_spent_budget_names_the_processes():
    first, second = pair(2)
    cut = [dataclasses.replace(item, time=dataclasses.replace(item.time, stopped_by="max-seconds")) for item in second]
    assert "stopped by --max-seconds in 1 of 2 processes" in printed(run_of([first, cut]))
