"""Launch configurations of the block-sparse forward: names, rules, defaults, and the adapter that lists them."""

from __future__ import annotations

from itertools import product

import pytest

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends, resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.errors import Unsupported, UsageError
from attnbench.kernels.flash.sparse.config import (
    FAMILY,
    FORWARD,
    RULES,
    TABLE,
    Shape,
    SparseConfig,
    default_config,
    fault,
    space,
)
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.inputs import make_inputs
from attnbench.workloads.sparse.work import density

from .interpreter import interpreted

SHAPES = [
    Shape(dim=dim, block_q=rows, block_k=keys, capability=card)
    for dim, rows, keys, card in product((64, 128), (64, 128), (64, 128), ((8, 0), (9, 0)))
]


def case_of(**values):
    return WORKLOAD.case({"batch": 1, "seqlen": 1024, "nheads": 2, "headdim": 128, "dtype": "bf16"} | values)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_configuration_reads_back_and_the_default_is_one(shape):
    there = space(shape)
    assert len({config.short for config in there}) == len(there) > 5
    assert all(SparseConfig.parse(config.short) == config == SparseConfig.parse(config.full) for config in there)
    assert default_config(shape) in there
    assert (default_config(shape).order == "ws") == (shape.capability == (9, 0))


def test_a_row_of_defaults_is_reached_by_some_shape():
    shapes = [*SHAPES, Shape(dim=128, item_bytes=4), Shape(dim=64, capability=(0, 0))]
    assert {row["config"] for row in TABLE.rows("forward")} == {default_config(shape).short for shape in shapes}


@pytest.mark.parametrize(
    ("short", "shape", "name", "said"),
    [
        ("m64n128w4s2", Shape(dim=64, block_k=64), "blocks", "has tiles of 128 keys, and blocks have 64; n64"),
        ("m128n64w8s2", Shape(dim=64, block_q=64), "blocks", "several blocks of 64 queries"),
        (
            "m128n64w8s2-ws",
            Shape(dim=64, block_q=64),
            "blocks",
            "several blocks of 64 queries, which need ws-lazy without deep, joint, double and rs; m64",
        ),
        ("m128n64w8s2-ws-lazy-double", Shape(dim=64, block_q=64), "blocks", "without deep, joint, double and rs; m64"),
        (
            "m128n128w8s2-ws-lazy",
            Shape(dim=64, block_q=64, block_k=64),
            "blocks",
            "has tiles of several blocks of queries and of keys; n64, or m64",
        ),
        ("m64n128w4s2-ws-joint-lazy", Shape(dim=64, block_k=64), "warpgroups", "joint with at least three stages; s3"),
        ("m64n64w4s3-ws-rs", Shape(dim=64), "warpgroups", "supports rs only with lazy and without double; lazy"),
        ("m64n64w4s3-ws-lazy-rs-x3", Shape(dim=128), "registers", "takes about 176 registers a thread"),
        ("m64n128w4s3-ws-joint-lazy-double", Shape(dim=64), "warpgroups", "joint only without double; joint"),
        (
            "m64n128w4s2-ws-lazy-x2",
            Shape(dim=128, block_k=64),
            "shared-memory",
            "takes 145 KiB of shared memory, of 113 available; fewer stages",
        ),
        ("m128n128w8s2-ws-double", Shape(dim=128), "warpgroups", "supports double weights only with lazy; lazy"),
        ("m64n64w4s3-ws-lazy-double-x3", Shape(dim=128), "registers", "takes about 160 registers a thread"),
        ("m128n64w8s2-ws", Shape(dim=64, capability=(8, 0)), "warpgroups", "is for sm_90, not sm_80; plain"),
        ("m128n64w8s2-ws", Shape(dim=64, item_bytes=4), "warpgroups", "needs 16-bit inputs; plain"),
        ("m128n64w8s2-ws", Shape(dim=100), "warpgroups", "supports multiples of 8 from 40 to 128 dims, not 100; plain"),
        ("m128n64w4s2-ws", Shape(dim=64), "warpgroups", "needs 64 rows for four warps; such as m128w8"),
        ("m128n64w8s1-ws", Shape(dim=64), "warpgroups", "needs at least two stages; s2"),
        ("m128n64w8s2-ws-x2", Shape(dim=128), "registers", "takes about 144 registers a thread, of 104 available"),
        ("m128n128w8s4-ws", Shape(dim=128), "shared-memory", "takes 289 KiB of shared memory, of 227 available"),
    ],
)
def test_a_rule_says_what_is_wrong_and_what_would_do(short, shape, name, said):
    found = fault(SparseConfig.parse(short), shape)
    assert found is not None
    assert found[0] == name
    assert said in found[1]
    assert SparseConfig.parse(FORWARD.nearest(short, shape)) in space(shape)


def test_every_rule_is_tried_here():
    assert set(RULES) == {"blocks", "warpgroups", "registers", "shared-memory"}


def test_words_of_the_hopper_path_are_refused_without_it():
    with pytest.raises(
        ValueError, match=r"order=plain has no deep, joint, lazy, double, rs or x…; without, or order=ws"
    ):
        SparseConfig.parse("m64n64w4s3-lazy")


@pytest.mark.parametrize(
    ("block_m", "block_q", "share", "unit"),
    [(128, 128, 1, 128), (64, 128, 1, 128), (128, 64, 2, 64), (192, 64, 3, 64), (192, 128, 3, 64), (256, 128, 2, 128)],
)
def test_how_many_units_of_queries_an_item_takes(block_m, block_q, share, unit):
    config = SparseConfig(block_m=block_m, block_n=64, warps=block_m // 16, stages=3, order="ws", rescale="lazy")
    assert (config.share(block_q), config.unit(block_q)) == (share, unit)


def test_the_adapter_lists_names_and_refuses_them_with_the_nearest():
    backend, case = all_backends()["flash-sparse"], case_of()
    names = [config.short for config in backend.configs(case)]
    assert backend.default_of(case).short in names
    assert backend.default_of(case_of(headdim=136)) is None
    resolve(f"flash-sparse[{names[0]}]", case).check(case, Machine("cuda", (9, 0)))
    with pytest.raises(UsageError, match=r"flash-sparse: config=m1 .*; the nearest valid one is m"):
        resolve("flash-sparse[m1]", case)
    with pytest.raises(Unsupported, match=r"is for sm_90, not sm_80; plain"):
        resolve(f"flash-sparse[{names[0]}]", case).check(case, Machine("cuda", (8, 0)))
    assert FAMILY.default(Shape(dim=136), "fwd") == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [({"headdim": 136}, "headdim=136 is too large; at most 128"), ({"dtype": "fp32"}, "dtype=fp32 is not supported")],
)
def test_the_adapter_refuses_what_the_kernels_do_not_take(values, said):
    with pytest.raises(Unsupported, match=f"flash-sparse: {said}"):
        all_backends()["flash-sparse"].check(case_of(**values), Machine("cuda", (9, 0)))


@pytest.mark.parametrize(
    ("selector", "variant", "phases"),
    [
        ("flash-sparse", "given", ["convert"]),
        ("flash-sparse[m128n64w8s2]", "given", ["convert"]),
        ("flash-sparse[cdf0.6]", "chosen", ["predict", "convert", "kernel"]),
        ("flash-sparse[m128n64w8s2+topk0.4]", "chosen", ["predict", "convert", "kernel"]),
    ],
)
def test_right_through_the_seam_with_the_making_of_lists_as_a_phase(selector, variant, phases):
    case = WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 300,
            "nheads": 2,
            "nheads_kv": 1,
            "headdim": 40,
            "dtype": "fp16",
            "block": "128x64",
            "pattern": "random-uneven",
            "density": 0.5,
            "causal": True,
        }
    )
    backend = resolve(selector, case)
    backend.check(case, Machine("cuda", (8, 0)))
    inputs = [make_inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2)]
    assert backend.variant_of(case) == variant
    with interpreted(), backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant=variant, budget=backend.budget(case))
        assert (outcome.ok, outcome.reason) == (True, None)
        assert f"forward {'m128n64w8s2' if 'm128' in selector else 'm64n64w4s1'}" in launch.notes
        assert list(launch.phases) == phases
        if variant == "given":
            assert launch.counters["density"] == density(case)


def test_a_configuration_beside_a_predictor_is_checked_on_the_card():
    case = case_of()
    backend = resolve("flash-sparse[m128n128w8s2-ws-deep-lazy+cdf0.98]", case)
    backend.check(case, Machine("cuda", (9, 0)))
    with pytest.raises(Unsupported, match=r"flash-sparse: config=m128.* is for sm_90, not sm_80; plain"):
        backend.check(case, Machine("cuda", (8, 0)))
    with pytest.raises(UsageError, match="flash-sparse: predictor=cdf9 cannot be read"):
        resolve("flash-sparse[cdf9]", case)
