"""Steps predicted from the attention in them, from made-up records."""

from __future__ import annotations

import dataclasses

import pytest

from attnbench.formats.layouts.base import imported_time
from attnbench.presentation.reconcile import attention_ms, reconcile, reconciled
from attnbench.record import Record, Status


def timed(ms, mhz=None):
    time = imported_time(mean_ms=ms, median_ms=ms, p95_ms=ms, p99_ms=ms)
    return time if mhz is None else dataclasses.replace(time, samples_ms=(ms,) * 3, sm_mhz=(mhz, mhz, None))


def row(backend, step, attention, *, counters=None, copies=None, alone=None, mhz=None, busy=None):
    found = {
        name: timed(ms, mhz)
        for name, ms in (("attention", attention), ("copies", copies), ("attention alone", alone))
        if ms is not None
    }
    whole = dataclasses.replace(timed(step, mhz), busy_ms=busy)
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


def test_a_row_whose_attention_by_itself_takes_longer_than_its_step_is_left_out():
    quiet = [row(name, 10.0, 2.0, alone=0.5, counters={"denoising_steps": 1}) for name in ("one", "two")]
    noisy = row("noisy", 10.0, 2.0, alone=2.5, counters={"denoising_steps": 1})
    for first in ("one", "noisy"):
        (table,) = reconcile([*quiet, noisy], first)
        assert [one.record.backend for one in table] == ["one", "two"]
    explained, *_ = reconciled("title", [*quiet, noisy], "noisy")
    assert any(
        note.startswith("left out: noisy: attention took longer than the whole step") for note in explained.notes
    )


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
        "limit",
        "saved %",
    ]
    first, second = (line.cells for line in block.lines)
    assert (first["attention"], first["share"], first["predicted"], first["difference"]) == ("6.00", "60", "", "")
    assert (second["predicted"], second["measured"], second["rest"]) == ("6.00", "7.00", "5.00")
    assert second["difference"] == "+16.7"
    assert (first["limit"], first["saved"], second["saved"]) == ("2.50x", "", "50")
    (note,) = block.notes
    assert note.startswith(
        "predicted: the first row's step with this row's attention in place of its own; difference: "
    )


def test_a_row_whose_phases_wait_for_the_host_is_left_out_and_named():
    rows = [row("graph", 0.4, 0.03), row("launches", 0.46, 0.34), row("other", 0.5, 0.05)]
    (block,) = reconciled("a-case", rows, None)
    assert [line.cells["backend"] for line in block.lines] == ["graph", "other"]
    assert block.notes[1] == (
        "left out: launches: attention took longer than the whole step; it has few samples, and "
        "another program or the host's launches may have delayed it"
    )


STEP = {"denoising_steps": 1, "layers": 4}
GENERATED = STEP | {"generation_s": 2.0, "attention_calls": 40}


def test_a_difference_is_taken_apart_in_cycles():
    base = row("base", 100.0, 60.0, counters=STEP, alone=14.0, mhz=2000.0, busy=98.0)
    other = row("other", 80.0, 34.0, counters=STEP, alone=8.0, mhz=1800.0, copies=3.0, busy=79.0)
    ((first, mine),) = reconcile([base, other], "base")
    # By itself the attention takes 4 x 14 and 4 x 8 ms: exchanged, the step is 24 ms shorter.
    assert mine.predicted_ms == 100 - 56 + 32
    # In millions of cycles: 200 - 112 + 57.6, and 80 ms at 1800 MHz are 144.
    assert (mine.predicted_cycles, mine.cycles.step) == (pytest.approx(145.6), pytest.approx(144.0))
    assert mine.difference == pytest.approx(80 / 76 - 1)
    assert mine.difference_in_cycles == pytest.approx(144 / 145.6 - 1)
    ms = 1 / 1.8  # of a million cycles, at the row's own clock
    assert mine.residues == {
        # 34 ms in place against 32 alone at 1800 MHz, less 60 against 56 at 2000.
        "in_place": pytest.approx((3.6 - 8.0) * ms),
        "copies": pytest.approx(3.0),
        "gaps": pytest.approx((1.8 - 4.0) * ms),
        "clock": pytest.approx(4 - (144 - 145.6) * ms),
        "unexplained": pytest.approx((144 - 145.6 - (3.6 - 8.0) - 5.4 - (1.8 - 4.0)) * ms),
    }
    assert sum(mine.residues.values()) == pytest.approx(80 - 76)
    assert (first.in_place, mine.in_place) == (pytest.approx(60 / 56 - 1), pytest.approx(34 / 32 - 1))
    assert first.limit.value == pytest.approx(100 / 40)
    assert mine.saved == pytest.approx(20 / 60)
    explained, differences = reconciled("a-case", [base, other], None)
    cells = differences.lines[1].cells
    assert {name: cells[name] for name in ("in_place", "copies", "clock", "mhz", "cycles", "place")} == {
        "in_place": "-2.44",
        "copies": "+3",
        "clock": "+4.89",
        "mhz": "1800",
        "cycles": "-1.1",
        "place": "+6.2",
    }
    assert explained.lines[1].cells["alone"] == "32.0"


def test_without_clocks_nothing_is_said_of_them():
    base, other = (
        row("base", 100.0, 60.0, counters=STEP, alone=15.0),
        row("other", 80.0, 34.0, counters=STEP, alone=8.0),
    )
    ((_, mine),) = reconcile([base, other], None)
    assert (mine.cycles, mine.predicted_cycles, mine.difference_in_cycles) == (None, None, None)
    assert mine.residues["clock"] == 0
    assert mine.residues["unexplained"] == pytest.approx(80 - (100 - 60 + 32) - 2)
    _, differences = reconciled("a-case", [base, other], None)
    assert not {"clock", "mhz", "cycles"} & set(differences.lines[1].cells) - {"mhz", "cycles"}
    assert differences.lines[1].cells["mhz"] == ""


def test_a_generation_is_predicted_from_its_steps():
    base = row("base", 100.0, 60.0, counters=GENERATED, alone=15.0)
    other = row("other", 80.0, 34.0, counters=GENERATED | {"generation_s": 1.75}, alone=8.0)
    ((first, mine),) = reconcile([base, other], None)
    assert first.generation_s is None
    assert mine.generation_s == (pytest.approx(2.0 - 10 * 0.028), 1.75)
    dense = dataclasses.replace(other, case={"dense_steps": 4}, counters=other.counters | {"density": 0.5})
    ((_, mine),) = reconcile([base, dense], None)
    assert mine.generation_s[0] == pytest.approx(2.0 - 6 * 0.028)
