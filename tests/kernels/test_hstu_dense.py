"""Dense HSTU attention against the workload's oracle, in Triton's interpreter: each mask, odd lengths, many cuts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, make_truth
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.inputs import make_inputs, torch_dtype

from .interpreter import interpreted

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def kernels():
    with interpreted("attnbench.kernels.hstu.dense.api") as (module,):
        yield module


CUT = {"warps": 4, "stages": 1, "silu": "exp"}
SMALL, WIDE, TALL = {"block_m": 16, "block_n": 16}, {"block_m": 16, "block_n": 32}, {"block_m": 32, "block_n": 16}
CASES = {
    "one-of-each-length": ({"batch": 4, "seqlen": 65, "lengths": "0:1:63:65", "nheads": 2}, WIDE),
    "long": ({"batch": 1, "seqlen": 129}, {"block_m": 32, "block_n": 32}),
    "just-under": ({"batch": 1, "seqlen": 127}, {"block_m": 32, "block_n": 32}),
    "not-causal": ({"seqlen": 50, "lengths": "50:33", "causal": False}, SMALL),
    "prefix": ({"seqlen": 60, "lengths": "60:9", "contextual_len": 20}, SMALL),
    "prefix-not-causal": ({"seqlen": 50, "lengths": "50:20", "contextual_len": 5, "causal": False}, TALL),
    "targets": ({"batch": 3, "seqlen": 60, "lengths": "60:20:3", "num_targets": "21:20:1"}, SMALL),
    "targets-not-causal": ({"seqlen": 50, "lengths": "50:7", "num_targets": "9:7", "causal": False}, WIDE),
    "window": ({"batch": 1, "seqlen": 70, "max_attn_len": 18}, SMALL),
    "narrow-window": ({"batch": 1, "seqlen": 60, "max_attn_len": 1, "num_targets": "3"}, TALL),
    "window-both-ways": ({"batch": 1, "seqlen": 70, "max_attn_len": 10, "causal": False}, SMALL),
    "window-prefix-targets": (
        {"seqlen": 66, "lengths": "66:30", "max_attn_len": 17, "contextual_len": 6, "num_targets": "20:5"},
        WIDE,
    ),
    "cached": ({"batch": 3, "seqlen": 65, "lengths": "65:3:40", "delta_q": 18, "num_targets": "5:0:2"}, SMALL),
    "cached-all": (
        {
            "seqlen": 60,
            "lengths": "60:21",
            "delta_q": 40,
            "num_targets": "5:1",
            "contextual_len": 30,
            "max_attn_len": 12,
        },
        TALL,
    ),
    "odd-dims": ({"batch": 1, "seqlen": 40, "attn_dim": 24, "linear_dim": 40}, SMALL),
    "one-dim": ({"batch": 1, "seqlen": 20, "attn_dim": 1, "linear_dim": 3}, SMALL),
    "factors": ({"batch": 1, "seqlen": 33, "alpha": 1.3, "scaling_seqlen": 7}, SMALL),
    "empty": ({"lengths": "0:0", "seqlen": 8}, SMALL),
}


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 2, "nheads": 1, "attn_dim": 16, "linear_dim": 16, "dtype": "fp32", "mode": "fwd-bwd"} | values
    )


def problem_of(kernels, case, inputs):
    return kernels.Problem(
        offsets=inputs.seq_offsets,
        offsets_q=inputs.seq_offsets_q if case.delta_q else None,
        num_targets=inputs.num_targets,
        max_seqlen=inputs.max_seqlen,
        max_seqlen_q=inputs.max_seqlen_q,
        alpha=case.alpha,
        scaling_seqlen=case.scaling_seqlen,
        causal=case.causal,
        contextual_len=case.contextual_len,
        max_attn_len=case.max_attn_len,
    )


def backward_of(kernels, cut, *, atomic):
    return kernels.BackwardConfig(
        columns=kernels.ColumnConfig(**CUT, **cut, atomic=atomic),
        rows=None if atomic else kernels.RowConfig(**CUT, **cut),
    )


def run(kernels, case, inputs, cut, *, atomic):
    """All outputs, written over NaN."""
    problem, config = problem_of(kernels, case, inputs), backward_of(kernels, cut, atomic=atomic)
    q, k, v, dout = inputs.q, inputs.k, inputs.v, inputs.dout
    out, dq, dk, dv = (torch.full_like(x, torch.nan) for x in (dout, q, k, v))
    shape = kernels.workspace_shape(q, problem, config)
    workspace = None if shape is None else torch.full(shape, torch.nan)
    kernels.check_tensors(q, k, v, problem)
    kernels.check_values(q, k, v, problem)
    order = "plain" if atomic else "ahead"
    kernels.launch_forward(q, k, v, out, problem, kernels.ForwardConfig(**CUT, **cut, order=order))
    kernels.launch_backward(q, k, v, dout, dq, dk, dv, problem, config, workspace)
    return {"out": out, "dq": dq, "dk": dk, "dv": dv}


def held(case, inputs, found):
    truth = WORKLOAD.oracle("hstu", case, inputs, dtype=torch.float64, draw=Draw())
    if not truth["out"].numel():
        assert all(found[name].shape == right.shape for name, right in truth.items())
        return
    plain = WORKLOAD.oracle("hstu", case, inputs, dtype=torch_dtype(case), draw=Draw())
    expected = WORKLOAD.expected_errors("hstu", case, inputs, draw=Draw())
    whole = make_truth(truth, plain, expected, torch_dtype(case), WORKLOAD.outputs("hstu"))
    outcome = compare(found, whole, Budget())
    assert outcome.ok, outcome.faults


@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask(kernels, name):
    values, cut = CASES[name]
    case = case_of(**values)
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, cut, atomic=list(CASES).index(name) % 2 == 0))


@pytest.mark.parametrize("name", ["window-prefix-targets", "cached", "odd-dims"])
def test_right_in_half_precision(kernels, name):
    values, cut = CASES[name]
    case = case_of(dtype="fp16", **values)
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, cut, atomic=name == "cached"))


def test_right_through_tensor_descriptors_and_many_sections(kernels):
    case = case_of(batch=3, seqlen=50, nheads=2, lengths="50:33:0", num_targets="7:0:0", attn_dim=24)
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    cut = {**SMALL, "loads": "tma", "section_mib": 0.02, "masked_stages": 2}
    # The interpreter has no atomics of descriptors.
    held(case, inputs, run(kernels, case, inputs, cut, atomic=False))


@settings(max_examples=12, derandomize=True)
@given(data=st.data())
def test_right_on_whatever_is_drawn(kernels, data):
    draw = data.draw
    lengths = draw(st.lists(st.integers(0, 50), min_size=1, max_size=2))
    case = case_of(
        batch=len(lengths),
        seqlen=max(1, *lengths),
        lengths=":".join(map(str, lengths)),
        num_targets=":".join(str(draw(st.integers(0, length))) for length in lengths),
        contextual_len=0,
        causal=draw(st.booleans()),
        max_attn_len=draw(st.one_of(st.none(), st.integers(1, 40))),
    )
    room = max(1, case.seqlen)
    case = replace(
        case,
        contextual_len=draw(st.integers(0, min(20, case.seqlen - max(map(int, case.num_targets.split(":")))))),
        delta_q=draw(st.one_of(st.none(), st.integers(1, room))),
    )
    inputs = make_inputs(case, seed=draw(st.integers(0, 9)), kind="normal", device="cpu")
    cut = {"block_m": draw(st.sampled_from((16, 32))), "block_n": draw(st.sampled_from((16, 32)))}
    held(case, inputs, run(kernels, case, inputs, cut, atomic=draw(st.booleans())))


def test_differentiable_on_slices_of_one_tensor_and_on_a_broadcast_gradient(kernels):
    case = case_of(seqlen=40, lengths="40:17", nheads=2, attn_dim=16, linear_dim=8)
    plain = make_inputs(case, seed=6, kind="normal", device="cpu")
    fused = torch.cat([plain.q, plain.k, plain.v], dim=2).requires_grad_()
    q, k, v = fused.split([16, 16, 8], dim=2)
    cut = CUT | SMALL
    out = kernels.hstu_attention(
        q,
        k,
        v,
        plain.seq_offsets.int(),
        case.seqlen,
        forward=kernels.ForwardConfig(**cut),
        backward=backward_of(kernels, SMALL, atomic=False),
        validate=True,
    )
    assert out.is_contiguous()
    (grad,) = torch.autograd.grad(out.sum(), fused)
    assert fused.grad is None
    ones = replace(plain, dout=torch.ones_like(plain.dout))
    held(case, ones, dict(zip(("out", "dq", "dk", "dv"), (out, *grad.split([16, 16, 8], dim=2)), strict=True)))


def test_a_second_derivative_is_refused_and_not_missing(kernels):
    q = torch.randn(9, 1, 16, requires_grad=True)
    out = kernels.hstu_attention(q, q.detach(), q.detach(), torch.tensor([0, 9]), 9)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad.square().sum().backward()


def test_defaults_are_those_of_the_device(kernels):
    x = torch.randn(9, 1, 16)
    out = kernels.hstu_attention(x, x, x, torch.tensor([0, 9]), 9, deterministic=True)
    want = kernels.hstu_attention(x, x, x, torch.tensor([0, 9]), 9, alpha=0.25, scaling_seqlen=9)
    assert torch.equal(out, want)
    assert kernels.default_forward(x, x, x, 9).silu == "exp"


def test_a_backward_that_adds_by_atomics_is_not_taken_for_a_deterministic_one(kernels):
    x = torch.randn(9, 1, 16)
    atomic = kernels.default_backward(x, x, x, 9, deterministic=False)
    said = r"^hstu_attention: backward\.columns\.atomic=True is not deterministic, as deterministic=True requires; "
    with pytest.raises(ValueError, match=said):
        kernels.hstu_attention(x, x, x, torch.tensor([0, 9]), 9, deterministic=True, backward=atomic)


def poisoned(x, rows):
    x = x.clone()
    x[rows] = torch.nan
    return x


@pytest.mark.parametrize(
    ("values", "poison", "clean"),
    [
        ({"max_attn_len": 16}, slice(0, 16), slice(48, None)),
        ({"max_attn_len": 16, "causal": False}, slice(80, None), slice(0, 48)),
        ({}, slice(48, None), slice(0, 48)),
        ({"num_targets": "48"}, slice(64, 80), slice(80, None)),
    ],
)
def test_tiles_that_no_row_sees_are_not_looked_at(kernels, values, poison, clean):
    case = case_of(batch=1, seqlen=96, **values)
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    before = run(kernels, case, inputs, SMALL, atomic=False)
    bad = replace(inputs, k=poisoned(inputs.k, poison), v=poisoned(inputs.v, poison))
    problem = problem_of(kernels, case, inputs)
    out, dq = torch.zeros_like(inputs.dout), torch.zeros_like(inputs.q)
    kernels.launch_forward(bad.q, bad.k, bad.v, out, problem, kernels.ForwardConfig(**CUT, **SMALL, order="ahead"))
    kernels.launch_backward(
        bad.q,
        bad.k,
        bad.v,
        bad.dout,
        dq,
        torch.zeros_like(bad.k),
        torch.zeros_like(bad.v),
        problem,
        backward_of(kernels, SMALL, atomic=False),
        None,
    )
    assert torch.equal(out[clean], before["out"][clean])
    assert torch.equal(dq[clean], before["dq"][clean])
    assert out[poison].isnan().any()


def test_a_sequence_of_nan_leaves_its_neighbours_alone(kernels):
    case = case_of(batch=3, seqlen=40, lengths="40:37:40")
    inputs = make_inputs(case, seed=8, kind="normal", device="cpu")
    before = run(kernels, case, inputs, {**SMALL, "loads": "tma"}, atomic=False)
    problem = problem_of(kernels, case, inputs)
    x = {name: poisoned(getattr(inputs, name), slice(40, 77)) for name in ("q", "k", "v", "dout")}
    after = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    cut = {**SMALL, "loads": "tma"}
    kernels.launch_forward(
        x["q"], x["k"], x["v"], after["out"], problem, kernels.ForwardConfig(**CUT, **cut, order="ahead")
    )
    kernels.launch_backward(
        *x.values(), after["dq"], after["dk"], after["dv"], problem, backward_of(kernels, cut, atomic=False), None
    )
    for name, tensor in before.items():
        for rows in (slice(0, 40), slice(77, None)):
            assert torch.equal(after[name][rows], tensor[rows])
        assert after[name][40:77].isnan().any()


def silu_sums(q, k, v, queries, keys, alpha):
    """Σ SiLU(α q·k) v of each sequence in fp64: every query sees every key."""
    rows = zip(q.double().split(queries), k.double().split(keys), v.double().split(keys), strict=True)
    weights = ((torch.einsum("ihd,jhd->hij", a * alpha, b), c) for a, b, c in rows)
    return torch.cat([torch.einsum("hij,jhd->ihd", torch.nn.functional.silu(s), c) for s, c in weights])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_over_parts_of_the_keys_add_up_to_the_output_over_all_keys(kernels, dtype):
    """With more queries than keys and fewer, and keys that are missing in one part or in all."""
    queries, chunks = [40, 3, 7, 5], ([13, 5, 9, 0], [64, 0, 1, 0], [33, 2, 0, 0])
    torch.manual_seed(0)
    q = torch.randn(sum(queries), 2, 24).to(dtype)
    total, wanted = None, torch.zeros(q.shape[0], 2, 40, dtype=torch.float64)
    for keys in chunks:
        k, v = (torch.randn(sum(keys), 2, dim).to(dtype) for dim in (24, 40))
        given = [x.clone() for x in (q, k, v)]
        parts = kernels.hstu_attention_parts(
            q,
            k,
            v,
            torch.tensor([0, *keys]).cumsum(0),
            max(keys),
            offsets_q=torch.tensor([0, *queries]).cumsum(0),
            max_seqlen_q=max(queries),
            alpha=0.3,
            scaling_seqlen=50,
        )
        assert all(map(torch.equal, given, (q, k, v)))
        assert parts.sums.dtype == torch.float32
        sums = parts.sums[..., :40]  # columns up to those of a tile are not written
        assert (sums[:, 0] - silu_sums(q, k, v, queries, keys, 0.3)).abs().max() < (
            1e-4 if dtype.itemsize == 4 else 0.05
        )
        total = parts.sums if total is None else total.add_(parts.sums)
        wanted += silu_sums(q, k, v, queries, keys, 0.3) / 50
    out = torch.full(wanted.shape, torch.nan, dtype=dtype)
    kernels.hstu_sum(parts._replace(sums=total), out)
    assert torch.equal(out, (total[:, 0, :, :40] * parts.scale).to(dtype))
    assert (out - wanted).abs().max() < (1e-5 if dtype.itemsize == 4 else 2e-3)


def test_sums_without_queries_without_gradients_and_into_what_does_not_fit(kernels):
    q, offsets = torch.zeros(4, 1, 16), torch.tensor([0, 4])
    none = kernels.hstu_attention_parts(q[:0], q, q, offsets, 4, offsets_q=torch.tensor([0, 0]), max_seqlen_q=0)
    kernels.hstu_sum(none, q[:0])
    parts = kernels.hstu_attention_parts(q, q, q, offsets, 4, causal=True)
    with pytest.raises(ValueError, match=r"^hstu_sum: parts=\(4, 1, 1, 16\) does not fit; contiguous \(3, 1, 1, 16\)$"):
        kernels.hstu_sum(parts, q[:3])
    with pytest.raises(ValueError, match=r"^hstu_sum: out\.stride=\(2, 1, 2\) has gaps; contiguous$"):
        kernels.hstu_sum(parts, torch.zeros(4, 1, 32)[:, :, ::2].as_strided((4, 1, 16), (2, 1, 2)))
    with pytest.raises(
        ValueError, match=r"^hstu_attention_parts: v needs a gradient, which is not computed; a detached"
    ):
        kernels.hstu_attention_parts(q, q, q.clone().requires_grad_(), offsets, 4)
