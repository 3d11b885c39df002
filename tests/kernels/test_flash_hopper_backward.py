"""Flash attention backward for Hopper against the workload's oracle, on a machine that runs it without a GPU."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from attnbench.kernels.flash import backward as flash_backward
from attnbench.kernels.flash import problem as flash_problem
from attnbench.kernels.flash.config import backward as flash_backward_configs
from attnbench.kernels.flash.hopper import backward as flash_hopper_backward
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.attention.parts import by_sequence

from .hopper_machine import machine_runs
from .test_flash_backward import forward, held
from .test_flash_backward import run as launched

NARROW, WIDE = "b128x128w8s2-atomic-tma-ws", "b64x128w8s2-atomic-tma-ws"
WIDEST = "b64x64w8s2-atomic-tma-ws"
SHORTS = {64: NARROW, 128: WIDE, 256: WIDEST}
DIRECT, CARRIED = f"{WIDEST}-direct", f"{WIDEST}-carried"
CASES = {
    "plain": {"seqlen": 150, "seqlen_k": 260},
    "one-query": {"seqlen": 1, "seqlen_k": 129, "causal": True},
    "one-key": {"seqlen": 129, "seqlen_k": 1},
    "just-under": {"seqlen": 127, "causal": True},
    "several-tiles": {"seqlen": 400, "causal": True},
    "more-keys": {"seqlen": 65, "seqlen_k": 300, "causal": True},
    "more-queries": {"seqlen": 300, "seqlen_k": 100, "causal": True},
    "window": {"seqlen": 450, "window": (70, 0), "causal": True},
    "window-both-ways": {"seqlen": 400, "window": (100, 30)},
    "window-of-one": {"seqlen": 150, "seqlen_k": 260, "window": (0, 0)},
    "window-left": {"seqlen": 200, "seqlen_k": 190, "window": (40, -1)},
    "window-right": {"seqlen": 300, "seqlen_k": 90, "window": (-1, 3)},
    "grouped": {"seqlen": 200, "nheads": 4, "nheads_kv": 2, "causal": True, "batch": 2},
    "one-kv-head": {"seqlen": 70, "nheads": 3, "nheads_kv": 1, "window": (12, 5)},
    "packed": {"batch": 4, "seqlen": 300, "lengths": "1:150:16:300", "causal": True},
    "packed-both": {
        "batch": 4,
        "seqlen": 200,
        "seqlen_k": 260,
        "lengths": "150/20:17/260:3/3:200/130",
        "causal": True,
        "nheads": 2,
        "nheads_kv": 1,
    },
    "sections": {"batch": 3, "seqlen": 130, "nheads": 2},
}
DIMS = {
    "64": ({"headdim": 64}, NARROW),
    "128": ({"headdim": 128}, WIDE),
    "256": ({"headdim": 256}, WIDEST),
    "136-values-200": ({"headdim": 136, "headdim_v": 200}, "b64x64w8s1-atomic-tma-ws-l1"),
    "24-values-40": ({"headdim": 24, "headdim_v": 40}, "b128x128w8s2-atomic-tma-ws-l1"),
    "96-values-128-fp16": ({"headdim": 96, "headdim_v": 128, "dtype": "fp16"}, "b64x128w8s3-atomic-tma-ws-l1"),
    "256-direct": ({"headdim": 256}, DIRECT),
    "256-carried": ({"headdim": 256}, CARRIED),
    "192-values-136-direct": ({"headdim": 192, "headdim_v": 136}, "b64x64w8s1-atomic-tma-ws-direct-l1"),
}


def case_of(**values):
    return WORKLOAD.case({"batch": 1, "nheads": 1, "headdim": 64, "dtype": "bf16", "mode": "bwd"} | values)


def on_machine(stack, seed=0):
    """All kernels of the backward run there until the stack closes, parts of the large one interleaved by a seed."""
    stack.enter_context(machine_runs(flash_backward, "flash_backward_prepare", "flash_backward_round"))
    for name in ("flash_hopper_backward", "flash_hopper_backward_wide"):
        stack.enter_context(machine_runs(flash_hopper_backward, name, seed=seed))


def run(case, inputs, short, seed=0, *known):
    """Gradients, written over NaN."""
    with ExitStack() as stack:
        on_machine(stack, seed)
        return launched((flash_backward, flash_backward_configs, flash_problem), case, inputs, short, *known)


# A mask decides which tiles are visited, padded dimensions what a tile holds, and these sums how dQ leaves a warpgroup: of
# both groups each meets a third of the masks.
SUMS = [dims for dims, (_, short) in DIMS.items() if flash_backward_configs.parse_backward(short).sums != "staged"]
PADDED = [dims for dims in DIMS if int(dims.split("-")[0]) not in SHORTS and dims not in SUMS]
PAIRS = [(mask, dims) for mask in CASES for dims in DIMS if dims not in PADDED + SUMS] + [
    (mask, group[number % len(group)]) for group in (PADDED, SUMS) for number, mask in enumerate(CASES)
]


@pytest.mark.parametrize(("mask", "dims"), PAIRS)
def test_right_for_every_mask(mask, dims):
    values, short = DIMS[dims]
    case = case_of(**CASES[mask], **values)
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    held(case, inputs, run(case, inputs, short, len(mask + dims)))


@settings(max_examples=15, derandomize=True)
@given(data=st.data())
def test_right_on_whatever_is_drawn_in_any_order_of_its_parts(data):
    draw = data.draw
    lengths = draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=2))
    bound = st.integers(-1, 150)
    values, short = draw(st.sampled_from(tuple(DIMS.values())))
    case = case_of(
        batch=len(lengths),
        seqlen=300,
        seqlen_k=301,
        nheads=2,
        nheads_kv=draw(st.sampled_from((1, 2))),
        lengths=":".join(f"{queries}/{keys}" for queries, keys in lengths),
        causal=draw(st.booleans()),
        window=draw(st.one_of(st.none(), st.tuples(bound, bound))),
        **values,
    )
    inputs = make_inputs(case, seed=draw(st.integers(0, 9)), kind="normal", device="cpu")
    held(case, inputs, run(case, inputs, short, draw(st.integers(0, 99))))


@pytest.mark.parametrize(("dim", "short"), [(128, WIDE), (256, WIDEST), (256, DIRECT), (256, CARRIED)])
def test_the_bits_of_dk_and_dv_are_the_same_in_any_order_of_its_parts(dim, short):
    case = case_of(seqlen=300, nheads=2, nheads_kv=1, causal=True, headdim=dim)
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    first, *others = [run(case, inputs, short, seed) for seed in range(4)]
    assert all(torch.equal(one[name], first[name]) for one in others for name in ("dk", "dv"))


def given_rows(queries, keys, dim):
    """Random q, dout of so many packed rows [rows, 1, dim], and k, v."""
    torch.manual_seed(0)
    return [torch.randn(rows, 1, dim).bfloat16() for rows in (queries, queries, keys, keys)]


def backward(q, dout, k, v, short, **packed):
    """Gradients of `given_rows` by the launcher, written over NaN."""
    problem = flash_problem.problem_of(q, k, v, **packed)
    config = flash_backward_configs.parse_backward(short)
    out = torch.zeros_like(dout)
    lse = torch.full(flash_problem.lse_shape(q, problem), -torch.inf)
    grads = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    for rows, columns in zip(*(pairwise(packed[f"cu_seqlens_{name}"].tolist()) for name in "qk"), strict=True):
        scores = q[slice(*rows), 0].double() @ k[slice(*columns), 0].double().T * problem.scale
        lse[0, 0, slice(*rows)] = scores.logsumexp(-1)
        out[slice(*rows), 0] = (scores.softmax(-1) @ v[slice(*columns), 0].double()).to(out.dtype)
    with ExitStack() as stack:
        on_machine(stack)
        flash_backward.launch_backward(
            q, k, v, out, dout, lse, *grads, problem, config, flash_backward.workspace_of(q, problem, config)
        )
    return grads


@pytest.mark.parametrize(("dim", "short"), [*SHORTS.items(), (256, DIRECT), (256, CARRIED)])
def test_sequences_of_no_rows_or_no_keys_among_others(dim, short):
    q, dout, k, v = given_rows(290, 200, dim)
    ends_q, ends_k = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 0, 90, 290, 290], [0, 10, 10, 199, 200]))
    dq, dk, dv = backward(
        q, dout, k, v, short, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, max_seqlen_q=200, max_seqlen_k=189
    )
    # The first sequence has no rows, the second no keys, the last no rows.
    assert not any(x.any() for x in (dk[:10], dv[:10], dq[:90], dk[199:], dv[199:]))
    x, y, z = (t[:, 0].double().requires_grad_() for t in (q[90:], k[10:199], v[10:199]))
    ((x @ y.T * dim**-0.5).softmax(-1) @ z).backward(dout[90:, 0].double())
    for found, right in ((dq[90:], x), (dk[10:199], y), (dv[10:199], z)):
        torch.testing.assert_close(found[:, 0].double(), right.grad, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("rows", [(0, 3), (3, 0)])
def test_of_nothing_gradients_are_zero(rows):
    q, dout, k, v = given_rows(*rows, 64)
    ends = [torch.tensor([0, count], dtype=torch.int32) for count in rows]
    grads = backward(
        q, dout, k, v, NARROW, cu_seqlens_q=ends[0], cu_seqlens_k=ends[1], max_seqlen_q=rows[0], max_seqlen_k=rows[1]
    )
    assert not any(x.any() for x in grads)


def poisoned(x, rows):
    x = x.clone()
    x[:, rows] = torch.nan
    return x


@pytest.mark.parametrize(
    ("values", "poison", "clean"),
    [
        ({"window": (16, 0), "causal": True}, slice(256, None), slice(0, 128)),
        ({"window": (16, 16)}, slice(0, 128), slice(256, None)),
        ({"causal": True}, slice(0, 128), slice(256, None)),
    ],
)
def test_tiles_of_rows_that_see_no_key_of_a_tile_are_not_looked_at(values, poison, clean):
    case = case_of(seqlen=384, **values)
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    known = forward(case, inputs)
    before = run(case, inputs, NARROW, 0, *known)
    bad = replace(inputs, q=poisoned(inputs.q, poison), dout=poisoned(inputs.dout, poison))
    after = run(case, bad, NARROW, 0, *known)
    for name in ("dk", "dv"):
        assert torch.equal(after[name][:, clean], before[name][:, clean])
        assert after[name][:, poison].isnan().any()


@pytest.mark.parametrize(("dim", "short"), [*SHORTS.items(), (256, DIRECT), (256, CARRIED)])
def test_a_sequence_of_nan_leaves_its_neighbours_alone(dim, short):
    case = case_of(batch=3, seqlen=140, lengths="40:137:140", headdim=dim)
    inputs = make_inputs(case, seed=8, kind="normal", device="cpu")
    out, lse = forward(case, inputs)
    before = run(case, inputs, short, 0, out, lse)
    bad = {name: getattr(inputs, name).clone() for name in ("q", "k", "v", "dout")}
    for name, x in bad.items():
        by_sequence(case, name, x)[1].fill_(torch.nan)
    after = run(case, replace(inputs, **bad), short, 0, out, lse)
    for name in ("dq", "dk", "dv"):
        old, new = (by_sequence(case, name, result[name]) for result in (before, after))
        assert all(torch.equal(old[number], new[number]) for number in (0, 2)), name
        assert new[1].isnan().all()


def test_probabilities_of_keys_past_the_end_do_not_overflow():
    case = case_of(seqlen=20)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    far = replace(inputs, q=torch.full_like(inputs.q, 4.0), k=inputs.k - 10.0)
    assert forward(case, far)[1].max() < -100
    found = run(case, far, NARROW)
    assert all(x.isfinite().all() for x in found.values())


def test_slices_of_one_tensor_need_no_copy():
    case = case_of(seqlen=100)
    plain = make_inputs(case, seed=6, kind="normal", device="cpu")
    q, k, v = torch.cat([plain.q, plain.k, plain.v], dim=3).split(64, dim=3)
    found, wanted = (run(case, inputs, NARROW) for inputs in (replace(plain, q=q, k=k, v=v), plain))
    assert all(torch.equal(found[name], wanted[name]) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_a_tensor_it_cannot_describe_is_refused_by_name(name):
    case = case_of(seqlen=10, headdim=32)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    bad = replace(inputs, **{name: torch.zeros(1, 10, 1, 35, dtype=torch.bfloat16)[..., :32]})
    said = rf"flash_attention: {name}\.stride=\(350, 35, 35, 1\) does not fit order=ws; ."
    with pytest.raises(ValueError, match=said):
        run(case, bad, NARROW, 0, *forward(case, inputs))


@pytest.mark.parametrize(
    ("values", "short", "said"),
    [
        ({"headdim": 64}, WIDE, "ws: 64x128w8s2 is not supported at 64 dims; 128x128w8s2 or s3"),
        ({"headdim": 192}, WIDE, "ws: 64x128w8s2 is not supported at 192 dims; 64x64w8s1 or s2"),
        ({"headdim": 100}, WIDE, "ws: 2-byte elements of 100 and 100 dims; 2 bytes, multiples of 8 up to 256"),
        ({"headdim": 64, "dtype": "fp32"}, NARROW, "ws: 4-byte elements of 64 and 64 dims; 2 bytes"),
    ],
)
def test_what_the_rules_of_the_space_refuse_the_launcher_refuses_too(values, short, said):
    case = case_of(seqlen=10, **values)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    with pytest.raises(ValueError, match=f"^flash_attention: backward={short} is not valid, {said}"):
        run(case, inputs, short, 0, *forward(case, inputs))


def test_another_card_is_refused(monkeypatch):
    case = case_of(seqlen=10)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    known = forward(case, inputs)
    monkeypatch.setattr(flash_backward, "capability_of", lambda x: (10, 0))
    with pytest.raises(ValueError, match=f"backward={NARROW} is not valid, ws: sm_100 has no warpgroup prod"):
        run(case, inputs, NARROW, 0, *known)
