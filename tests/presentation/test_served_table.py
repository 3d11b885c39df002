"""The table of serving rows: end-to-end and device times, shares of phases, and unknown values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.formats.layouts.base import imported_time
from attnbench.presentation.details import details
from attnbench.presentation.serving import attention_share, end_to_end, growth, hit_share, of_the_device, serving
from attnbench.record import Record, Status
from made_up_run import make_run


def time(timer, median, **more):
    return replace(
        imported_time(mean_ms=median, median_ms=median, p95_ms=2 * median, p99_ms=4 * median), timer=timer, **more
    )


def record(*, headline="wall", timers=(), counters=None, phases=None):
    counts = {"requests": 8, "tokens": 4000, "layers": 2, "hit_tokens": 60, "host_hit_tokens": 20, "missed_tokens": 20}
    times = {"strip": 1, "projection": 2, "attention": 5, "output": 1, "head": 1} if phases is None else phases
    return Record(
        workload="hstu-serving",
        case={"batch": 8},
        case_id="b8",
        group="b8",
        backend="row",
        status=Status.PASSED,
        time=time(headline, 2.0, host_ms=0.5),
        timers={name: time(name, ms, host_ms=0.25) for name, ms in dict(timers).items()},
        phases={name: time("wall", ms) for name, ms in times.items()},
        counters=counts if counters is None else counters,
    )


def cells(one):
    (block,) = serving("title", [one])
    return {column.title: block.lines[0].cells.get(column.key, "") for column in block.columns}


def test_on_a_cpu_all_is_end_to_end_and_there_is_no_gpu():
    assert cells(record()) == {
        "served, ms": "row",
        "p50": "2.00",
        "p95": "4.00",
        "p99": "8.00",
        "requests/s": "4000",
        "tokens/s": "2000000",
        "hit %": "60",
        "host hit %": "20",
        "attention %": "56",
        "without it": "2.25x",
    }


@pytest.mark.parametrize(
    ("samples", "shown"), [(12, []), (19, []), (20, ["p95"]), (99, ["p95"]), (100, ["p95", "p99"])]
)
def test_a_percentile_that_the_samples_do_not_support_is_not_shown(samples, shown):
    one = record()
    found = cells(replace(one, time=replace(one.time, num_samples=samples)))
    assert [name for name in ("p95", "p99") if name in found] == shown
    assert found["p50"] == "2.00"


def test_on_a_gpu_the_wall_is_end_to_end_and_its_part_stands_apart():
    one = record(headline="cupti", timers={"cupti": 2.0, "wall": 3.0, "events": 2.5})
    assert end_to_end(one).median_ms == 3.0
    assert of_the_device(one).median_ms == 2.0
    found = cells(one)
    assert (found["p50"], found["GPU"], found["host"], found["requests/s"]) == ("3.00", "2.00", "0.250", "2667")
    alone = record(headline="events")
    assert end_to_end(alone) is None
    assert "p50" not in cells(alone)
    assert cells(alone)["GPU"] == "2.00"


def test_evicted_users_are_said_where_there_can_be_any():
    assert "evicted" not in cells(record())
    for count in (0, 7):
        assert cells(record(counters={"requests": 8, "evicted_users": count}))["evicted"] == str(count)


def test_phases_of_a_layer_count_for_every_layer():
    assert attention_share(record()) == pytest.approx(2 * 5 / (1 + 2 * (2 + 5 + 1) + 1))
    assert attention_share(record(phases={})) is None
    assert attention_share(record(phases={"strip": 1})) is None
    assert attention_share(record(counters={"requests": 8})) is None


def test_what_is_not_counted_is_not_said():
    assert serving("title", [record(counters={})]) == []
    found = cells(record(counters={"requests": 8}))
    assert not {"hit %", "tokens/s", "attention %", "pool MiB"} & found.keys()
    assert hit_share(record(counters={"hit_tokens": 3, "host_hit_tokens": 0, "missed_tokens": 0}), "hit_tokens") == 1
    assert (
        hit_share(record(counters=dict.fromkeys(("hit_tokens", "host_hit_tokens", "missed_tokens"), 0)), "hit_tokens")
        is None
    )


def test_growth_is_a_line_a_backend_at_its_first_step_doublings_and_its_last():
    grown = record(phases={f"cached {256 * number}": 1 + number / 10 for number in range(64)})
    (block,) = growth("title", [grown, record()])
    assert len(block.lines) == 1
    titles = [column.title for column in block.columns]
    assert titles == ["p50 by cached tokens, ms", *map(str, (0, 256, 512, 1024, 2048, 4096, 8192, 16128))]
    assert [block.lines[0].cells[column.key] for column in block.columns] == [
        "row", "1.00", "1.10", "1.20", "1.40", "1.80", "2.60", "4.20", "7.30",
    ]  # fmt: skip
    assert growth("title", [record()]) == []
    titles = [[column.title for column in block.columns] for block in details(make_run([grown]), "title", [grown])]
    assert all("phase" not in words for words in titles), "not a line a step as well"
