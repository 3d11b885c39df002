"""Flash attention forward against the workload's oracle, in Triton's interpreter: each mask, odd lengths, many cuts."""

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
from attnbench.workloads.base import Draw

from .interpreter import interpreted

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def kernels():
    with interpreted(
        "attnbench.kernels.flash.problem", "attnbench.kernels.flash.config.forward", "attnbench.kernels.flash.forward"
    ) as modules:
        yield modules


SMALL, WIDE, TALL, LARGE = "m16n16w4s1", "m16n32w4s1-ahead", "m32n16w4s1-ahead-fused", "m64n64w4s1"
CASES = {
    "one-query": ({"batch": 1, "seqlen": 1}, SMALL),
    "one-query-many-keys": ({"batch": 1, "seqlen": 1, "seqlen_k": 129, "causal": True}, WIDE),
    "just-under": ({"batch": 1, "seqlen": 63, "causal": True}, TALL),
    "127": ({"batch": 1, "seqlen": 127}, "m32n32w4s1-ahead"),
    "129-causal": ({"batch": 1, "seqlen": 129, "causal": True}, "m32n32w4s1-fused"),
    "1000-causal": ({"batch": 1, "seqlen": 1000, "nheads": 1, "causal": True}, "m256n128w4s1-ahead-fused"),
    "1000": ({"batch": 1, "seqlen": 1000, "nheads": 1}, "m128n256w4s1-ahead"),
    "more-keys": ({"seqlen": 40, "seqlen_k": 75, "causal": True}, TALL),
    "more-queries": ({"seqlen": 75, "seqlen_k": 40, "causal": True}, WIDE),
    "rows-without-keys": ({"seqlen": 100, "seqlen_k": 3, "causal": True}, SMALL),
    "window": ({"batch": 1, "seqlen": 80, "window": (18, 5)}, WIDE),
    "window-fused": ({"batch": 1, "seqlen": 80, "window": (18, 5)}, TALL),
    "window-left": ({"batch": 1, "seqlen": 80, "window": (20, -1)}, SMALL),
    "window-causal": ({"batch": 1, "seqlen": 80, "window": (9, 0), "causal": True}, TALL),
    "window-of-one": ({"batch": 1, "seqlen": 50, "window": (0, 0)}, SMALL),
    "window-more-queries": ({"batch": 1, "seqlen": 80, "seqlen_k": 33, "window": (4, 2)}, TALL),
    "grouped": ({"seqlen": 50, "nheads": 4, "nheads_kv": 2, "causal": True}, SMALL),
    "one-kv-head": ({"seqlen": 50, "nheads": 3, "nheads_kv": 1}, WIDE),
    "packed": ({"batch": 4, "seqlen": 65, "lengths": "65:1:17:33", "causal": True}, SMALL),
    "packed-ahead": ({"batch": 3, "seqlen": 65, "lengths": "65:1:40", "nheads_kv": 1}, WIDE),
    "packed-keys": ({"batch": 3, "seqlen": 60, "seqlen_k": 70, "lengths": "60/9:1/70:33/40", "causal": True}, TALL),
    "packed-window": ({"batch": 2, "seqlen": 70, "lengths": "70:21", "window": (11, 3)}, WIDE),
    "odd-dims": ({"batch": 1, "seqlen": 40, "headdim": 40, "headdim_v": 24, "causal": True}, WIDE),
    "headdim-96": ({"batch": 1, "seqlen": 40, "headdim": 96, "nheads": 1}, TALL),
    "one-dim": ({"batch": 1, "seqlen": 20, "headdim": 1, "headdim_v": 3}, SMALL),
    "persistent": ({"batch": 2, "seqlen": 50, "causal": True}, "m16n16w4s1-ahead-fused-persistent"),
    "sections": (
        {"batch": 2, "seqlen": 33, "seqlen_k": 520, "nheads": 2, "nheads_kv": 1, "headdim": 256},
        "m32n128w4s1-l1",
    ),
}


def case_of(**values):
    return WORKLOAD.case({"batch": 2, "nheads": 2, "headdim": 16, "dtype": "fp32", "mode": "fwd"} | values)


def run(kernels, case, inputs, short):
    """Output and lse, written over NaN."""
    problems, configs, forward = kernels
    packed = {name: getattr(inputs, name) for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")}
    problem = problems.problem_of(
        inputs.q, inputs.k, inputs.v, causal=case.causal, window=case.window, **(packed if case.packed else {})
    )
    problems.check_values(problem, inputs.q, inputs.k)
    out = torch.full((*inputs.q.shape[:-1], case.headdim_v), torch.nan, dtype=inputs.q.dtype)
    lse = torch.full(problems.lse_shape(inputs.q, problem), torch.nan)
    forward.launch_forward(inputs.q, inputs.k, inputs.v, out, lse, problem, configs.parse(short))
    return out, lse


def held(case, inputs, out):
    truth = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    plain = WORKLOAD.oracle("softmax", case, inputs, dtype=torch_dtype(case), draw=Draw())
    expected = WORKLOAD.expected_errors("softmax", case, inputs, draw=Draw())
    whole = make_truth(truth, plain, expected, torch_dtype(case), WORKLOAD.outputs("softmax"))
    outcome = compare({"out": out}, whole, Budget())
    assert outcome.ok, outcome.faults


def lse_of(case, inputs):
    """[B, H, Sq], packed [1, H, Tq], written out plainly."""
    found, at_q, at_k = [], 0, 0
    q, k = (x if case.packed else x.flatten(0, 1) for x in (inputs.q.double(), inputs.k.double()))
    left, right = case.reach
    for queries, keys in case.sequences:
        mine, theirs = q[at_q : at_q + queries], k[at_k : at_k + keys].repeat_interleave(case.group_size, dim=1)
        scores = torch.einsum("ihd,jhd->hij", mine, theirs) * case.scale
        away = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries)
        hidden = (away < -(10**9 if left is None else left)) | (away > (10**9 if right is None else right))
        found.append(scores.masked_fill(hidden, -torch.inf).logsumexp(-1))
        at_q, at_k = at_q + queries, at_k + keys
    return torch.cat(found, dim=1)[None] if case.packed else torch.stack(found)


@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask(kernels, name):
    values, short = CASES[name]
    case = case_of(**values)
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    out, lse = run(kernels, case, inputs, short)
    held(case, inputs, out)
    torch.testing.assert_close(lse, lse_of(case, inputs).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["129-causal", "packed-keys", "window-fused", "odd-dims"])
def test_right_in_half_precision(kernels, name):
    values, short = CASES[name]
    case = case_of(dtype="fp16", **values)
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, short)[0])


@pytest.mark.parametrize("short", ["m16n16w4s1-tma", "m16n32w4s2-tma-ahead", "m32n16w4s1-tma-ahead-fused"])
@pytest.mark.parametrize("name", ["more-keys", "packed", "window"])
def test_right_through_tensor_descriptors(kernels, name, short):
    case = case_of(**{"nheads_kv": 1, "headdim": 24, **CASES[name][0]})
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, short)[0])


@settings(max_examples=10, derandomize=True)
@given(data=st.data())
def test_right_on_whatever_is_drawn(kernels, data):
    draw = data.draw
    lengths = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=2))
    bound = st.integers(-1, 40)
    case = case_of(
        batch=len(lengths),
        seqlen=50,
        seqlen_k=51,
        nheads=2,
        nheads_kv=draw(st.sampled_from((1, 2))),
        headdim=16,
        lengths=":".join(f"{queries}/{keys}" for queries, keys in lengths) if draw(st.booleans()) else "full",
        causal=draw(st.booleans()),
        window=draw(st.one_of(st.none(), st.tuples(bound, bound))),
    )
    inputs = make_inputs(case, seed=draw(st.integers(0, 9)), kind="normal", device="cpu")
    held(case, inputs, run(kernels, case, inputs, draw(st.sampled_from((SMALL, WIDE, TALL, LARGE))))[0])


# NumPy, not the kernel, has this to say of the largest of nothing but NaN.
ALL_NAN = pytest.mark.filterwarnings("ignore:All-NaN slice")


def poisoned(x, rows):
    x = x.clone()
    x[:, rows] = torch.nan
    return x


@ALL_NAN
@pytest.mark.parametrize("short", [WIDE, "m16n16w4s1-tma-ahead-fused"])
@pytest.mark.parametrize(
    ("values", "poison", "clean"),
    [
        ({"window": (16, 0)}, slice(0, 16), slice(48, None)),
        ({"window": (16, 16)}, slice(80, None), slice(0, 48)),
        ({"causal": True}, slice(48, None), slice(0, 32)),
    ],
)
def test_tiles_that_no_row_sees_are_not_looked_at(kernels, values, poison, clean, short):
    case = case_of(batch=1, seqlen=96, **values)
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    before, _ = run(kernels, case, inputs, short)
    bad = replace(inputs, k=poisoned(inputs.k, poison), v=poisoned(inputs.v, poison))
    after, lse = run(kernels, case, bad, short)
    assert torch.equal(after[:, clean], before[:, clean])
    assert after[:, poison].isnan().any()
    assert lse[:, :, poison].isnan().any()


@ALL_NAN
def test_a_sequence_of_nan_leaves_its_neighbours_alone(kernels):
    case = case_of(batch=3, seqlen=40, lengths="40:37:40")
    inputs = make_inputs(case, seed=8, kind="normal", device="cpu")
    for short in (TALL, "m16n16w4s1-tma-ahead-fused"):
        before, _ = run(kernels, case, inputs, short)
        bad = replace(inputs, **{name: poisoned(getattr(inputs, name)[None], slice(40, 77))[0] for name in "qkv"})
        after, _ = run(kernels, case, bad, short)
        for rows in (slice(0, 40), slice(77, None)):
            assert torch.equal(after[rows], before[rows])
        assert after[40:77].isnan().all()


def test_large_scores_neither_overflow_nor_vanish(kernels):
    case = case_of(seqlen=40, causal=True)
    inputs = make_inputs(case, seed=9, kind="normal", device="cpu")
    inputs = replace(inputs, q=inputs.q * 300)
    out, lse = run(kernels, case, inputs, WIDE)
    held(case, inputs, out)
    assert lse.abs().max() > 500


def test_rows_of_one_dim_may_have_gaps_that_no_descriptor_takes(kernels):
    case = case_of(seqlen=40, headdim=1)
    plain = make_inputs(case, seed=6, kind="normal", device="cpu")
    apart = {name: torch.zeros(2, 40, 2, 64)[..., ::64].copy_(getattr(plain, name)) for name in "qkv"}
    for short in (SMALL, "m16n16w4s1-tma"):
        assert torch.equal(run(kernels, case, replace(plain, **apart), short)[0], run(kernels, case, plain, SMALL)[0])


def test_slices_of_one_tensor_need_no_copy(kernels):
    case = case_of(seqlen=40, headdim=16)
    plain = make_inputs(case, seed=6, kind="normal", device="cpu")
    fused = torch.cat([plain.q, plain.k, plain.v], dim=3)
    q, k, v = fused.split(16, dim=3)
    assert torch.equal(run(kernels, case, replace(plain, q=q, k=k, v=v), SMALL)[0], run(kernels, case, plain, SMALL)[0])
