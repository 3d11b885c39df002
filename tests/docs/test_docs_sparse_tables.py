"""Tables of sparse and quantised attention, from made-up records and committed runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import sparse_tables

from attnbench.store.runfile import read as load

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def record(backend, ms, *, flops=10**12, dense_flops=None, ratio=None, kernel_ms=None, **case):
    work = SimpleNamespace(flops=flops, dense_flops=dense_flops)
    rate = SimpleNamespace(tflops=flops / ms / 1e9, effective_tflops=(dense_flops or flops) / ms / 1e9)
    speedup = None if ratio is None else SimpleNamespace(baseline="dense[sdpa-cudnn]", ratio=ratio)
    phases = {} if kernel_ms is None else {"kernel": SimpleNamespace(median_ms=kernel_ms)}
    error = SimpleNamespace(rel_l1=0.0371, head_rel_l1=None if backend == "sdpa-cudnn" else 0.04)
    return SimpleNamespace(
        backend=backend,
        case=case,
        work=work,
        rate=rate,
        speedup=speedup,
        phases=phases,
        errors={"out": error},
        time=SimpleNamespace(median_ms=ms),
    )


def failed(backend, **case):
    return SimpleNamespace(backend=backend, case=case, time=None, phases={})


def test_a_sweep_has_e_beside_each_rate_and_leaves_out_what_did_not_run():
    few = {"pattern": "random", "causal": False, "density": 0.5}
    all_ = {"pattern": "random-uneven", "causal": True, "density": 1.0}
    run = SimpleNamespace(
        records=[
            record("dense[sdpa-cudnn]", 4.0, flops=2 * 10**12, dense_flops=2 * 10**12, **few),
            record("flash-sparse", 2.5, dense_flops=2 * 10**12, ratio=1.6, **few),
            record("dense[sdpa-cudnn]", 2.0, dense_flops=10**12, **all_),
            failed("flash-sparse", **all_),
        ]
    )
    head, rows = sparse_tables.sweep(run)
    assert head == ["map", "causal", "density", "`dense[sdpa-cudnn]` ms", "`flash-sparse` TFLOP/s", "E"]
    assert rows == [["`random`", "no", "0.5", "4.00", "400", "0.80"], ["`random-uneven`", "yes", "1", "2.00", "", ""]]


def test_over_length_the_fastest_is_bold():
    case = {"causal": False, "density": 0.7, "seqlen": 1024}
    run = SimpleNamespace(
        records=[
            record("dense[sdpa-flash]", 4.0, flops=2 * 10**12, dense_flops=2 * 10**12, **case),
            record("flash-sparse", 2.5, dense_flops=2 * 10**12, ratio=1.6, **case),
        ]
    )
    head, rows = sparse_tables.lengths(run)
    assert head == ["causal", "density", "length", "`dense[sdpa-flash]`", "`flash-sparse`"]
    assert rows == [["no", "0.50", "1024", "500", "**800**"]]


def test_kernels_timed_apart_stand_beside_their_op():
    case = {"headdim": 128, "seqlen": 4096, "causal": True}
    run = SimpleNamespace(records=[record("sdpa-cudnn", 2.0, **case), record("sage2", 2.5, kernel_ms=2.0, **case)])
    head, rows = sparse_tables.quantised(run)
    assert head == ["head dim", "length", "causal", "`sdpa-cudnn`", "`sage2`", "its kernel"]
    assert rows == [["128", "4096", "yes", "500", "400", "500"]]
    assert sparse_tables.distances(run, 1024)[1] == []
    assert sparse_tables.distances(run, 4096)[1] == [
        ["`sage2`", "128", "yes", "0.0371", "0.0400"],
        ["`sdpa-cudnn`", "128", "yes", "0.0371", ""],
    ]


def test_ours_stand_beside_the_fastest_other_that_is_neither_ours_nor_dense():
    quant = load(RESULTS / "quant-h200.json")
    mapped = load(RESULTS / "sparse-cudnn-bsa-h200.json")
    rows = sparse_tables.ours_rows(quant, mapped)
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("`flash-quant` fwd", "d128-s4096-causal", "`fa3-fwd`"),
        ("`flash-quant` fwd", "d128-s16384-causal", "`fa3-fwd`"),
        ("`flash-sparse` fwd", "d128-s32768-density0.2", "`sparse-flash-attn-4`"),
        ("`flash-sparse-quant` fwd", "d128-s32768-density0.2", "`sparse-flash-attn-4`"),
    ]
    for _, _, own, _, peer, ratio in rows:  # the median of ratios within rounds, not the ratio of medians
        assert float(ratio) == pytest.approx(float(own) / float(peer), rel=0.03)
