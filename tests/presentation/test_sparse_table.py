"""Rates of sparse rows: executed and effective, density, E; predicted maps; where sparsity begins to pay."""

from __future__ import annotations

import pytest

from attnbench.formats.layouts.base import imported_run, imported_time
from attnbench.presentation import sparse
from attnbench.presentation.columns import KEYS, VALUES, baselines, line_of
from attnbench.presentation.figures import unit_for
from attnbench.presentation.matrix import summary
from attnbench.record import Rate, Record, Speedup, Status, Work

DENSE_FLOPS = 4 * 10**12


def record(
    backend="flash-sparse", ratio=2.5, *, seqlen=1024, share=0.3, baseline="dense[sdpa-cudnn]", counters=None, **case
):
    work = Work(flops=int(share * DENSE_FLOPS), bytes=10**6, dense_flops=DENSE_FLOPS)
    return Record(
        workload="sparse",
        case={"seqlen": seqlen, "seqlen_k": seqlen, "causal": False, **case},
        case_id=f"s{seqlen}",
        group=f"s{seqlen}",
        backend=backend,
        status=Status.PASSED,
        work=work,
        rate=Rate.of(work, 2.0),
        time=imported_time(mean_ms=2.0, median_ms=2.0),
        counters=counters or {},
        speedup=Speedup(baseline=baseline, ratio=ratio) if ratio else None,
    )


def test_two_rates_never_share_a_column_and_e_is_speed_up_times_density():
    one = record()
    unit = unit_for([2.0])
    cells = line_of(one, unit, baselines([one]), fastest=False).cells
    assert (cells["tflops"], cells["effective"], cells["density"], cells["efficiency"]) == (
        "600",
        "2000",
        "0.300",
        "0.750",
    )
    assert VALUES["efficiency"](one) == pytest.approx(0.75)
    assert {"tflops", "effective", "density", "efficiency"} <= set(KEYS)


@pytest.mark.parametrize(
    ("backend", "ratio", "baseline"),
    [("dense[sdpa-flash]", 1.1, "dense[sdpa-cudnn]"), ("flash-sparse", None, ""), ("flash-sparse", 2.0, "sparse-flex")],
)
def test_e_is_of_a_sparse_row_against_a_dense_one(backend, ratio, baseline):
    assert sparse.efficiency(record(backend, ratio, baseline=baseline)) is None


def test_a_row_of_another_workload_has_none_of_it():
    one = Record(
        workload="attention",
        case={"seqlen": 8},
        case_id="s8",
        group="s8",
        backend="eager",
        status=Status.PASSED,
        work=Work(flops=8, bytes=8),
    )
    assert sparse.cells(one) == {"effective": "", "density": "", "efficiency": ""}
    assert sparse.maps("title", [one]) == []


def test_a_predicted_map_says_what_it_keeps():
    counters = {"density": 0.25, "mass_kept": 0.9125, "dense_rel_l1": 0.0625}
    (block,) = sparse.maps("title", [record(counters=counters), record()])
    (line,) = block.lines
    assert [line.cells[column.key] for column in block.columns] == ["flash-sparse", "0.250", "75.0", "91.25", "0.062"]


def sentences(ratios, **more):
    return sparse.break_even([record(ratio=ratio, seqlen=length, **more) for length, ratio in ratios.items()])


def test_break_even_is_where_a_backend_begins_to_be_faster_and_stays_so():
    assert sentences({1024: 0.5, 4096: 2.0, 16384: 3.0}) == [
        "break-even: flash-sparse is faster than dense[sdpa-cudnn] from about 2048 rows on (density 0.30)"
    ]
    assert sentences({4096: 2.0, 1024: 1.5}, causal=True) == [
        "break-even: flash-sparse is faster than dense[sdpa-cudnn] at every length from 1024 rows on "
        "(density 0.30, causal)"
    ]
    assert sentences({1024: 2.0, 4096: 0.9}) == [
        "break-even: flash-sparse is not faster than dense[sdpa-cudnn] at 4096 rows (density 0.30)"
    ]
    assert sentences({1024: 2.0}) == []
    mixed = sparse.break_even(
        [record(seqlen=length, density=share, ratio=1.5) for length in (1024, 2048) for share in (0.1, 0.5)]
    )
    assert len(mixed) == 2


def test_break_even_says_which_cases_it_is_of_where_they_differ():
    records = [
        record(seqlen=length, ratio=ratio, pattern=pattern, block="64x64")
        for length in (1024, 2048)
        for pattern, ratio in (("random", 0.5), ("window", 1.5))
    ]
    assert sparse.break_even(records) == [
        "break-even: flash-sparse is not faster than dense[sdpa-cudnn] at 2048 rows (density 0.30, pattern=random)",
        "break-even: flash-sparse is faster than dense[sdpa-cudnn] at every length from 1024 rows on "
        "(density 0.30, pattern=window)",
    ]


def test_break_even_ends_the_summary_of_a_run():
    run = imported_run("mine", "x", [record(ratio=ratio, seqlen=length) for length, ratio in ((1024, 0.5), (2048, 2))])
    assert summary(run).results == [
        "break-even: flash-sparse is faster than dense[sdpa-cudnn] from about 1448 rows on (density 0.30)"
    ]
