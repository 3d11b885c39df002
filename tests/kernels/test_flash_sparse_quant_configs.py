"""Launch configurations of the block-sparse forward in 8 bits: names, rules, defaults, and the adapter that lists them."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.dense import largest_term
from attnbench.backends.flash_sparse_quant_call import largest_error
from attnbench.backends.registry import all_backends, resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.errors import Unsupported, UsageError
from attnbench.kernels.flash.sparse_quant.config import (
    FAMILY,
    FORWARD,
    RULES,
    TABLE,
    Shape,
    SparseQuantConfig,
    default_config,
    fault,
    space,
)
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.inputs import make_inputs

from .interpreter import interpreted

SHAPES = [
    Shape(dim=dim, block_q=rows, block_k=keys, capability=card)
    for dim, rows, keys, card in product((64, 128), (64, 128), (64, 128), ((8, 9), (9, 0)))
]


def case_of(**values):
    return WORKLOAD.case({"batch": 1, "seqlen": 1024, "nheads": 2, "headdim": 128, "dtype": "bf16"} | values)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_configuration_reads_back_and_the_default_is_one(shape):
    there = space(shape)
    assert len({config.short for config in there}) == len(there) > 3
    assert all(
        SparseQuantConfig.parse(config.short) == config == SparseQuantConfig.parse(config.full) for config in there
    )
    assert default_config(shape) in there
    assert (default_config(shape).order == "ws") == (shape.capability == (9, 0))


def test_a_row_of_defaults_is_reached_by_some_shape():
    shapes = [*SHAPES, Shape(dim=64, capability=(0, 0))]
    assert {row["config"] for row in TABLE.rows("forward")} == {default_config(shape).short for shape in shapes}


@pytest.mark.parametrize(
    ("short", "shape", "name", "said"),
    [
        ("m128n64w8s2", Shape(dim=64, block_q=64), "blocks", "has tiles of 128 queries, and blocks have 64; m64"),
        ("m64n128w4s2", Shape(dim=64, block_k=64), "blocks", "has tiles of 128 keys, and blocks have 64; n64"),
        ("m64n64w8s2", Shape(dim=64), "blocks", "has 8 rows for each warp; such as m128w8"),
        ("m128n128w8s2-ws", Shape(dim=64, capability=(8, 9)), "warpgroups", "is for sm_90, not sm_89; plain"),
        ("m128n128w8s2-ws", Shape(dim=100), "warpgroups", "supports multiples of 8 dims, not 100; plain"),
        ("m128n128w4s2-ws", Shape(dim=64), "warpgroups", "needs 64 rows for four warps; such as m128w8"),
        ("m128n64w8s2-ws", Shape(dim=64), "warpgroups", "needs tiles of a whole block of keys; n128"),
        ("m128n128w8s1-ws", Shape(dim=64), "warpgroups", "needs at least two stages; s2"),
        ("m64n128w4s3-ws-x3", Shape(dim=64), "registers", "takes 90 registers for a product, of 80 at launch"),
        (
            "m64n64w4s2-ws-x3",
            Shape(dim=128, block_k=64),
            "registers",
            "takes about 156 registers a thread, of 136 available",
        ),
        (
            "m128n128w4s2",
            Shape(dim=128),
            "registers",
            "keeps 416 values a thread in registers; fewer keys or more warps",
        ),
        ("m64n128w4s3-ws-x2", Shape(dim=128), "shared-memory", "takes 130 KiB of shared memory, of 113 available"),
    ],
)
def test_a_rule_says_what_is_wrong_and_what_would_do(short, shape, name, said):
    found = fault(SparseQuantConfig.parse(short), shape)
    assert found is not None
    assert found[0] == name
    assert said in found[1]
    assert SparseQuantConfig.parse(FORWARD.nearest(short, shape)) in space(shape)


def test_every_rule_is_tried_here():
    assert set(RULES) == {"blocks", "warpgroups", "registers", "shared-memory"}


def test_words_of_the_hopper_path_are_refused_without_it():
    with pytest.raises(ValueError, match=r"order=plain has no beside or x…; without, or order=ws"):
        SparseQuantConfig.parse("m64n64w4s3-beside")


def test_the_adapter_lists_names_and_refuses_them_with_the_nearest():
    backend, case = all_backends()["flash-sparse-quant"], case_of()
    names = [config.short for config in backend.configs(case)]
    assert backend.default_of(case).short in names
    assert backend.default_of(case_of(headdim=136)) is None
    resolve(f"flash-sparse-quant[{names[0]}]", case).check(case, Machine("cuda", (9, 0)))
    with pytest.raises(UsageError, match=r"flash-sparse-quant: config=m1 .*; the nearest valid one is m"):
        resolve("flash-sparse-quant[m1]", case)
    with pytest.raises(Unsupported, match=r"is for sm_90, not sm_89; plain"):
        resolve(f"flash-sparse-quant[{names[0]}+cdf0.9]", case).check(case, Machine("cuda", (8, 9)))
    assert FAMILY.default(Shape(dim=136), "fwd") == ""


@pytest.mark.parametrize(
    ("values", "card", "said"),
    [
        ({"headdim": 136}, (9, 0), "headdim=136 is too large; at most 128"),
        ({"dtype": "fp32"}, (9, 0), "dtype=fp32 is not supported; one of fp16, bf16"),
        ({}, (8, 0), "compute capability=8.0 is too old; at least 8.9"),
    ],
)
def test_the_adapter_refuses_what_the_kernels_do_not_take(values, card, said):
    with pytest.raises(Unsupported, match=f"flash-sparse-quant: {said}"):
        all_backends()["flash-sparse-quant"].check(case_of(**values), Machine("cuda", card))


@pytest.mark.parametrize(
    ("selector", "kind", "variant", "phases"),
    [
        ("flash-sparse-quant", "normal", "given", ["convert", "smooth", "quantise", "kernel"]),
        (
            "flash-sparse-quant[m64n64w4s2+topk0.4]",
            "outliers",
            "chosen",
            ["predict", "convert", "kernel", "smooth", "quantise"],
        ),
    ],
)
def test_right_through_the_seam_with_its_phases(selector, kind, variant, phases):
    case = case_of(
        seqlen=300,
        nheads_kv=1,
        headdim=40,
        dtype="fp16",
        block="128x64",
        pattern="random-uneven",
        density=0.5,
        causal=True,
    )
    backend = resolve(selector, case)
    backend.check(case, Machine("cuda", (9, 0)))
    inputs = [make_inputs(case, seed=seed, kind=kind, device="cpu") for seed in (1, 2)]
    assert backend.variant_of(case) == variant
    with interpreted(), backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant=variant, budget=backend.budget(case))
        assert (outcome.ok, outcome.reason) == (True, None)
        assert list(launch.phases) == phases
        assert any("quantisation is part of the call" in note for note in launch.notes)
        before = launch.outputs()["out"].clone()
        for name in ("convert", "smooth", "quantise", "kernel"):
            launch.phases[name]()
        assert launch.outputs()["out"].equal(before)


@pytest.mark.parametrize("selector", ["flash-sparse-quant[m64n64w4s2]", "flash-sparse-quant[m64n64w4s2+topk0.4]"])
def test_in_a_model_it_is_the_same_and_what_comes_before_the_kernel_is_marked(selector):
    case = case_of(seqlen=150, headdim=40, block="64x64", density=0.67)
    backend, marked = resolve(selector, case), []

    @contextmanager
    def preparing():
        marked.append("in")
        yield
        marked.append("out")

    given = make_inputs(case, seed=1, kind="normal", device="cpu")
    with interpreted():
        with backend.session(case, given) as launch:
            launch.forward()
            wanted = {name: x.clone() for name, x in launch.outputs().items()}
        attend = backend.attend(case, torch.device("cpu"))
        attend.preparing = preparing
        found = [attend(given.q, given.k, given.v) for _ in range(2)]
    assert all(torch.equal(one, wanted["out"]) for one in found)
    assert marked == ["in", "out"] * 2
    if "topk" in selector:
        assert torch.equal(attend.chosen(), wanted["block_map"])


def test_the_largest_error_grows_with_rows_of_few_keys(monkeypatch):
    equal = case_of(pattern="random", density=0.5)
    uneven = case_of(pattern="random-uneven", density=0.5)
    assert largest_error(equal, given=True) == pytest.approx(largest_term(512, 2 * 1024 * 128) / 16)
    assert 0.5 < largest_error(equal, given=True) < largest_error(uneven, given=True) < 1.5
    causal = largest_error(case_of(pattern="full", causal=True), given=True)
    assert 0.35 * (1024 / 7.51) ** 0.5 <= causal <= 1.5 * 0.35 * (1024 / 7.51) ** 0.5  # 7.51: the harmonic sum
    fewer = case_of(
        pattern="full", causal=True, seqlen_k=129
    )  # the block before the last has one query that sees a key
    assert 0.35 * (1024 / 5.44) ** 0.5 <= largest_error(fewer, given=True) <= 1.5 * 0.35 * (1024 / 5.44) ** 0.5
    assert largest_error(equal, given=False) > 0.5
    monkeypatch.setattr(
        "attnbench.backends.flash_sparse_quant_call.block_map", lambda case: np.zeros((1, 2, 8, 8), bool)
    )
    assert largest_error(equal, given=True) == 0.5
