"""Launch configurations of the quantised forward: names, rules, defaults, and the adapter that lists them."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.dense import largest_term
from attnbench.backends.registry import all_backends, resolve
from attnbench.check.compare import compare, make_truth
from attnbench.check.examine import Examination, Wrong, examine
from attnbench.check.reference import References
from attnbench.dtypes import torch_dtype
from attnbench.errors import Unsupported, UsageError
from attnbench.kernels.flash.quant.config import FORWARD, RULES, TABLE, QuantConfig, Shape, default_config, fault, space
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.base import ATTENTION_KINDS, Draw, load_workload

from . import quant_cases
from .interpreter import interpreted
from .quant_cases import Inputs, distance, inputs_of, recipe_of, truth_of

SHAPES = [Shape(dim=dim, capability=card) for dim, card in product((64, 128), ((8, 9), (9, 0)))]


def case_of(**values):
    return WORKLOAD.case({"batch": 1, "seqlen": 1024, "nheads": 2, "headdim": 128, "dtype": "bf16"} | values)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_configuration_reads_back_and_the_default_is_one(shape):
    there = space(shape)
    assert len({config.short for config in there}) == len(there) > 5
    assert all(QuantConfig.parse(config.short) == config == QuantConfig.parse(config.full) for config in there)
    assert default_config(shape) in there
    assert (default_config(shape).order == "ws") == (shape.capability == (9, 0))


def test_a_row_of_defaults_is_reached_by_some_shape():
    shapes = [*SHAPES, Shape(dim=64, capability=(0, 0))]
    assert {row["config"] for row in TABLE.rows("forward")} == {default_config(shape).short for shape in shapes}


@pytest.mark.parametrize(
    ("short", "shape", "name", "said"),
    [
        ("m64n64w8s2", Shape(dim=64), "warps", "has 8 rows for each warp; such as m128w8"),
        ("m192n64w12s2", Shape(dim=64), "warps", "has rows or warps that are no power of two, which only ws supports"),
        ("m128n128w8s2-ws", Shape(dim=64, capability=(8, 9)), "warpgroups", "is for sm_90, not sm_89; plain"),
        ("m128n128w8s2-ws", Shape(dim=100), "warpgroups", "supports multiples of 8 dims, not 100; plain"),
        ("m128n128w4s2-ws", Shape(dim=64), "warpgroups", "needs 64 rows for four warps; such as m128w8"),
        (
            "m64n128w4s2-ws",
            Shape(dim=64),
            "warpgroups",
            "supports one warpgroup only with two programs per SM, and vice versa; m64 with x2",
        ),
        ("m128n64w8s2-ws", Shape(dim=64), "warpgroups", "has tiles of 128 keys; n128"),
        ("m128n128w8s1-ws", Shape(dim=64), "warpgroups", "needs at least two stages; s2"),
        (
            "m128n128w8s6-ws",
            Shape(dim=128),
            "shared-memory",
            "takes 258 KiB of shared memory, of 227 available; fewer stages",
        ),
        (
            "m128n128w4s2",
            Shape(dim=128),
            "registers",
            "keeps 416 values a thread in registers; fewer keys or more warps",
        ),
    ],
)
def test_a_rule_says_what_is_wrong_and_what_would_do(short, shape, name, said):
    found = fault(QuantConfig.parse(short), shape)
    assert found is not None
    assert found[0] == name
    assert said in found[1]
    assert QuantConfig.parse(FORWARD.nearest(short, shape)) in space(shape)


def test_every_rule_is_tried_here():
    assert set(RULES) == {"warps", "warpgroups", "registers", "shared-memory"}


def test_the_adapter_lists_names_and_refuses_them_with_the_nearest():
    backend, case = all_backends()["flash-quant"], case_of()
    names = [config.short for config in backend.configs(case)]
    assert backend.default_of(case).short in names
    assert backend.default_of(case_of(headdim=136)) is None
    resolve(f"flash-quant[{names[0]}]", case).check(case, Machine("cuda", (9, 0)))
    with pytest.raises(UsageError, match=r"flash-quant: config=m1 .*; the nearest valid one is m"):
        resolve("flash-quant[m1]", case)


@pytest.mark.parametrize(
    ("values", "card", "said"),
    [
        ({"headdim": 136}, (9, 0), "headdim=136 is too large; at most 128"),
        ({"dtype": "fp32"}, (9, 0), "dtype=fp32 is not supported; one of fp16, bf16"),
        ({"mode": "fwd-bwd"}, (9, 0), "mode=fwd-bwd has no backward; fwd"),
        ({"window": "64:0"}, (9, 0), "window=.* is not supported; none"),
        ({}, (8, 0), "compute capability=8.0 is too old; at least 8.9"),
    ],
)
def test_the_adapter_refuses_what_the_kernels_do_not_take(values, card, said):
    with pytest.raises(Unsupported, match=f"flash-quant: {said}"):
        all_backends()["flash-quant"].check(case_of(**values), Machine("cuda", card))


@pytest.mark.parametrize("kind", ["normal", "outliers"])
@pytest.mark.parametrize(
    "values", [{"lengths": "uniform", "causal": True, "seqlen": 200}, {"seqlen": 300, "nheads_kv": 1, "causal": True}]
)
def test_right_through_the_seam_with_three_phases(values, kind):
    case = case_of(batch=2, headdim=40, dtype="fp16", **values)
    backend = resolve("flash-quant", case)
    backend.check(case, Machine("cuda", (9, 0)))
    inputs = [make_inputs(case, seed=seed, kind=kind, device="cpu") for seed in (1, 2)]
    with interpreted(), backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant="softmax", budget=backend.budget(case))
        assert (outcome.ok, outcome.reason) == (True, None)
        assert list(launch.phases) == ["smooth", "quantise", "kernel"]
        assert launch.notes == ("forward m64n64w4s1; quantisation is part of the call",)
        for phase in launch.phases.values():
            phase()


@pytest.mark.parametrize("kind", ["normal", "outliers", "channel-bias", "video"])
@pytest.mark.parametrize(("rows", "dim"), [(64, 64), (256, 128), (1024, 128)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_recipe_itself_is_within_the_bounds_of_each_kind(rows, dim, causal, kind):
    """Of a single head, which is the worst: a right kernel can be no better."""
    case = case_of(batch=1, seqlen=rows, seqlen_k=rows, nheads=1, nheads_kv=1, headdim=dim, causal=causal, dtype="bf16")
    budget = resolve("flash-quant", case).budget(case).on(kind)
    given = [inputs_of(rows, dim=dim, causal=causal, kind=kind, seed=seed) for seed in range(6)]
    errors = [distance(recipe_of(inputs)[0].bfloat16(), truth_of(inputs)[0]) for inputs in given]
    assert 0.4 * budget.rel_l1 < max(errors) < budget.rel_l1 < budget.head_rel_l1


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        ("outliers", "fp16", {"seqlen": 128}),
        ("outliers", "bf16", {"seqlen": 64, "headdim": 64}),
        ("outliers", "bf16", {"seqlen": 512, "seqlen_k": 63, "causal": True}),
        ("channel-bias", "fp16", {"seqlen": 512, "seqlen_k": 5, "causal": True}),
        ("normal", "bf16", {"seqlen": 129, "seqlen_k": 257, "causal": True}),
        ("normal", "fp16", {"seqlen": 512, "nheads": 4, "nheads_kv": 4, "headdim": 16}),
    ],
)
def test_the_recipe_is_right_and_a_wrong_head_of_it_is_not(kind, dtype, options):
    """By the whole comparison: a large weight, few dims and rows without keys make outputs of very different size."""
    case = case_of(**{"batch": 1, "nheads": 2, "nheads_kv": 2, "headdim": 128, "dtype": dtype} | options)
    budget, stored = resolve("flash-quant", case).budget(case).on(kind), torch_dtype(dtype)
    for seed in range(77, 89):
        inputs = WORKLOAD.inputs(case, seed=seed, kind=kind, device="cpu")
        right, plain = (
            WORKLOAD.oracle("softmax", case, inputs, dtype=one, draw=Draw()) for one in (torch.float64, stored)
        )
        expected = WORKLOAD.expected_errors("softmax", case, inputs, draw=Draw())
        truth = make_truth(right, plain, expected, stored, WORKLOAD.outputs("softmax"))
        out = recipe_of(Inputs(q=inputs.q, k=inputs.k, v=inputs.v, causal=case.causal))[0].to(stored)
        assert compare({"out": out}, truth, budget).ok
        wrong = out.clone()
        wrong[:, :, 1] = out[:, :, 0]
        assert not compare({"out": wrong}, truth, budget).ok


def test_bounds_by_kind_are_below_those_of_captured_values_and_not_of_few_rows():
    bounds = {kind: resolve("flash-quant", case_of()).budget(case_of(seqlen=4096)).on(kind) for kind in ATTENTION_KINDS}
    assert {kind: (one.rel_l1, one.by_input) for kind, one in bounds.items()} == {
        "normal": (0.04, {}),
        "uniform": (0.055, {}),
        "zeros": (0.055, {}),
        "outliers": (0.048, {}),
        "channel-bias": (0.004, {}),
        "video": (0.006, {}),
    }
    many = case_of(seqlen=4096, nheads=16, headdim=64)
    assert resolve("flash-quant", many).budget(many).on("outliers").rel_l1 == 0.043
    for values in ({"seqlen": 1}, {"headdim": 40}, {"lengths": "uniform"}):
        case = case_of(**values)
        assert resolve("flash-quant", case).budget(case).on("video").rel_l1 == 0.055
    mapped = load_workload("sparse").case({"seqlen": 1024, "headdim": 128, "dtype": "bf16", "density": 0.5})
    budget = resolve("flash-sparse-quant", mapped).budget(mapped)
    assert [budget.on(kind).rel_l1 for kind in ("normal", "video", "outliers")] == [0.04, 0.055, 0.055]


@pytest.mark.parametrize(("kind", "wrong"), [("normal", "steps"), ("channel-bias", "scale"), ("video", "scale")])
def test_a_kernel_that_the_bounds_of_every_kind_accept_is_found_by_those_of_its_inputs(kind, wrong, monkeypatch):
    """Scores of a third of the steps, and values whose scale is three per cent too large."""
    case = case_of(seqlen=512, seqlen_k=512, dtype="bf16")
    budget = resolve("flash-quant", case).budget(case)
    first, second = (
        WORKLOAD.inputs(case, seed=seed, kind=one, device="cpu") for seed, one in ((1, kind), (2, "normal"))
    )
    given = Inputs(q=first.q, k=first.k, v=first.v)
    if wrong == "steps":
        monkeypatch.setattr(quant_cases, "rounded", lambda x, scale: (x / scale / 3).round() * 3)
    out = recipe_of(given)[0].mul(1.03 if wrong == "scale" else 1.0).to(torch.bfloat16)
    held = []
    for known in (kind, "uniform"):
        references = References(WORKLOAD, case, first, second, kind=known)
        look = Examination(None, references, "softmax", budget, announce=str)
        try:
            look.hold({"out": out}, references.first)
            held.append(None)
        except Wrong as fault:
            held.append(str(fault))
    assert held[1] is None
    assert held[0].startswith("out: wrong values: relative L1 0.0")
    assert f"(budget {budget.on(kind).rel_l1:.3g})" in held[0]


@pytest.mark.parametrize(("keys", "rows"), [(64, 32768), (256, 32768), (1024, 8192)])
def test_the_largest_error_of_rounded_weights_and_values_is_below_a_sixteenth_of_the_largest_term(keys, rows):
    draw = torch.Generator().manual_seed(keys)
    values = torch.randn(keys, 32, generator=draw)
    step = values.abs().amax(0) / 448
    rounded = (values / step).to(torch.float8_e4m3fn).float() * step
    scores = torch.randn(rows, keys, generator=draw)
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    total = weights.sum(1, keepdim=True)
    exact = weights @ values / total
    error = (weights.mul(256).to(torch.float8_e4m3fn).float() / 256 @ rounded / total - exact).abs().max()
    limit = largest_term(keys, rows * 32) / 16 * exact.square().mean().sqrt()
    assert 0.25 * limit < error < limit


def test_where_the_largest_term_is_met_one_element_is_off_by_more_than_its_row_may_be():
    """The score and the value that a hundred million elements of 16384 keys are expected to meet once, in every row."""
    keys, dim, rows = 16384, 128, 128
    case = case_of(batch=4, seqlen=keys, nheads=32, headdim=dim)
    outputs = 4 * keys * 32 * dim
    score = ((1 + 8 * math.log(keys * outputs)) ** 0.5 - 1) / 2
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, count, 1, dim, generator=draw) for count in (rows, keys, keys))
    first = k[0, 0, 0]
    q[0, :, 0] += (score * dim**0.5 - q[0, :, 0] @ first)[:, None] * first / first.square().sum()
    v[0, 0, 0] = score**0.5 * (0.97 + 0.06 * torch.rand(dim, generator=draw))
    given = Inputs(q=q.to(torch.bfloat16), k=k.to(torch.bfloat16), v=v.to(torch.bfloat16))
    error = recipe_of(given)[0] - truth_of(given)[0]
    unit = (math.e / keys) ** 0.5
    budget = resolve("flash-quant", case).budget(case)
    assert budget.relative * unit < error.abs().max() < 0.9 * budget.element * unit
    assert error.square().mean(-1).sqrt().max() < 0.9 * budget.relative * unit
    mapped = load_workload("sparse").case(
        {"batch": 4, "seqlen": keys, "nheads": 32, "headdim": dim, "dtype": "bf16", "density": 1.0}
    )
    assert resolve("flash-sparse-quant", mapped).budget(mapped).element == pytest.approx(budget.element)
    causal = case_of(seqlen=keys, headdim=dim, causal=True)
    assert resolve("flash-quant", causal).budget(causal).element == 0.0
