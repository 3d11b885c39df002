"""`select` of block-sparse HSTU for Hopper against the oracle, on a machine that executes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.bsa.api import BsaTensors, problem_of
from attnbench.kernels.hstu.bsa.call import allocate
from attnbench.kernels.hstu.bsa.hopper import select as hopper
from attnbench.kernels.hstu.bsa.hopper.select import select_hopper
from attnbench.kernels.hstu.bsa.hopper.select_config import SelectConfig, default_select, select_fault
from attnbench.kernels.hstu.bsa.plan import BsaConfig, default_config, saved_shapes
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD, oracle_bsa
from attnbench.workloads.hstu.inputs import make_inputs

from .hopper_machine import machine_runs

SMALL = {"blocks": 32, "stages": 2}
CUTS = {
    "three": SMALL,
    "two": SMALL | {"groups": 2},
    "alone": SMALL | {"jobs": 1, "stages": 1},
    "few": SMALL | {"groups": 2, "jobs": 3, "stages": 3},
    "tall": SMALL | {"groups": 2, "rows": 128},
    "tallest": SMALL | {"rows": 128},
    "first": SMALL | {"beside": False},
    "wide": SMALL | {"blocks": 64},
    "wide-stripes": SMALL | {"groups": 2, "rows": 128, "blocks": 64},
    "widest": SMALL | {"blocks": 128, "groups": 2},
}
CASES = {
    "several-tiles": ({"seqlen": 1220, "lengths": "1220:1100", "block_size": 16}, "tallest", "wide"),
    "one-of-each-length": ({"batch": 6, "lengths": "0:1:31:33:32:200"}, "two", "three"),
    "no-whole-block": ({"batch": 3, "seqlen": 31, "lengths": "31:0:7", "block_counts": 1}, "two", "alone"),
    "one-block-and-no-more": ({"seqlen": 64, "lengths": "32:64", "block_counts": 2}, "tall", "three"),
    "several-jobs": ({"batch": 3, "lengths": "300:140:260", "nheads": 2}, "few", "tall"),
    "gates-of-three": ({"local_window": 70, "lengths": "300:90"}, "tall", "wide"),
    "no-gates": ({"gates": False, "lengths": "300:65"}, "three", "tall"),
    "window-without-gates": ({"gates": False, "local_window": 1, "lengths": "200:65"}, "few", "three"),
    "window-of-everything": ({"local_window": 400, "lengths": "290:65"}, "two", "widest"),
    "cached": ({"batch": 3, "lengths": "300:6:141", "delta_q": 5}, "two", "three"),
    "cached-window": ({"batch": 3, "lengths": "290:210:141", "delta_q": 140, "local_window": 40}, "tallest", "few"),
    "local-alone": ({"block_counts": 1}, "first", "wide"),
    "one-other": ({"block_counts": 2}, "three", "two"),
    "many-others": ({"block_counts": 8, "seqlen": 500, "lengths": "500:300", "block_size": 16}, "tall", "wide"),
    "blocks-of-64": ({"block_size": 64, "seqlen": 420, "lengths": "420:129"}, "tall", "wide"),
    "blocks-of-128": ({"block_size": 128, "seqlen": 700, "batch": 1}, "two", "tall"),
    "odd-dims": ({"attn_dim": 24, "linear_dim": 40, "lengths": "300:100"}, "three", "two"),
    "narrow-values": ({"attn_dim": 64, "linear_dim": 16, "lengths": "200:100"}, "tall", "wide"),
    "factors": ({"alpha": 1.3, "scaling_seqlen": 7, "lengths": "200:100"}, "two", "wide"),
    "bar-128": ({"attn_dim": 128, "linear_dim": 128, "batch": 1, "seqlen": 420}, "three", "wide"),
    "bar-64": ({"attn_dim": 64, "linear_dim": 64, "batch": 1, "seqlen": 420}, "tallest", "wide"),
}


def case_of(**values):
    return WORKLOAD.case(
        {
            "batch": 2,
            "seqlen": 300,
            "nheads": 1,
            "attn_dim": 16,
            "linear_dim": 16,
            "dtype": "bf16",
            "mode": "fwd",
            "block_size": 32,
            "block_counts": 4,
        }
        | values
    )


def call_of(case, inputs):
    """A call with the oracle's means, whose results nobody has written."""
    tensors = BsaTensors(
        q=inputs.q,
        k=inputs.k,
        v=inputs.v,
        gates=inputs.gates,
        offsets=inputs.seq_offsets,
        offsets_q=inputs.seq_offsets_q if case.delta_q else None,
        num_targets=inputs.num_targets,
    )
    problem = problem_of(
        tensors,
        max_seqlen=inputs.max_seqlen,
        max_seqlen_q=inputs.max_seqlen_q,
        block_size=case.block_size,
        block_counts=case.block_counts,
        alpha=case.alpha,
        scaling_seqlen=case.scaling_seqlen,
        local_window=case.local_window,
        selection=case.selection,
        pairs=case.pairs,
    )
    workspace = allocate(saved_shapes(problem, BsaConfig()), torch.device("cpu"))
    for name, x in (("means_k", inputs.k), ("means_v", inputs.v)):
        workspace[name].fill_(torch.nan)
        for start, end in zip(inputs.seq_offsets[:-1].tolist(), inputs.seq_offsets[1:].tolist(), strict=True):
            whole, first = (end - start) // case.block_size, start // case.block_size
            rows = x[start : start + whole * case.block_size].unflatten(0, (whole, case.block_size)).float().mean(1)
            workspace[name][:, first : first + whole] = rows.transpose(0, 1).to(x.dtype)
    out = torch.full((problem.queries, problem.heads, problem.linear_dim), torch.nan, dtype=problem.dtype)
    blocks = torch.full((problem.queries, problem.heads, problem.block_counts), -9, dtype=torch.int32)
    return tensors.call(problem, BsaConfig(silu="exp"), out, blocks, workspace)


def run(case, inputs, cut, *, seed=0):
    """Output and selection."""
    return run_call(call_of(case, inputs), cut, seed=seed)


def run_call(call, cut, *, seed=0):
    with machine_runs(hopper, "hstu_bsa_hopper_select", seed=seed):
        select_hopper(call, SelectConfig(**cut))
    return call.out, call.blocks


def local_blocks(case, blocks):
    """The selection with the local block alone."""
    alone = torch.full_like(blocks, -1)
    alone[..., 0] = blocks.amax(-1)
    return alone


def held(case, inputs, out, blocks):
    assert not oracle_bsa.selection_faults(case, inputs, blocks)
    ordered = blocks.where(blocks >= 0, 2**30)
    assert torch.equal(ordered, ordered.sort(-1).values)
    near = local_blocks(case, blocks)
    truth = oracle_bsa.evaluate(case, inputs, dtype=torch.float64, draw=Draw(), blocks=near)["out"]
    plain = oracle_bsa.evaluate(case, inputs, dtype=inputs.q.dtype, draw=Draw(), blocks=near)["out"]
    step = torch.finfo(inputs.q.dtype).eps * float(truth.abs().max())
    allowed = 2 * float((plain.double() - truth).abs().max()) + step
    assert float((out.double() - truth).abs().max()) <= allowed


@pytest.mark.parametrize("name", CASES)
def test_output_and_selection_are_the_oracles(name):
    values, *cuts = CASES[name]
    for seed, cut in enumerate(cuts):
        case = case_of(dtype=("bf16", "fp16")[seed], **values)
        inputs = make_inputs(case, seed=3 + seed, kind="normal", device="cpu")
        held(case, inputs, *run(case, inputs, CUTS[cut], seed=seed))


@pytest.mark.parametrize("cut", ["three", "wide"])
@pytest.mark.parametrize("sign", [0.0, 1.0, -1.0])
def test_ties_go_to_the_lower_block(cut, sign):
    case = case_of(batch=1, seqlen=1100, block_counts=4)
    inputs = make_inputs(case, seed=1, kind="zeros", device="cpu")
    inputs.q[:, :, 0], inputs.k[:, :, 0] = 1.0, sign
    _, blocks = run(case, inputs, CUTS[cut])
    assert blocks[1099, 0].tolist() == [0, 1, 2, 34]
    assert blocks[70, 0].tolist() == [0, 1, 2, -1]
    inputs.k[32 * 20 : 32 * 21] = 2.0
    inputs.k[32 * 31 : 32 * 33] = 2.0
    _, blocks = run(case, inputs, CUTS[cut])
    assert blocks[1099, 0].tolist() == [20, 31, 32, 34]
    assert blocks[1030, 0].tolist() == [0, 20, 31, 32]


def test_ranked_by_score_and_not_by_its_silu():
    case = case_of(batch=1, seqlen=110, alpha=1.0, block_counts=2)
    inputs = make_inputs(case, seed=1, kind="zeros", device="cpu")
    inputs.q[:, 0, 0] = 1.0
    inputs.k[:32, 0, 0], inputs.k[32:64, 0, 0], inputs.k[64:96, 0, 0] = -9.0, -1.0, -5.0
    assert run(case, inputs, SMALL)[1][100, 0].tolist() == [1, 3]


@pytest.mark.parametrize("cut", ["three", "few", "tallest"])
def test_the_same_bits_in_whatever_order_its_parts_run(cut):
    case = case_of(lengths="300:170", local_window=40)
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    first, *others = (run(case, inputs, CUTS[cut], seed=seed) for seed in range(4))
    assert all(torch.equal(mine, its) for other in others for mine, its in zip(first, other, strict=True))


def test_a_sequence_of_nan_leaves_its_neighbours_alone():
    case = case_of(batch=3, lengths="260:300:70")
    inputs = make_inputs(case, seed=8, kind="normal", device="cpu")
    before, parts = run(case, inputs, CUTS["three"]), {}
    for name in ("q", "k", "v"):
        parts[name] = getattr(inputs, name).clone()
        parts[name][260:560] = torch.nan
    after = run(case, replace(inputs, **parts), CUTS["three"])
    for mine, its in zip(before, after, strict=True):
        for rows in (slice(0, 260), slice(560, None)):
            assert torch.equal(mine[rows], its[rows])
    assert after[0][260:560].isnan().all()


@pytest.mark.parametrize("cut", ["wide", "wide-stripes"])
def test_no_stripe_takes_keys_nearby_that_its_rows_do_not_see(cut):
    """Values are NaN there: multiplied by the weight 0 of a hidden key they would still show."""
    case = case_of(batch=1, seqlen=192)
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    call = call_of(case, inputs)
    right = run(case, inputs, CUTS[cut])[0]
    for first in (0, 64, 128):
        rows, v = slice(first, first + 64), inputs.v.clone()
        v[rows] = torch.nan
        out, _ = run_call(replace(call, v=v), CUTS[cut])
        assert out[rows].isnan().all()
        out[rows] = right[rows]
        assert torch.equal(out, right)


def test_slices_of_one_tensor_are_read_where_they_lie():
    case = case_of(lengths="150:70", nheads=2)
    inputs = make_inputs(case, seed=9, kind="normal", device="cpu")
    q, k, v = torch.cat([inputs.q, inputs.k, inputs.v], dim=2).split(16, dim=2)
    for mine, its in zip(run(case, inputs, SMALL), run(case, replace(inputs, q=q, k=k, v=v), SMALL), strict=True):
        assert torch.equal(mine, its)


def test_nothing_to_do_is_done():
    case = case_of(lengths="0:0")
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    out, blocks = run(case, inputs, SMALL)
    assert out.shape[0] == blocks.shape[0] == 0


FAULTS = [
    ({"dtype": torch.float32}, {}, "16-bit"),
    ({"attn_dim": 256}, {}, "does not support 256 dims; at most 128"),
    ({"linear_dim": 20}, {}, "rows of 20 dims"),
    ({"has_targets": True}, {}, "no targets"),
    ({"pairs": True}, {}, "no pairs"),
    ({"shared": True}, {}, "each head alone"),
    ({"dtype": torch.float16, "max_seqlen": 2**18}, {}, "for 8192 blocks"),
    ({}, {"groups": 4}, "2 or 3 warpgroups"),
    ({}, {"blocks": 16}, "tiles of 16 means"),
    ({}, {"stages": 0}, "no stage"),
    ({}, {"stages": 9}, "shared memory; at most 226"),
    ({}, {"rows": 128}, "too few registers for 128x32 tiles and 128 dims"),
]


@pytest.mark.parametrize(("of_problem", "of_cut", "words"), FAULTS)
def test_what_cannot_be_launched_is_named(of_problem, of_cut, words):
    case = case_of(attn_dim=128, linear_dim=128)
    problem = call_of(case, make_inputs(case, seed=1, kind="zeros", device="cpu")).problem
    cut = default_select(problem)
    assert select_fault(problem, cut, capability=(9, 0)) is None
    assert "sm_90 alone, not sm_100" in (select_fault(problem, cut, capability=(10, 0)) or "")
    found = select_fault(replace(problem, **of_problem), replace(cut, **of_cut), capability=(9, 0))
    assert words in (found or "")


def test_a_refusal_is_one_line_and_nothing_else_runs_instead():
    case = case_of(num_targets=3)
    with pytest.raises(ValueError, match=r"^select_hopper: knows no targets; another kernel$"):
        run(case, make_inputs(case, seed=1, kind="normal", device="cpu"), SMALL)
    case = case_of(seqlen=140)
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    odd = torch.empty(280, 1, 20, dtype=torch.bfloat16)[:, :, :16]
    with pytest.raises(ValueError, match=r"^select_hopper: v\.stride=\(20, 20, 1\) is not a multiple of 16 bytes; "):
        run_call(replace(call_of(case, inputs), v=odd), SMALL)


def test_the_default_is_for_hopper_where_it_can_run():
    problem = call_of(
        case_of(attn_dim=128, linear_dim=128),
        make_inputs(case_of(attn_dim=128, linear_dim=128), seed=1, kind="zeros", device="cpu"),
    ).problem
    for changes, capability, rows, wanted in (
        ({}, (9, 0), True, (True, True)),
        ({}, (9, 0), False, (False, False)),
        ({}, (10, 0), True, (False, False)),
        ({}, (0, 0), True, (False, False)),
        ({"has_targets": True}, (9, 0), True, (False, True)),
        ({"block_size": 128}, (9, 0), True, (True, False)),
        ({"block_counts": 1}, (9, 0), True, (True, False)),
        ({"dtype": torch.float32}, (9, 0), True, (False, False)),
    ):
        found = default_config(replace(problem, **changes), capability, rows=rows)
        assert (found.select is not None, found.attend is not None) == wanted, (changes, capability, rows)
