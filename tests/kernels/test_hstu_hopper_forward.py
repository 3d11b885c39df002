"""The HSTU forward for Hopper against the workload's oracle, on a machine that executes it: each mask, odd lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, make_truth
from attnbench.kernels.hstu.dense import forward as hstu_dense_forward
from attnbench.kernels.hstu.dense.configs import ForwardConfig, hopper_fault
from attnbench.kernels.hstu.dense.problem import Problem
from attnbench.kernels.shared.tiling import block_of
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.inputs import make_inputs, torch_dtype

from .hopper_machine import machine_runs

TWO = {"block_m": 128, "block_n": 64, "warps": 8, "stages": 2, "silu": "exp", "order": "ws"}
CUTS = {
    "two": TWO,
    "three": TWO | {"block_m": 192, "warps": 12},
    "wide": TWO | {"block_n": 128},
    "sections": TWO | {"section_mib": 0.04},
    "deep": TWO | {"stages": 3, "section_mib": 0.1},
    "deep-three": TWO | {"block_m": 192, "warps": 12, "stages": 4},
    "one-stage": TWO | {"stages": 1, "block_n": 128},
    "parts": TWO | {"parts": 3},
    "many-parts": TWO | {"block_m": 192, "warps": 12, "stages": 3, "parts": 9},
}
CASES = {
    "one-of-each-length": ({"batch": 4, "seqlen": 257, "lengths": "0:1:128:257"}, "two", "deep", "sections"),
    "just-over": ({"seqlen": 193, "lengths": "193:65"}, "three", "wide", "deep-three"),
    "not-causal": ({"seqlen": 200, "lengths": "200:33", "causal": False}, "two", "sections"),
    "prefix": ({"seqlen": 200, "lengths": "200:9", "contextual_len": 70}, "two", "deep-three", "sections"),
    "prefix-not-causal": ({"seqlen": 150, "lengths": "150:20", "contextual_len": 5, "causal": False}, "wide", "three"),
    "targets": (
        {"batch": 3, "seqlen": 260, "lengths": "260:20:65", "num_targets": "71:20:1"},
        "sections",
        "deep",
        "deep-three",
    ),
    "empty-with-targets": ({"batch": 3, "seqlen": 130, "lengths": "130:0:1", "num_targets": "3:0:1"}, "deep", "three"),
    "many-targets": ({"seqlen": 300, "lengths": "300:299", "num_targets": "210:1"}, "three", "sections"),
    "targets-not-causal": ({"seqlen": 150, "lengths": "150:7", "num_targets": "29:7", "causal": False}, "wide", "two"),
    "window": ({"batch": 1, "seqlen": 400, "max_attn_len": 90}, "two", "deep-three"),
    "narrow-window": ({"batch": 1, "seqlen": 260, "max_attn_len": 1, "num_targets": "3"}, "three", "wide"),
    "window-both-ways": ({"batch": 1, "seqlen": 300, "max_attn_len": 10, "causal": False}, "sections", "two"),
    "window-prefix-targets": (
        {"seqlen": 330, "lengths": "330:30", "max_attn_len": 77, "contextual_len": 6, "num_targets": "20:5"},
        "two",
        "wide",
        "sections",
        "parts",
    ),
    "cached": (
        {"batch": 3, "seqlen": 265, "lengths": "265:3:140", "delta_q": 70, "num_targets": "5:0:2"},
        "sections",
        "one-stage",
        "parts",
        "many-parts",
    ),
    "cached-all": (
        {
            "seqlen": 260,
            "lengths": "260:121",
            "delta_q": 140,
            "num_targets": "5:1",
            "contextual_len": 130,
            "max_attn_len": 12,
        },
        "three",
        "sections",
        "deep-three",
        "parts",
        "many-parts",
    ),
    "odd-dims": (
        {"batch": 1, "nheads": 4, "seqlen": 140, "attn_dim": 24, "linear_dim": 40},
        "two",
        "wide",
        "sections",
        "parts",
    ),
    "narrow-values": ({"batch": 1, "nheads": 4, "seqlen": 140, "attn_dim": 48, "linear_dim": 16}, "deep", "deep-three"),
    "factors": ({"batch": 1, "seqlen": 133, "alpha": 1.3, "scaling_seqlen": 7}, "two", "wide"),
    "parts-of-few-keys": ({"batch": 3, "seqlen": 140, "lengths": "140:0:7"}, "parts", "many-parts"),
    "many-tiles-and-heads": ({"nheads": 2, "seqlen": 300, "lengths": "300:64"}, "wide", "deep", "sections"),
}


@pytest.fixture(autouse=True)
def _plain_sum(monkeypatch):
    """The sum of parts is no kernel of Hopper's: test_hstu_paged.py runs it in Triton's interpreter."""

    def launch_sum(workspace, out, scale, *, hopper):
        assert hopper
        total = workspace.sum(1).unflatten(2, (-1, 4, 2, 2)).transpose(3, 4).flatten(2)
        out.copy_(total[:, :, : out.shape[2]] * scale)

    monkeypatch.setattr(hstu_dense_forward, "launch_sum", launch_sum)
    monkeypatch.setattr(
        hstu_dense_forward,
        "workspace_of",
        lambda q, linear_dim, parts: torch.full((*q.shape[:1], parts, q.shape[1], block_of(linear_dim)), torch.nan),
    )


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 2, "nheads": 1, "attn_dim": 16, "linear_dim": 16, "dtype": "bf16", "mode": "fwd"} | values
    )


def problem_of(case, inputs):
    return Problem(
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


def run(case, inputs, cut, *, seed=0):
    """The output, written over NaN."""
    out = torch.full((*inputs.q.shape[:2], inputs.v.shape[2]), torch.nan, dtype=inputs.q.dtype)
    with machine_runs(hstu_dense_forward, "hstu_hopper_forward", seed=seed):
        hstu_dense_forward.launch_forward(
            inputs.q, inputs.k, inputs.v, out, problem_of(case, inputs), ForwardConfig(**cut)
        )
    return out


def held(case, inputs, out):
    truth = WORKLOAD.oracle("hstu", case, inputs, dtype=torch.float64, draw=Draw())
    plain = WORKLOAD.oracle("hstu", case, inputs, dtype=torch_dtype(case), draw=Draw())
    expected = WORKLOAD.expected_errors("hstu", case, inputs, draw=Draw())
    whole = make_truth(truth, plain, expected, torch_dtype(case), WORKLOAD.outputs("hstu"))
    outcome = compare({"out": out}, whole, Budget())
    assert outcome.ok, outcome.faults


@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask(name):
    values, *cuts = CASES[name]
    for seed, cut in enumerate(cuts):
        case = case_of(dtype=("bf16", "fp16")[seed % 2], **values)
        inputs = make_inputs(case, seed=3 + seed, kind="normal", device="cpu")
        held(case, inputs, run(case, inputs, CUTS[cut], seed=seed))


@pytest.mark.parametrize("cut", ["three", "deep-three"])
def test_the_same_bits_in_whatever_order_its_parts_run(cut):
    case = case_of(seqlen=200, lengths="200:90", num_targets="3:70", max_attn_len=100)
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    first, *others = (run(case, inputs, CUTS[cut], seed=seed) for seed in range(3))
    assert all(torch.equal(first, other) for other in others)


def test_the_dims_of_the_bars():
    for dim in (32, 64, 128, 256):
        case = case_of(batch=3, seqlen=150, attn_dim=dim, linear_dim=dim)  # several jobs a program
        inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
        held(case, inputs, run(case, inputs, TWO, seed=dim))


def test_a_warpgroup_passes_over_tiles_that_its_rows_do_not_see():
    """Values are NaN there: multiplied by the weight 0 of a hidden key they would still show."""
    case = case_of(batch=1, seqlen=128)
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    v = inputs.v.clone()
    v[64:] = torch.nan
    out = run(case, replace(inputs, v=v), TWO)
    assert torch.equal(out[:64], run(case, inputs, TWO)[:64])
    assert out[64:].isnan().all()


@pytest.mark.parametrize("cut", ["sections", "deep-three"])
def test_a_sequence_of_nan_leaves_its_neighbours_alone(cut):
    case = case_of(batch=3, seqlen=140, lengths="140:137:70")
    inputs = make_inputs(case, seed=8, kind="normal", device="cpu")
    before, parts = run(case, inputs, CUTS[cut]), {}
    for name in ("q", "k", "v"):
        parts[name] = getattr(inputs, name).clone()
        parts[name][140:277] = torch.nan
    after = run(case, replace(inputs, **parts), CUTS[cut])
    for rows in (slice(0, 140), slice(277, None)):
        assert torch.equal(before[rows], after[rows])
    assert after[140:277].isnan().all()


def test_slices_of_one_tensor_are_read_where_they_lie():
    case = case_of(seqlen=150, lengths="150:70", nheads=2)
    inputs = make_inputs(case, seed=9, kind="normal", device="cpu")
    q, k, v = torch.cat([inputs.q, inputs.k, inputs.v], dim=2).split(16, dim=2)
    assert torch.equal(run(case, inputs, TWO), run(case, replace(inputs, q=q, k=k, v=v), TWO))


@pytest.mark.parametrize(
    ("cut", "given", "words"),
    [
        (TWO, {"capability": (10, 0)}, "sm_90 alone, not sm_100"),
        (TWO, {"item_bytes": 4}, "16-bit"),
        (TWO | {"block_m": 64, "warps": 4}, {}, "64 rows and 4 warps"),
        (TWO | {"block_n": 256}, {}, "tiles of 256 keys"),
        (TWO, {"linear_dim": 20}, "rows of 20 dims"),
        (TWO | {"registers": 128}, {}, "does not support registers and masked_stages"),
        (TWO | {"masked_stages": 2}, {}, "does not support registers and masked_stages"),
        (TWO | {"block_n": 128}, {"attn_dim": 256, "linear_dim": 256}, "shared memory; at most 226"),
        (TWO | {"stages": 3}, {"attn_dim": 256, "linear_dim": 256}, "shared memory"),
    ],
)
def test_what_cannot_be_launched_is_named(cut, given, words):
    shape = {"capability": (9, 0), "item_bytes": 2, "attn_dim": 128, "linear_dim": 128}
    assert hopper_fault(ForwardConfig(**TWO), **shape) is None
    assert words in (hopper_fault(ForwardConfig(**cut), **shape | given) or "")


def test_a_word_that_is_not_known_is_no_other_path():
    with pytest.raises(ValueError, match=r"^order=wss is not known; one of "):
        ForwardConfig(**TWO | {"order": "wss"})


def test_parts_are_of_the_kernel_for_hopper_alone():
    case = case_of(batch=1, seqlen=40)
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    plain = {"block_m": 128, "block_n": 64, "warps": 8, "stages": 2, "parts": 2}
    with pytest.raises(ValueError, match=r"^hstu_attention: forward\.parts=2 is for the Hopper kernel.*; None"):
        run(case, inputs, plain)
    large = torch.empty(2**22, 1, 16, dtype=torch.bfloat16, device="meta")
    huge = replace(
        problem_of(case, inputs), max_seqlen=2**22, max_seqlen_q=2**22, offsets=torch.zeros(2**8 + 1, dtype=torch.int64)
    )
    with pytest.raises(ValueError, match=r"^hstu_attention: forward\.parts=1024 gives \d+ work items; under 2"):
        hstu_dense_forward.launch_forward(large, large, large, large, huge, ForwardConfig(**TWO | {"parts": 1024}))
    with pytest.raises(ValueError, match=r"^parts=0 is out of range; 1 to 1024$"):
        ForwardConfig(**TWO | {"parts": 0})


def test_a_refusal_is_one_line_and_nothing_else_runs_instead():
    case = case_of(batch=1, seqlen=40, attn_dim=20, linear_dim=20)
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    with pytest.raises(ValueError, match=r"^hstu_attention: forward\.order=ws loads by tensor maps.*; another order$"):
        run(case, inputs, TWO)
    case = case_of(batch=1, seqlen=40)
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    odd = torch.empty(40, 1, 20, dtype=torch.bfloat16)[:, :, :16]
    with pytest.raises(ValueError, match=r"^hstu_attention: k\.stride=\(20, 20, 1\) is not a multiple of 16 bytes"):
        run(case, replace(inputs, k=odd), TWO)


@pytest.mark.parametrize("cut", ["two", "three", "deep-three", "parts"])
def test_sums_over_some_keys_of_more_queries_than_keys_and_of_fewer(cut):
    queries, keys, heads = [200, 1, 70, 3], [65, 130, 0, 1], 2
    torch.manual_seed(0)
    q, k, v = (torch.randn(sum(rows), heads, 16).bfloat16() for rows in (queries, keys, keys))
    problem = Problem(
        offsets=torch.tensor([0, *keys]).cumsum(0),
        offsets_q=torch.tensor([0, *queries]).cumsum(0),
        num_targets=None,
        max_seqlen=max(keys),
        max_seqlen_q=max(queries),
        alpha=0.3,
        scaling_seqlen=9,
        causal=False,
        contextual_len=0,
        max_attn_len=None,
    )
    with machine_runs(hstu_dense_forward, "hstu_hopper_forward", seed=1):
        sums = hstu_dense_forward.launch_forward(q, k, v, None, problem, ForwardConfig(**CUTS[cut]))
    out = torch.full(q.shape, torch.nan)
    hstu_dense_forward.launch_sum(sums, out, 1.0, hopper=True)
    rows = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    scores = ((0.3 * torch.einsum("ihd,jhd->hij", a.double(), b.double()), c.double()) for a, b, c in rows)
    wanted = torch.cat([torch.einsum("hij,jhd->ihd", torch.nn.functional.silu(s), c) for s, c in scores])
    assert sums.dtype == torch.float32
    assert (out - wanted).abs().max() < 0.2, "weights are rounded to bf16"
