"""Backends of block-sparse attention that run on a CPU, and the conversions of a map."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends, resolve, select
from attnbench.backends.sparse import (
    SparseLimits,
    empty_queries,
    is_exact,
    lists_of,
    map_of_lists,
    native_block,
    resized,
    rows_equal,
)
from attnbench.backends.sparse_flex import block_mask, map_of, pairs_of
from attnbench.errors import Unsupported, UsageError
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.case import BLOCKS, ON_GRID, PATTERNS
from attnbench.workloads.sparse.inputs import SparseInputs
from attnbench.workloads.sparse.patterns import block_map, visible_pairs
from attnbench.workloads.sparse.work import queries_seen

sys.path.append(str(Path(__file__).parents[1] / "workloads"))

from naive_sparse import attention

CPU = Machine("cpu")
SHAPES = {
    "odd": {"seqlen": 129, "nheads": 3, "block": "64x64", "density": 0.5},
    "grouped": {"seqlen": 200, "nheads": 4, "nheads_kv": 2, "block": "128x64", "density": 0.5},
    "causal": {"seqlen": 257, "nheads": 2, "causal": True, "block": "64x128", "density": 0.5},
    "more keys": {"seqlen": 127, "seqlen_k": 300, "causal": True, "block": "64x64", "density": 0.5},
    "uneven": {"seqlen": 256, "pattern": "random-uneven", "block": "64x64", "density": 0.5},
    "full": {"seqlen": 150, "pattern": "full"},
    "one": {"seqlen": 1, "pattern": "full"},
}


def case_of(**values):
    return WORKLOAD.case({"batch": 2, "seqlen": 200, "nheads": 2, "headdim": 16, "dtype": "fp32"} | values)


def result(name, case, inputs):
    backend = resolve(name, case)
    backend.probe()
    backend.check(case, CPU)
    with backend.session(case, inputs) as launch:
        for phase in launch.phases.values():
            phase()
        launch.forward()
        first = dict(launch.outputs())
        fresh = WORKLOAD.inputs(case, seed=9, kind="normal", device="cpu")
        launch.reload(fresh)
        launch.forward()
        torch.testing.assert_close(
            launch.outputs()["out"].double(), attention(case, fresh, used(launch, fresh))[0], rtol=2e-5, atol=2e-5
        )
        return first, launch


def used(launch, inputs):
    return launch.outputs().get("block_map", inputs.block_map)


@pytest.mark.parametrize("name", ["sparse-eager", "sdpa-masked"])
@pytest.mark.parametrize("label", SHAPES)
def test_attention_over_the_map(name, label):
    case = case_of(**SHAPES[label])
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    outputs, launch = result(name, case, inputs)
    torch.testing.assert_close(outputs["out"].double(), attention(case, inputs)[0], rtol=2e-5, atol=2e-5)
    work = WORKLOAD.work(case)
    assert launch.counters["density"] == pytest.approx(work.flops / work.dense_flops)
    assert set(launch.phases) == {"convert"}


def test_flex_computes_partial_and_whole_blocks():
    case = case_of(**SHAPES["causal"], batch=1)
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    outputs, _ = result("sparse-flex", case, inputs)
    torch.testing.assert_close(outputs["out"].double(), attention(case, inputs)[0], rtol=2e-5, atol=2e-5)


def test_the_dense_reference_ignores_the_map():
    case = case_of(density=0.5)
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    whole = torch.ones_like(inputs.block_map)
    for name in ("dense[eager]", "dense[sdpa]"):
        backend = resolve(name, case)
        backend.check(case, CPU)
        assert backend.variant_of(case) == "dense"
        with backend.session(case, inputs) as launch:
            launch.forward()
            torch.testing.assert_close(
                launch.outputs()["out"].double(), attention(case, inputs, whole)[0], rtol=2e-5, atol=2e-5
            )
            launch.reload(inputs)
    assert WORKLOAD.work_of("dense", case).flops == WORKLOAD.work(case).dense_flops > WORKLOAD.work(case).flops
    assert WORKLOAD.work_of("given", case) == WORKLOAD.work(case)
    with pytest.raises(Unsupported, match="flash-triton: device=cpu is not supported; cuda"):
        resolve("dense[flash-triton]", case).check(case, CPU)
    with pytest.raises(UsageError, match="dense: config=nothing is not known"):
        resolve("dense[nothing]", case)


def test_a_workloads_backends_are_meant_without_its_name():
    assert select(["flex", "eager", "flex[x]"], workload="sparse") == ["sparse-flex", "sparse-eager", "sparse-flex[x]"]
    assert select(["flex", "eager"], workload="attention") == ["flex", "eager"]
    with pytest.raises(UsageError, match="name=hstu-eager computes hstu; a backend of sparse"):
        select(["hstu-eager"], workload="sparse")


def test_a_dense_backend_asked_for_by_name_is_a_row_beside_the_sparse_ones():
    assert select(["sage1,sdpa-cudnn"], workload="sparse") == ["dense[sage1]", "dense[sdpa-cudnn]"]
    assert select(["sdpa-m*"], workload="sparse") == ["sdpa-masked"]
    assert not any(one.startswith("dense[") for one in select(["all"], workload="sparse"))


def test_names_of_seed_003_are_accepted_in_its_sweeps():
    names = "fa2,sage2,sparge,sparge_fp8[sim0-cdf0.7-pv50]"
    assert select([names], workload="sparse") == [
        "dense[sdpa-flash]", "dense[sage2]", "sparge", "sparge-fp8[sim0-cdf0.7-pv50]"
    ]  # fmt: skip
    assert select(["fa2,fa3,fa3_fp8"], workload="attention") == ["sdpa-flash", "fa3-fwd", "fa3-fwd-fp8"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_form_turns_back_into_the_map(block, causal):
    case = case_of(seqlen=500, seqlen_k=700, block=block, causal=causal, density=0.5, pattern="random-uneven")
    blocks = WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu").block_map
    lists = lists_of(blocks)
    assert torch.equal(map_of_lists(lists["counts"], lists["indices"], blocks.shape[-1]), blocks)
    assert torch.equal(lists["counts"], blocks.sum(-1, dtype=torch.int32))
    for row in lists["indices"].flatten(0, 2):
        listed = row[row > 0]
        assert torch.equal(listed, listed.sort().values)
    visible = torch.from_numpy(visible_pairs(case) > 0)
    assert torch.equal(map_of(case, block_mask(case, blocks, pairs_of(case, blocks.device))), blocks & visible)


@pytest.mark.parametrize("old", BLOCKS)
@pytest.mark.parametrize("new", BLOCKS)
def test_a_map_in_other_blocks_keeps_all_that_it_kept(old, new):
    case = case_of(seqlen=300, seqlen_k=450, block=old, density=0.5)
    blocks = WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu").block_map
    native = native_block(case, (new,))
    there = resized(blocks, case, case.block_shape, native)
    back = resized(there, case, native, case.block_shape)
    assert not (blocks & ~back).any()
    assert is_exact(case, native) == torch.equal(back, blocks)
    assert there.shape[2:] == (-(-300 // native[0]), -(-450 // native[1]))
    if all(n <= o for n, o in zip(native, case.block_shape, strict=True)):
        assert is_exact(case, native)


class Coarse(all_backends()["sparse-eager"].__class__):
    """A library with larger blocks."""

    name = "coarse"
    limits = SparseLimits(dtypes=("fp32",), blocks=("128x128",))

    def session(self, case, inputs):
        from contextlib import contextmanager

        @contextmanager
        def opened():
            native, shape = self.native_map(case, inputs)
            whole = replace(case, block="x".join(map(str, shape)))
            with all_backends()["sparse-eager"].session(whole, replace_map(inputs, native)) as launch:
                yield self.launch(case, inputs, lambda q, k, v: outer(launch, q, k, v))

        def outer(launch, q, k, v):
            launch.reload(
                SparseInputs(
                    **{n: x.transpose(1, 2) for n, x in zip("qkv", (q, k, v), strict=True)}, block_map=inputs.block_map
                )
            )
            launch.forward()
            return launch.outputs()["out"].transpose(1, 2)

        return opened()


def replace_map(inputs, blocks):
    return SparseInputs(q=inputs.q, k=inputs.k, v=inputs.v, block_map=blocks)


def test_a_map_that_does_not_fit_is_refused_or_rounded_up_and_judged_on_what_was_computed():
    case = case_of(seqlen=300, block="64x64", density=0.5)
    with pytest.raises(
        Unsupported,
        match="coarse: block=64x64 does not fit blocks of 128x128: the map keeps some of "
        "them in part; a map of the blocks 128x128, or --widen",
    ):
        Coarse().check(case, CPU)
    wide = replace(case, widen=True)
    Coarse().check(wide, CPU)
    assert Coarse().variant_of(wide) == "chosen"
    inputs = WORKLOAD.inputs(wide, seed=0, kind="normal", device="cpu")
    with Coarse().session(wide, inputs) as launch:
        launch.forward()
        outputs = launch.outputs()
    judge = WORKLOAD.choice("chosen")
    assert judge.faults(wide, inputs, outputs["block_map"]) == []
    follows = judge.follow(
        wide, inputs, outputs["block_map"], dtype=torch.float64, draw=WORKLOAD.draw(wide, seed=0, max_bytes=2**40)
    )
    torch.testing.assert_close(outputs["out"].double(), follows["out"], rtol=2e-5, atol=2e-5)
    assert launch.notes[0] == "map rounded up to blocks of 128x128"
    fits = case_of(seqlen=300, block="64x64", pattern="full", widen=True)
    assert Coarse().variant_of(fits) == "given"
    Coarse().check(replace(fits, widen=False), CPU)


@pytest.mark.parametrize(
    ("limits", "values", "words"),
    [
        ({"dtypes": ("bf16",)}, {}, "dtype=fp32 is not supported; one of bf16"),
        ({"headdims": (64, 128)}, {}, "headdim=16 is not supported; one of 64, 128"),
        ({"max_headdim": 8}, {}, "headdim=16 is too large; at most 8"),
        ({}, {"nheads_kv": 1}, "nheads_kv=1 differs from nheads; the nheads, 2"),
        ({"batch": 1}, {}, "batch=2 is not supported; at most 1"),
        ({}, {"causal": True}, "causal=True is not supported; false"),
        ({"causal": True}, {"causal": True, "seqlen_k": 300}, "would be aligned to the top left; equal lengths"),
        ({"whole_blocks": True}, {}, "seqlen=200 is cut by the blocks of the map; a multiple of 128"),
        (
            {"equal_counts": True},
            {"pattern": "random-uneven", "block": "64x64", "seqlen": 512, "density": 0.5},
            "pattern=random-uneven gives rows different numbers of blocks; the same number in every row",
        ),
        (
            {"causal": True, "bottom_right": True, "dtypes": ("fp32",)},
            {"causal": True, "seqlen_k": 100},
            "leaves 400 queries without a visible key; a key for every query",
        ),
    ],
)
def test_limits_refuse_by_field(limits, values, words):
    one = SparseLimits(**({"dtypes": ("fp32",)} | limits))
    with pytest.raises(Unsupported, match="^who: .*" + words):
        one.check("who", case_of(**values), CPU)


def test_cards_are_refused_by_their_capability():
    limits = SparseLimits(dtypes=("fp32",), capability=(9, 0), capability_below=(10, 0))
    limits.check("who", case_of(), Machine("cuda", (9, 0)))
    with pytest.raises(Unsupported, match=r"compute capability=8\.6 is too old; at least 9\.0"):
        limits.check("who", case_of(), Machine("cuda", (8, 6)))
    with pytest.raises(Unsupported, match=r"compute capability=10\.0 is not supported; below 10\.0"):
        limits.check("who", case_of(), Machine("cuda", (10, 0)))


def test_counts_and_empty_rows_are_those_of_the_map():
    case = case_of(seqlen=256, block="64x64", density=0.5)
    assert rows_equal(case, (64, 64))
    assert not rows_equal(case_of(seqlen=256, block="64x64", density=0.5, pattern="random-uneven"), (64, 64))
    assert empty_queries(case) == 0
    assert empty_queries(case_of(seqlen=256, seqlen_k=100, causal=True)) == 4 * 156
    assert block_map(case).sum() == 2 * 2 * 4 * 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_empty_rows_of_a_named_pattern_are_known_without_its_map(pattern, causal, monkeypatch):
    shape = {"seqlen": 768, "grid": "6:8:16"} if pattern in ON_GRID else {"seqlen": 700, "seqlen_k": 330}
    case = case_of(pattern=pattern, causal=causal, block="64x64", density=1.0 if pattern == "full" else 0.2, **shape)
    counted = case.batch * case.nheads * case.seqlen - queries_seen(case, block_map(case) & (visible_pairs(case) > 0))
    monkeypatch.setattr(sys.modules["attnbench.backends.sparse"], "block_map", lambda case: pytest.fail("made"))
    assert empty_queries(case) == counted
