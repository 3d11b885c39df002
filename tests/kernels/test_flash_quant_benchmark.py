"""The benchmark of the quantised kernels: its bars, and what it and its tables say of a measured group."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def modules():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("flash_quant"), importlib.import_module("quant_tables")
    for name in ("flash_quant", "flash_sparse_quant", "quant_tables"):
        sys.modules.pop(name, None)


def samples(ms):
    return {"samples_ms": [ms * (1 + 1e-4 * turn) for turn in range(20)], "rounds": list(range(20)), "sm_mhz": [1800.0]}


def group_of(benchmark, kernel_ms, op_ms):
    sweep = benchmark.Sweep(seqlen=16384, headdim=128, causal=False)
    rows = [
        {"what": what, "config": sweep.default} | samples(ms)
        for what, ms in (("op", op_ms), ("smooth", 0.04), ("quantise", 0.1), ("kernel", kernel_ms))
    ]
    peers = {"flash-triton": 3.1, "fa3-fwd": 3.0, "sage1": 5.0, benchmark.FP8: 2.2, benchmark.COPY: 0.27}
    return asdict(sweep) | {"rows": rows + [{"what": name, "config": ""} | samples(ms) for name, ms in peers.items()]}


def test_kernels_are_held_against_kernels_and_the_op_against_16_bits(modules):
    benchmark, _ = modules
    lines = benchmark.lines_of(group_of(benchmark, 2.4, 2.5))
    assert lines[0] == "16384 rows, dim 128, full"
    assert "1.200 of fa3-fwd, bar 1.10: reached" in lines[1]
    assert "0.917 of fa3-fwd-fp8, bar 0.90: reached" in lines[4]
    assert "bar" not in "".join(lines[5:])
    assert "preparation 0.76 of the copy rate" in lines[1]
    slow = benchmark.lines_of(group_of(benchmark, 2.6, 2.9))
    assert "BELOW" in slow[1]
    assert "BELOW" in slow[4]


def test_bars_depend_on_dims_and_length(modules):
    bars = modules[0].OP_BARS
    assert [bars[128].get(rows) for rows in (1024, 4096, 16384, 32768)] == [None, 1.0, 1.1, 1.15]
    assert [bars[64].get(rows) for rows in (4096, 16384)] == [None, 1.0]


def test_a_row_of_the_tables(modules):
    benchmark, tables = modules
    data = {"groups": [group_of(benchmark, 2.4, 2.9)]}
    ((*_, kernel_bar, _, _, op, which, op_bar, sage, preparation, rate, share, copy_bar),) = tables.speed_rows(data)
    assert (kernel_bar, op, which, op_bar, sage) == ("0.90 reached", "1.034", "`fa3-fwd`", "1.10 **missed**", "1.724")
    assert (preparation, rate, share, copy_bar) == ("0.500", "0.60", "0.15", "0.70 **missed**")
    assert tables.form_rows(data) == []
    assert tables.clock(data) == "SM clock 1800-1800 MHz"
    data["groups"][0]["rows"].append({"what": "kernel", "config": "m64n64w4s3"} | samples(4.4))
    assert [row[3:5] for row in tables.form_rows(data)][1] == ["`m64n64w4s3`", ""]
    assert tables.form_rows(data)[1][-1] == "0.500"


def test_a_preparation_in_the_noise_has_no_share_of_the_copy_rate(modules):
    benchmark, tables = modules
    group = group_of(benchmark, 2.4, 2.41)
    op = next(row for row in group["rows"] if row["what"] == "op")
    op["samples_ms"] = [ms + (-1) ** turn * 0.1 for turn, ms in enumerate(op["samples_ms"])]
    assert tables.speed_rows({"groups": [group]})[0][-4:] == ["?", "?", "?", ""]
    assert "of the copy rate" not in "".join(benchmark.lines_of(group))


def test_a_row_of_the_tables_of_block_sparse_attention(modules):
    _, tables = modules
    sparse = tables.flash_sparse_quant
    sweep = sparse.Sweep(seqlen=32768)

    def row(what, density, ms, config=""):
        return {"what": what, "density": density, "config": config} | samples(ms)

    rows = [row("dense op", 1.0, 10.0), row("dense kernel", 1.0, 9.6), row("sparse", 0.3, 4.1)]
    rows += [row("op", 0.3, 3.4, sweep.default), row("kernel", 0.3, 3.0, sweep.default)]
    data = {"groups": [asdict(sweep) | {"rows": rows}]}
    ((*shape, op_ms, _, e, e_bar, ratio, bar, kernel_ms, rate, of_kernel),) = tables.sparse_rows(data)
    assert shape == ["128x128", "128", "32768", "full", "0.30"]
    assert (op_ms, e, e_bar, ratio, bar) == ("3.403", "0.88", "0.85 reached", "1.206", "1.00 reached")
    assert (kernel_ms, rate, of_kernel) == ("3.003", "879", "0.96")
    assert tables.sparse_form_rows(data) == [["128x128", "128", "32768", "full", f"`{sweep.default}`", "yes", "879"]]


def test_peers_that_are_not_there_leave_cells_empty(modules):
    benchmark, tables = modules
    group = group_of(benchmark, 2.4, 2.5)
    group["rows"] = group["rows"][:4]
    ((*_, which, op_bar, sage, _, _, share, copy_bar),) = tables.speed_rows({"groups": [group]})
    assert (which, op_bar, sage, share, copy_bar) == ("",) * 5
    assert "of fa3" not in "".join(benchmark.lines_of(group))
