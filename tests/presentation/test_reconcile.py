"""Steps predicted from the attention in them, from made-up records."""

from __future__ import annotations

import dataclasses

import pytest

from attnbench.formats.layouts.base import imported_time
from attnbench.presentation.reconcile import attention_ms, reconcile, reconciled
from attnbench.record import Record, Status


def row(backend, step, attention, *, counters=None, copies=None):
    found = {
        name: imported_time(mean_ms=ms, median_ms=ms, p95_ms=ms, p99_ms=ms)
        for name, ms in (("attention", attention), ("copies", copies))
        if ms is not None
    }
    whole = imported_time(mean_ms=step, median_ms=step, p95_ms=step, p99_ms=step)
    return Record(
        workload="hstu-serving",
        case={},
        case_id="a-case",
        group="a",
        backend=backend,
        status=Status.PASSED,
        time=whole,
        phases=found,
        counters={"layers": 4, **(counters or {"requests": 2})},
    )


def test_a_step_is_predicted_by_exchanging_the_attention():
    rows = [row("slow", 10.0, 1.5), row("quick", 7.0, 0.5), row("quicker", 4.4, 0.1)]
    (table,) = reconcile(rows, "slow")
    assert [one.record.backend for one in table] == ["slow", "quick", "quicker"]
    assert [one.attention_ms for one in table] == [6.0, 2.0, pytest.approx(0.4)]
    assert [one.predicted_ms for one in table] == [None, 6.0, pytest.approx(4.4)]
    assert table[0].difference is None
    assert table[1].difference == pytest.approx(1 / 6)
    assert table[2].difference == pytest.approx(0, abs=1e-12)
    (other,) = reconcile(rows, "quicker")
    assert [one.record.backend for one in other] == ["quicker", "slow", "quick"]
    assert other[1].predicted_ms == pytest.approx(4.4 - 0.4 + 6.0)


def test_phases_of_rows_that_serve_are_of_one_layer_and_others_of_the_step():
    assert attention_ms(row("a", 9.0, 1.0)) == 4.0
    assert attention_ms(row("a", 9.0, 1.0, counters={"denoising_steps": 1})) == 1.0
    assert attention_ms(row("a", 9.0, 1.0, copies=0.5, counters={"denoising_steps": 1})) == 1.5
    assert attention_ms(row("a", 9.0, None)) is None
    assert attention_ms(row("a", 9.0, 1.0, counters={"requests": 1, "layers": 0})) is None


def test_a_phase_that_waits_for_the_host_counts_by_its_kernels():
    late = row("eager", 4.0, 3.0)
    late.phases["attention"] = dataclasses.replace(late.phases["attention"], busy_ms=0.5)
    assert attention_ms(late) == 2.0
    (table,) = reconcile([row("graph", 3.0, 0.25), late], None)
    assert [one.predicted_ms for one in table] == [None, 4.0]
    assert reconcile([row("graph", 3.0, 0.25), row("slower apart", 4.0, 1.5)], None) == []


def test_only_rows_that_compute_the_same_are_compared():
    cached, whole = {"requests": 2, "missed_tokens": 8}, {"requests": 2, "missed_tokens": 70}
    rows = [
        row("a", 5.0, 0.5, counters=cached),
        row("a[no-cache]", 50.0, 5.0, counters=whole),
        row("b", 4.0, 0.3, counters=cached),
        row("b[no-cache]", 45.0, 4.0, counters=whole),
        row("c", 3.0, 0.1, counters={"requests": 2, "missed_tokens": 20}),
        row("d", 3.0, None, counters=cached),
    ]
    tables = reconcile(rows, "b[no-cache]")
    assert [[one.record.backend for one in table] for table in tables] == [["a", "b"], ["b[no-cache]", "a[no-cache]"]]
    assert reconcile(rows[:2], None) == []


def test_a_table_says_predicted_measured_and_difference():
    (block,) = reconciled("a-case", [row("slow", 10.0, 1.5), row("quick", 7.0, 0.5)], None)
    assert [column.title for column in block.columns] == [
        "explained, ms",
        "attention",
        "attention %",
        "the rest",
        "predicted",
        "measured",
        "difference %",
    ]
    first, second = (line.cells for line in block.lines)
    assert (first["attention"], first["share"], first["predicted"], first["difference"]) == ("6.00", "60", "", "")
    assert (second["predicted"], second["measured"], second["rest"]) == ("6.00", "7.00", "5.00")
    assert second["difference"] == "+16.7"
    assert block.notes == (
        "predicted: the first row's step with this row's attention in place of its own; difference: "
        "measured against predicted",
    )


def test_a_row_whose_phases_wait_for_the_host_is_left_out_and_named():
    rows = [row("graph", 0.4, 0.03), row("launches", 0.46, 0.34), row("other", 0.5, 0.05)]
    (block,) = reconciled("a-case", rows, None)
    assert [line.cells["backend"] for line in block.lines] == ["graph", "other"]
    assert block.notes[1] == (
        "left out: launches: attention took longer than the whole step; it has few samples, and "
        "another program or the host's launches may have delayed it"
    )
