"""The flash backward against the workload's oracle, in Triton's interpreter: each mask, odd lengths, many cuts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, make_truth
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs, torch_dtype
from attnbench.workloads.attention.oracle import Rule, visible
from attnbench.workloads.attention.parts import by_sequence
from attnbench.workloads.base import Draw

from .interpreter import interpreted

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def kernels():
    with interpreted(
        "attnbench.kernels.flash.backward", "attnbench.kernels.flash.config.backward", "attnbench.kernels.flash.problem"
    ) as modules:
        yield modules


SMALL, WIDE, TALL = "b16x16w4s1", "b16x32w4s1", "b32x16w4s1"
# Odd ones by atomics, even ones deterministic.
CASES = {
    "plain": ({"seqlen": 50}, f"{SMALL}-atomic"),
    "causal": ({"seqlen": 65, "batch": 1, "causal": True}, f"{WIDE}-r16x32w4s1"),
    "one-query": ({"seqlen": 1, "seqlen_k": 63, "causal": True}, f"{SMALL}-atomic-late-beside"),
    "more-keys": ({"seqlen": 33, "seqlen_k": 65, "causal": True, "batch": 1}, f"{SMALL}-r32x16w4s1-late"),
    "more-queries": ({"seqlen": 65, "seqlen_k": 33, "causal": True, "batch": 1}, f"{TALL}-atomic-ahead"),
    "more-queries-ahead": ({"seqlen": 90, "seqlen_k": 50, "causal": True, "batch": 1}, f"{SMALL}-r16x16w4s1-ahead"),
    "window": ({"seqlen": 70, "batch": 1, "window": (17, 0), "causal": True}, f"{SMALL}-atomic-m2"),
    "window-both-ways": ({"seqlen": 70, "batch": 1, "window": (20, 9)}, f"{SMALL}-r16x16w4s1"),
    "window-of-one": ({"seqlen": 50, "seqlen_k": 60, "batch": 1, "window": (0, 0)}, f"{TALL}-atomic"),
    "window-right-only": ({"seqlen": 60, "seqlen_k": 20, "batch": 1, "window": (-1, 3)}, f"{SMALL}-r16x16w4s1-late"),
    "grouped": ({"seqlen": 40, "nheads": 4, "nheads_kv": 2, "causal": True, "batch": 1}, f"{SMALL}-atomic-ahead"),
    "one-kv-head": ({"seqlen": 35, "nheads": 3, "nheads_kv": 1, "window": (12, 5)}, f"{SMALL}-r16x16w4s1"),
    "packed": ({"batch": 4, "seqlen": 65, "lengths": "1:50:16:33", "causal": True}, f"{SMALL}-atomic-ahead"),
    "packed-both": (
        {
            "batch": 3,
            "seqlen": 50,
            "seqlen_k": 60,
            "lengths": "50/20:17/60:3/3",
            "causal": True,
            "nheads": 2,
            "nheads_kv": 1,
        },
        f"{WIDE}-r32x16w4s1",
    ),
    "odd-dims": ({"seqlen": 40, "headdim": 24, "headdim_v": 40, "batch": 1, "causal": True}, f"{SMALL}-atomic"),
    "one-dim": ({"seqlen": 20, "headdim": 1, "headdim_v": 3, "batch": 1}, f"{SMALL}-r16x16w4s1"),
    "many-sections": ({"batch": 3, "seqlen": 33, "nheads": 2}, f"{SMALL}-atomic-l1"),
}


def case_of(**values):
    return WORKLOAD.case({"batch": 2, "nheads": 1, "headdim": 16, "dtype": "fp32", "mode": "bwd"} | values)


def problem_of(module, case, inputs):
    packed = {name: getattr(inputs, name) for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")}
    return module.problem_of(
        inputs.q, inputs.k, inputs.v, causal=case.causal, window=case.window, **(packed if case.packed else {})
    )


def forward(case, inputs):
    """Out and lse in plain torch, each rounded once from fp64."""
    out, logs = torch.empty_like(inputs.dout), []
    views = [
        by_sequence(case, name, x)
        for name, x in zip(("q", "k", "v", "out"), (inputs.q, inputs.k, inputs.v, out), strict=True)
    ]
    for (queries, keys), q, k, v, result in zip(case.sequences, *views, strict=True):
        q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
        k, v = (x.repeat_interleave(case.group_size, 0) for x in (k, v))
        see = visible(range(queries), range(keys), Rule.of(case).band(queries, keys), q.device)
        lse = (q @ k.mT * case.scale).masked_fill(~see, -torch.inf).logsumexp(-1)
        weights = ((q @ k.mT * case.scale).masked_fill(~see, -torch.inf) - lse[..., None]).exp().nan_to_num(0.0)
        result.copy_((weights @ v).transpose(0, 1))
        logs.append(lse.float())
    return out, torch.cat(logs, 1)[None] if case.packed else torch.stack(logs)


def run(kernels, case, inputs, config, out=None, lse=None):
    """Gradients, written over NaN, with a workspace of NaN."""
    backward, configs, problems = kernels
    config, problem = configs.parse_backward(config), problem_of(problems, case, inputs)
    if out is None:
        out, lse = forward(case, inputs)
    assert lse.shape == problems.lse_shape(inputs.q, problem)
    q, k, v = inputs.q, inputs.k, inputs.v
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    workspace = backward.workspace_of(q, problem, config)
    for x in (workspace.stats, workspace.sums):
        if x is not None:
            x.fill_(torch.nan)
    backward.launch_backward(q, k, v, out, inputs.dout, lse, dq, dk, dv, problem, config, workspace)
    return {"out": out, "dq": dq, "dk": dk, "dv": dv}


def held(case, inputs, found):
    truth = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    plain = WORKLOAD.oracle("softmax", case, inputs, dtype=torch_dtype(case), draw=Draw())
    expected = WORKLOAD.expected_errors("softmax", case, inputs, draw=Draw())
    whole = make_truth(truth, plain, expected, torch_dtype(case), WORKLOAD.outputs("softmax"))
    outcome = compare(found, whole, Budget())
    assert outcome.ok, outcome.faults


@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask(kernels, name):
    values, config = CASES[name]
    case = case_of(**values)
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, config))


@pytest.mark.parametrize("name", ["window-both-ways", "grouped", "packed-both", "odd-dims"])
def test_right_in_half_precision(kernels, name):
    values, config = CASES[name]
    case = case_of(**values, dtype="fp16")
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, config))


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        (f"{SMALL}-atomic-tma-fused", "full"),
        (f"{SMALL}-r16x16w4s1-tma-ahead-fused", "full"),
        (f"{TALL}-r16x32w4s1-tma", "50:33"),
        (f"{SMALL}-atomic-tma-ahead-fused-beside", "50:33"),
    ],
)
def test_right_through_tensor_descriptors(kernels, config, lengths):
    case = case_of(seqlen=50, lengths=lengths, headdim=24, causal=True, nheads=2, nheads_kv=1)
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, config))


@settings(max_examples=6, derandomize=True)
@given(data=st.data())
def test_right_on_whatever_is_drawn(kernels, data):
    draw = data.draw
    length, bound = st.integers(1, 50), st.integers(-1, 40)
    lengths = draw(st.lists(st.tuples(length, length), min_size=1, max_size=2))
    rows, keys = (max(side) for side in zip(*lengths, strict=True))
    case = case_of(
        batch=len(lengths),
        seqlen=rows,
        seqlen_k=keys,
        causal=draw(st.booleans()),
        lengths=":".join(f"{q}/{k}" for q, k in lengths),
        window=draw(st.one_of(st.none(), st.tuples(bound, bound))),
    )
    inputs = make_inputs(case, seed=draw(st.integers(0, 9)), kind="normal", device="cpu")
    size = st.sampled_from((16, 32))
    config = (
        f"b{draw(size)}x{draw(size)}w4s1-"
        + draw(st.one_of(st.just("atomic"), st.builds("r{}x{}w4s1".format, size, size)))
        + draw(st.sampled_from(("", "-late", "-ahead", "-tma-fused", "-tma-ahead-fused")))
    )
    held(case, inputs, run(kernels, case, inputs, config))


def test_scores_far_below_zero_do_not_overflow_where_keys_end(kernels):
    case = case_of(seqlen=20, batch=1)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    far = replace(inputs, q=torch.full_like(inputs.q, 4.0), k=inputs.k - 10.0)
    _, lse = forward(case, far)
    assert lse.max() < -100
    for config in (f"{SMALL}-atomic", f"{SMALL}-r16x16w4s1"):
        found = run(kernels, case, far, config)
        truth = WORKLOAD.oracle("softmax", case, far, dtype=torch.float64, draw=Draw())
        for name, right in truth.items():
            # The further from 0, the coarser lse is in fp32, and P with it.
            torch.testing.assert_close(found[name].double(), right, rtol=1e-3, atol=1e-3 * float(right.abs().max()))


def test_deterministic_sums_have_the_same_bits_twice_and_dk_dv_always(kernels):
    case = case_of(batch=1, seqlen=40, nheads=2, nheads_kv=1, causal=True)
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    first, second = (run(kernels, case, inputs, config) for config in (f"{SMALL}-atomic", f"{SMALL}-r16x16w4s1"))
    assert torch.equal(first["dk"], second["dk"])
    assert torch.equal(first["dv"], second["dv"])


def poisoned(x, rows):
    x = x.clone()
    x[:, rows] = torch.nan
    return x


@pytest.mark.parametrize(
    ("values", "poison", "clean"),
    [
        ({"window": (16, 0), "causal": True}, slice(0, 16), slice(48, None)),
        ({"window": (16, 16)}, slice(80, None), slice(0, 48)),
        ({"causal": True}, slice(48, None), slice(0, 48)),
    ],
)
def test_tiles_that_no_row_sees_are_not_looked_at(kernels, values, poison, clean):
    case = case_of(batch=1, seqlen=96, **values)
    inputs = make_inputs(case, seed=8, kind="normal", device="cpu")
    out, lse = forward(case, inputs)
    config = f"{SMALL}-r16x16w4s1"
    before = run(kernels, case, inputs, config, out, lse)
    bad = replace(inputs, k=poisoned(inputs.k, poison), v=poisoned(inputs.v, poison))
    after = run(kernels, case, bad, config, out, lse)
    assert torch.equal(after["dq"][:, clean], before["dq"][:, clean])
    assert after["dq"][:, poison].isnan().any()
    # And from the side of the keys: rows that do not see them.
    bad = replace(inputs, q=poisoned(inputs.q, clean), dout=poisoned(inputs.dout, clean))
    after = run(kernels, case, bad, config, out, lse)
    assert torch.equal(after["dk"][:, poison], before["dk"][:, poison])


@pytest.mark.parametrize("config", [f"{SMALL}-atomic", f"{SMALL}-r16x16w4s1-tma"])
@pytest.mark.parametrize("lengths", ["full", "40:37:40"])
def test_a_sequence_of_nan_leaves_its_neighbours_alone(kernels, config, lengths):
    case = case_of(batch=3, seqlen=40, lengths=lengths)
    inputs = make_inputs(case, seed=9, kind="normal", device="cpu")
    out, lse = forward(case, inputs)
    before = run(kernels, case, inputs, config, out, lse)
    bad = {}
    for name, x in {**inputs.tensors(), "out": out}.items():
        bad[name] = x.clone()
        if x.is_floating_point():
            by_sequence(case, name, bad[name])[1].fill_(torch.nan)
    after = run(
        kernels, case, replace(inputs, **{name: bad[name] for name in ("q", "k", "v", "dout")}), config, bad["out"], lse
    )
    for name in ("dq", "dk", "dv"):
        pieces = [by_sequence(case, name, result[name]) for result in (before, after)]
        assert all(torch.equal(pieces[0][i], pieces[1][i]) for i in (0, 2)), name
        assert pieces[1][1].isnan().any()


@pytest.mark.parametrize("values", [{"seqlen": 70}, {"batch": 3, "seqlen": 70, "lengths": "70:1:16"}])
def test_the_workspace_is_as_large_as_said(kernels, values):
    backward, configs, problems = kernels
    case = case_of(**values, nheads=2)
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    problem = problem_of(problems, case, inputs)
    # 70 rows are 96 in tiles of 32; packed 87 rows, 64 in whole tiles, and a tile a sequence.
    rows = 160 if case.packed else 2 * 96
    for short, each in (("b32x16w4s1-atomic", 8 + 4 * 16), ("b16x16w4s1-r32x16w4s1", 8)):
        config = configs.parse_backward(short)
        workspace = backward.workspace_of(inputs.q, problem, config)
        taken = sum(x.nbytes for x in (workspace.stats, workspace.sums) if x is not None)
        assert taken == backward.workspace_bytes(inputs.q, problem, config) == rows * 2 * each


def test_nothing_is_launched_for_nothing(kernels):
    backward, configs, problems = kernels
    for rows, keys, heads in ((0, 3, 1), (3, 0, 1), (3, 3, 0)):
        q, k = torch.ones(1, rows, heads, 16), torch.ones(1, keys, 1, 16)
        problem = problems.problem_of(q, k, k)
        config = configs.parse_backward(f"{SMALL}-atomic-tma")
        dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, k))
        lse = torch.full((1, heads, rows), -torch.inf)
        backward.launch_backward(
            q, k, k, torch.zeros_like(q), q, lse, dq, dk, dv, problem, config, backward.workspace_of(q, problem, config)
        )
        assert not any(x.any() for x in (dq, dk, dv))
