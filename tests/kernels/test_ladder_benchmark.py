"""The benchmark of the steps of our kernels: steps are valid and compared, and what its table says of a measured group."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnbench.kernels.flash.quant import config as quant
from attnbench.kernels.flash.sparse import config as sparse
from attnbench.kernels.flash.sparse_quant import config as sparse_quant
from attnbench.machine.device import Device

from .interpreter import interpreted

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = {
    "flash-quant": (quant, quant.QuantConfig),
    "flash-sparse": (sparse, sparse.SparseConfig),
    "flash-sparse-quant": (sparse_quant, sparse_quant.SparseQuantConfig),
}


@pytest.fixture(scope="module")
def modules():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("ladder"), importlib.import_module("quant_tables")
    for name in ("ladder", "flash_quant", "flash_sparse_quant", "quant_tables"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def kernels():
    with interpreted(
        "attnbench.kernels.flash.sparse.api",
        "attnbench.kernels.flash.quant.api",
        "attnbench.kernels.flash.sparse_quant.api",
    ) as found:
        yield found


def test_every_step_is_valid_and_the_default_is_one(modules):
    for kernel, ladders in modules[0].LADDERS.items():
        of, config = CONFIGS[kernel]
        for ladder in ladders:
            sizes = [int(size) for size in ladder.block.split("x") if size]
            blocks = dict(zip(("block_q", "block_k"), sizes, strict=False))
            shape = of.Shape(dim=ladder.headdim, **blocks)
            for step in ladder.steps:
                assert of.fault(config.parse(step.config), shape) is None, step
                assert config.parse(step.config).short == step.config
            assert of.default_config(shape).short in [step.config for step in ladder.steps]


def test_a_step_is_held_against_an_earlier_one(modules):
    for ladder in (ladder for ladders in modules[0].LADDERS.values() for ladder in ladders):
        names = [step.name for step in ladder.steps]
        assert len(set(names)) == len(names)
        for index, step in enumerate(ladder.steps):
            assert not step.over or step.over in names[:index]


def portable(benchmark, kernel):
    """The first two portable steps of a kernel's first ladder."""
    ladder = benchmark.LADDERS[kernel][0]
    return replace(ladder, steps=tuple(step for step in ladder.steps if "-ws" not in step.config)[:2])


@pytest.mark.parametrize("kernel", CONFIGS)
def test_steps_are_measured_and_have_rows(modules, kernels, kernel):
    benchmark, tables = modules
    of = benchmark.Of(pattern="random", density=0.5, causal=True) if "sparse" in kernel else benchmark.Of(causal=True)
    group = benchmark.measure(
        kernel, portable(benchmark, kernel), of, seqlen=256, heads=1, seconds=0.01, device=Device("cpu")
    )
    # Of the map's three visible blocks a causal row keeps those on the diagonal.
    assert group["flops"] == 4 * 128 * (2 * 128 * 129 // 2 if "sparse" in kernel else 256 * 257 // 2)
    assert all(row["samples_ms"] and row["distance"] <= benchmark.FAR[kernel] for row in group["rows"])
    head, rows = tables.ladder_table({"groups": [group]})
    assert head[-6:-2] == ["head dim", "step", "configuration", "over"]
    assert head[-2:] == [of.said, "gain"]
    assert [(row[-5], row[-3]) for row in rows] == [("portable", ""), ("large tiles", "portable")]
    assert [bool(row[-1]) for row in rows] == [False, True]
    assert len(benchmark.lines_of(group)) == 3


def test_a_wrong_step_is_refused(modules, kernels, monkeypatch):
    benchmark, _ = modules
    opened = benchmark.opened

    def planted(kernel, step, case, inputs):
        call, out = opened(kernel, step, case, inputs)
        return (lambda: (call(), out[:, :32].zero_())) if step.name != "portable" else call, out

    monkeypatch.setattr(benchmark, "opened", planted)
    of = benchmark.Of(pattern="random", density=0.5)
    with pytest.raises(ValueError, match=r"flash-sparse: config=m128n128w8s2 is 0.12\d off m64n64w4s3; at most 0.02"):
        benchmark.measure(
            "flash-sparse", portable(benchmark, "flash-sparse"), of, seqlen=256, heads=1, seconds=0.01,
            device=Device("cpu"),
        )  # fmt: skip


def test_rows_are_taken_in_each_order(modules, kernels):
    benchmark, _ = modules
    api = kernels[0]
    ladder = benchmark.Ladder(headdim=64, block="64x64", steps=())
    case = benchmark.case_of(ladder, benchmark.Of(pattern="random-uneven", density=0.5), seqlen=640, heads=3)
    from attnbench.workloads.sparse.inputs import make_inputs

    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    made = api.make_lists(inputs.block_map, inputs.q, inputs.k, block=(64, 64), config="m64n64w4s3")
    assert benchmark.taken(made, benchmark.SECTIONS) is made
    in_map, longest = (benchmark.taken(made, order).items for order in (benchmark.MAP, benchmark.LONGEST))
    assert in_map[:, 0].tolist() == list(range(30))
    assert longest[:, 1].tolist() == sorted(made.items[:, 1].tolist(), reverse=True)
    assert torch.equal(longest[longest[:, 0].argsort()], in_map)


def test_a_gain_is_over_the_step_that_is_named(modules):
    tables = modules[1]

    def row(name, ms, over=""):
        times = [ms * (1 + 1e-4 * turn) for turn in range(20)]
        return {
            "name": name, "config": f"c-{name}", "over": over, "samples_ms": times, "rounds": list(range(20)),
            "sm_mhz": [1800.0],
        }  # fmt: skip

    group = {"headdim": 64, "block": "", "seqlen": 1, "heads": 1, "causal": False, "pattern": "", "density": 1.0}
    rows = [row("a", 4.0), row("b", 5.0), row("c", 2.0, "a"), row("d", 1.0)]
    head, found = tables.ladder_table({"groups": [group | {"flops": 10**9, "rows": rows}]})
    assert head == ["head dim", "step", "configuration", "over", "full", "gain"]
    assert [(one[3], one[5][:5]) for one in found] == [("", ""), ("a", "0.800"), ("a", "2.000"), ("c", "2.000")]
