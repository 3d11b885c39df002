"""The selected branch of block-sparse HSTU for Hopper, on a machine that executes it, against its sum in fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.bsa.call import BsaCall, allocate
from attnbench.kernels.hstu.bsa.hopper import attend as hstu_bsa_hopper_attend
from attnbench.kernels.hstu.bsa.hopper.attend_config import AttendConfig, attend_fault, attend_shapes, default_attend
from attnbench.kernels.hstu.bsa.plan import BsaConfig
from attnbench.kernels.hstu.bsa.problem import BsaProblem
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD, oracle_bsa
from attnbench.workloads.hstu.inputs import make_inputs

from .hopper_machine import machine_runs
from .interpreter import interpreted

ROWS = 128
CUT = AttendConfig(stages=2, jobs=2, step_mib=0, ring_mib=0)


def problem_of(
    lengths,
    queries=None,
    *,
    targets=None,
    heads=2,
    dims=(16, 16),
    block_size=16,
    counts=3,
    gates=0,
    shared=False,
    dtype=torch.bfloat16,
):
    queries = queries or lengths
    return BsaProblem(
        batch=len(lengths),
        heads=heads,
        queries=sum(queries),
        keys=sum(lengths),
        max_seqlen=max(lengths),
        max_seqlen_q=max(queries),
        attn_dim=dims[0],
        linear_dim=dims[1],
        dtype=dtype,
        block_size=block_size,
        block_counts=counts,
        local_window=0,
        gates=gates,
        alpha=0.7,
        scaling_seqlen=5,
        shared=shared,
        pairs=False,
        has_targets=targets is not None,
        has_cache=queries is not lengths,
    )


class Sequences:
    """Where each sequence lies, and what its queries may choose."""

    def __init__(self, problem, lengths, queries=None, targets=None):
        self.problem, self.lengths, self.queries = problem, lengths, queries or lengths
        self.seen = [n - t for n, t in zip(lengths, targets or [0] * len(lengths), strict=True)]
        self.offsets, self.offsets_q = (torch.tensor([0, *many]).cumsum(0) for many in (lengths, self.queries))

    def local(self, number):
        """Local block of each query of a sequence."""
        at = torch.arange(self.lengths[number] - self.queries[number], self.lengths[number])
        return at.clamp(max=self.seen[number] - 1).clamp(min=0) // self.problem.block_size

    def chosen(self, draw):
        """A selection: the local block, and of those before it some at random; `draw` weighs them."""
        p = self.problem
        blocks = torch.full((p.queries, p.list_heads, p.block_counts), -1, dtype=torch.int32)
        for number, first in enumerate(self.offsets_q[:-1].tolist()):
            for row, local in enumerate(self.local(number).tolist()):
                for head in range(p.list_heads):
                    others = torch.argsort(draw(local), descending=True)[: p.others].sort().values
                    own = [*others.tolist(), local][: p.block_counts] if local else [0]
                    blocks[first + row, head, : len(own)] = torch.tensor(own, dtype=torch.int32)
        return blocks

    def lists(self, blocks, workspace):
        """For each block its queries, in a mixed order, as tiles of ROWS."""
        p, tile_rows = self.problem, self.problem.tile_rows(ROWS)
        workspace |= {
            "entries": torch.full((p.list_heads, p.queries * p.others), -7, dtype=torch.int32),
            "tiles": torch.full((p.list_heads, tile_rows, 3), -7, dtype=torch.int32),
            "num_tiles": torch.full((p.batch * p.list_heads,), -7, dtype=torch.int32),
        }
        for number in range(p.batch):
            first, rows = self.offsets_q[number].item(), self.queries[number]
            for head in range(p.list_heads):
                own = blocks[first : first + rows, head, : p.others]
                own = own.where(own < self.local(number)[:, None], -1).flatten()
                table = first * p.others // ROWS + self.offsets[number].item() // p.block_size
                start, tile = 0, 0
                for block in range(self.seen[number] // p.block_size):
                    found = (own == block).nonzero().flatten()
                    found = found[torch.randperm(len(found))]
                    workspace["entries"][head, first * p.others + start :][: len(found)] = found
                    for at in range(0, len(found), ROWS):
                        record = torch.tensor([start + at, block, min(ROWS, len(found) - at)])
                        workspace["tiles"][head, table + tile] = record
                        tile += 1
                    start += len(found)
                workspace["num_tiles"][number * p.list_heads + head] = tile


def call_of(problem, sequences, cut, *, draw=torch.rand, spread=1.0):
    """A call whose workspace is poisoned but for the lists."""
    p = problem
    torch.manual_seed(p.queries)
    q, k, v, out = (
        (torch.randn(rows, p.heads, dim) * spread).to(p.dtype)
        for rows, dim in (
            (p.queries, p.attn_dim),
            (p.keys, p.attn_dim),
            (p.keys, p.linear_dim),
            (p.queries, p.linear_dim),
        )
    )
    gates = torch.randn(p.queries, p.heads, p.gates).to(p.dtype) if p.gates else None
    workspace = allocate(attend_shapes(p, cut), torch.device("cpu"))
    workspace["partial"].fill_(torch.nan)
    workspace["progress"].fill_(77)
    blocks = sequences.chosen(draw)
    sequences.lists(blocks, workspace)
    targets = torch.tensor([n - s for n, s in zip(sequences.lengths, sequences.seen, strict=True)])
    return BsaCall(
        problem=p,
        config=BsaConfig(attend_rows=ROWS, silu="exp"),
        q=q,
        k=k,
        v=v,
        gates=gates,
        offsets=sequences.offsets,
        offsets_q=sequences.offsets_q if p.has_cache else None,
        num_targets=targets if p.has_targets else None,
        out=out,
        blocks=blocks,
        workspace=workspace,
    )


def summed(call, sequences, kind):
    """What `attend_hopper` makes of out, in fp64; or with the kernel's roundings, in its dtype."""
    p, exact = call.problem, kind == torch.float64
    out = call.out.to(torch.float64 if exact else torch.float32)

    def rounded(x):
        return x if exact else x.to(kind).float()

    for number in range(p.batch):
        keys = slice(*sequences.offsets[number : number + 2].tolist())
        rows = slice(*sequences.offsets_q[number : number + 2].tolist())
        for head in range(p.heads):
            q, k, v = (x[:, head].to(out.dtype) for x in (call.q[rows], call.k[keys], call.v[keys]))
            own = call.blocks[rows, 0 if p.shared else head, : p.others]
            own = own.where(own < sequences.local(number)[:, None], -1)
            total = torch.zeros(len(q), p.linear_dim, dtype=out.dtype)
            weights = rounded(torch.nn.functional.silu(p.alpha * (q @ k.T)))
            of_key = torch.arange(len(k)) // p.block_size
            for slot in range(p.others):
                mine = weights * (of_key[None, :] == own[:, slot, None])
                total += rounded(mine @ v / p.scaling_seqlen)
            gate = call.gates[rows, head, 1:2].to(out.dtype) if p.gates else 1
            out[rows, head] += gate * total
    return out if exact else out.to(kind).double()


def ran(call, cut, *, seed=0, at_once=2):
    """What out becomes."""
    call = replace(call, out=call.out.clone())
    with machine_runs(hstu_bsa_hopper_attend, "hstu_bsa_hopper_attend", seed=seed, at_once=at_once):
        hstu_bsa_hopper_attend.attend_hopper(call, cut)
    return call.out


def held(call, sequences, out):
    """Within twice the error of the same sum in the same precision."""
    truth, plain = (summed(call, sequences, kind) for kind in (torch.float64, call.problem.dtype))
    error, budget = ((x.double() - truth).abs().max().item() for x in (out, plain))
    assert error <= 2 * budget, (error, budget)


def everybody(local):
    """Everybody chooses block 0 first."""
    return torch.tensor([2.0, *torch.rand(max(local - 1, 0)).tolist()])[:local]


CASES = {
    "plain": ({"lengths": [70, 41]}, CUT),
    "odd-lengths": ({"lengths": [0, 1, 31, 33, 100, 0], "block_size": 32, "gates": 2, "counts": 2}, CUT),
    "two-blocks": ({"lengths": [150], "counts": 2, "gates": 3}, replace(CUT, jobs=1)),
    "eight-blocks": ({"lengths": [200, 17], "counts": 8, "heads": 1}, replace(CUT, stages=4)),
    "four-blocks": ({"lengths": [130, 64], "counts": 4, "gates": 3, "dims": (64, 64), "block_size": 32}, CUT),
    "short-jobs": ({"lengths": [70], "counts": 6, "gates": 2}, replace(CUT, job_rows=16)),
    "long-jobs": ({"lengths": [130, 70], "counts": 4, "gates": 2}, replace(CUT, job_rows=64)),
    "many-pairs-a-step": ({"lengths": [40, 20, 0, 90, 16, 33, 17, 50, 1]}, replace(CUT, step_mib=0.005)),
    "all-pairs-in-a-step": ({"lengths": [40, 20, 0, 90]}, replace(CUT, step_mib=1)),
    "long-ring": ({"lengths": [40, 20, 70, 90]}, replace(CUT, ring_mib=1)),
    "shared": ({"lengths": [70, 41], "shared": True, "gates": 3}, CUT),
    "cached": ({"lengths": [100, 41, 30], "queries": [50, 41, 1], "gates": 2}, CUT),
    "targets": ({"lengths": [90, 41, 33], "targets": [20, 0, 33]}, CUT),
    "cached-targets": ({"lengths": [90, 81], "queries": [30, 50], "targets": [20, 3], "shared": True}, CUT),
    "other-dims": ({"lengths": [70, 41], "dims": (24, 40), "dtype": torch.float16}, CUT),
    "wide-values": ({"lengths": [100], "dims": (16, 128), "heads": 1, "block_size": 32}, CUT),
    "no-lists": ({"lengths": [15, 16, 1], "gates": 3}, CUT),
}


def made(values):
    given = {name: values.get(name) for name in ("queries", "targets")}
    problem = problem_of(
        values["lengths"], **given, **{name: value for name, value in values.items() if name not in ("lengths", *given)}
    )
    return problem, Sequences(problem, values["lengths"], **given)


@pytest.mark.parametrize("name", CASES)
def test_the_sum_of_partial_rows_is_added(name):
    values, cut = CASES[name]
    problem, sequences = made(values)
    call = call_of(problem, sequences, cut)
    held(call, sequences, ran(call, cut, seed=len(name)))


def test_a_block_that_all_choose_is_many_tiles():
    problem, sequences = made({"lengths": [300], "counts": 2, "heads": 1, "gates": 2})
    call = call_of(problem, sequences, CUT, draw=everybody)
    assert call.workspace["num_tiles"].item() == 3  # 284 entries, all of one block
    held(call, sequences, ran(call, CUT))


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (32, 64)])
def test_the_dims_of_the_bars(dims):
    problem, sequences = made({"lengths": [100, 65], "counts": 4, "dims": dims, "block_size": 32, "gates": 3})
    cut = replace(default_attend(problem), step_mib=0, ring_mib=0)
    call = call_of(problem, sequences, cut)
    held(call, sequences, ran(call, cut, seed=dims[0]))


def test_the_same_bits_in_whatever_order_programs_and_their_parts_run():
    problem, sequences = made({"lengths": [130, 41, 64], "counts": 4, "gates": 3})
    calls = [
        (replace(CUT, programs=programs, ring_mib=ring, step_mib=step), seed, at_once)
        for seed, (programs, ring, step, at_once) in enumerate(
            [(1, 0, 0, 2), (1, 0, 0, 1), (2, 0, 0.005, 3), (2, 1, 0, 4), (1, 0, 0, 2)]
        )
    ]
    first, *others = (
        ran(call_of(problem, sequences, cut), cut, seed=seed, at_once=at_once) for cut, seed, at_once in calls
    )
    assert all(torch.equal(first, other) for other in others)


def test_a_ring_of_one_step():
    problem, sequences = made({"lengths": [70, 41, 90], "counts": 3})
    call = call_of(problem, sequences, CUT)
    call.workspace["partial"] = call.workspace["partial"][:1].clone()
    held(call, sequences, ran(call, CUT))


def test_a_sequence_of_nan_leaves_its_neighbours_alone():
    problem, sequences = made({"lengths": [90, 77, 50], "counts": 3, "gates": 2})
    call = call_of(problem, sequences, CUT)
    before = ran(call, CUT)
    for x in (call.q, call.k, call.v):
        x[90:167] = torch.nan
    after = ran(call, CUT)
    for rows in (slice(0, 106), slice(167, None)):  # a query of the first block has no other
        assert torch.equal(before[rows], after[rows])
    assert after[106:167].isnan().all()


def test_slices_of_one_tensor_are_read_where_they_lie():
    problem, sequences = made({"lengths": [70, 41]})
    call = call_of(problem, sequences, CUT)
    q, k, v = torch.cat([call.q, call.k, call.v], dim=2).split(16, dim=2)
    assert torch.equal(ran(call, CUT), ran(replace(call, q=q, k=k, v=v), CUT))


def test_steps_have_several_short_pairs_and_the_ring_four_places_at_least():
    problem = problem_of([8192] * 2, heads=4, dims=(128, 128), block_size=32, counts=4)
    cut = default_attend(problem)
    assert (cut.group(problem), cut.steps(problem), cut.ring(problem)) == (1, 8, 4)
    assert attend_shapes(problem, cut) == {
        "partial": ((4, 24576, 128), torch.bfloat16),
        "progress": ((576,), torch.int32),
    }
    long = replace(problem, max_seqlen_q=16384)
    assert default_attend(long).ring(long) == 4
    assert AttendConfig().ring(long) == 2
    short = replace(problem, batch=100, max_seqlen_q=64)
    assert (cut.group(short), cut.steps(short)) == (32, 13)
    one = replace(problem, batch=1, heads=1)
    assert (cut.group(one), cut.steps(one), cut.ring(one)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("given", "cut", "words"),
    [
        ({}, {"capability": (10, 0)}, "sm_90 alone, not sm_100"),
        ({"dtype": torch.float32}, {}, "16-bit"),
        ({"attn_dim": 256}, {}, "256 dims; at most 128"),
        ({"linear_dim": 20}, {}, "rows of 20 dims"),
        ({"block_counts": 1}, {}, "at least 2"),
        ({"block_size": 128}, {}, "not of 128; 16, 32 or 64"),
        ({}, {"job_rows": 48}, "not 48"),
        ({}, {"jobs": 0}, "at least 1"),
        ({}, {"stages": 1}, "has 1 tiles in flight"),
        ({}, {"stages": 6}, "shared memory; at most 226"),
    ],
)
def test_what_cannot_be_launched_is_named(given, cut, words):
    problem = problem_of([8192], dims=(128, 128), block_size=32, counts=4)
    assert attend_fault(problem, default_attend(problem), capability=(9, 0)) is None
    capability = cut.pop("capability", (9, 0))
    assert words in (attend_fault(replace(problem, **given), AttendConfig(**cut), capability=capability) or "")


def test_a_refusal_is_one_line():
    problem, sequences = made({"lengths": [70], "dims": (16, 20)})
    call = call_of(problem, sequences, CUT)
    with pytest.raises(ValueError, match=r"^attend_hopper: needs rows of multiples of 16 bytes.*; another kernel$"):
        ran(call, CUT)
    problem, sequences = made({"lengths": [70]})
    call = call_of(problem, sequences, CUT)
    odd = torch.zeros(70, 2, 20, dtype=torch.bfloat16)[:, :, :16]
    with pytest.raises(ValueError, match=r"^attend_hopper: k\.stride=\(40, 20, 1\) is not a multiple of 16 bytes"):
        ran(replace(call, k=odd), CUT)


def test_behind_the_portable_means_selection_and_lists_it_is_the_oracles():
    case = WORKLOAD.case(
        {
            "batch": 3,
            "seqlen": 90,
            "lengths": "90:17:66",
            "num_targets": "3:0:20",
            "nheads": 2,
            "attn_dim": 24,
            "linear_dim": 16,
            "dtype": "fp16",
            "mode": "fwd",
            "block_size": 16,
            "block_counts": 3,
            "local_window": 9,
        }
    )
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    with interpreted("attnbench.kernels.hstu.bsa.api", "attnbench.kernels.hstu.bsa.forward") as (bsa, forward):
        tensors = bsa.BsaTensors(
            q=inputs.q,
            k=inputs.k,
            v=inputs.v,
            gates=inputs.gates,
            offsets=inputs.seq_offsets,
            offsets_q=None,
            num_targets=inputs.num_targets,
        )
        problem = bsa.problem_of(
            tensors,
            max_seqlen=inputs.max_seqlen,
            max_seqlen_q=inputs.max_seqlen_q,
            block_size=16,
            block_counts=3,
            alpha=case.alpha,
            scaling_seqlen=case.scaling_seqlen,
            local_window=9,
            selection=case.selection,
            pairs=False,
        )
        config = replace(bsa.default_config(problem, (0, 0)), attend_rows=ROWS, pool_rows=8)
        workspace = bsa.forward_workspace(problem, config, torch.device("cpu"))
        workspace |= allocate(attend_shapes(problem, CUT), torch.device("cpu"))
        out = torch.full((problem.queries, 2, 16), torch.nan, dtype=torch.float16)
        blocks = torch.full((problem.queries, 2, 3), -9, dtype=torch.int32)
        call = tensors.call(problem, config, out, blocks, workspace)
        for phase in (forward.pool, forward.select, forward.lists):
            phase(call)
    found = ran(call, CUT).double()
    truth, plain = (
        oracle_bsa.evaluate(case, inputs, dtype=dtype, draw=Draw(), blocks=blocks)["out"].double()
        for dtype in (torch.float64, torch.float16)
    )
    step = torch.finfo(torch.float16).eps * truth.abs().max()
    assert (found - truth).abs().max() <= 2 * (plain - truth).abs().max() + step
