"""The selected branch of block-sparse HSTU for Hopper, on a machine that executes it, against its sum in fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels import hstu_bsa_hopper_attend
from attnbench.kernels.hstu_bsa_forward import BsaCall, allocate
from attnbench.kernels.hstu_bsa_hopper_attend_cut import AttendCut, attend_shapes
from attnbench.kernels.hstu_bsa_plan import BsaConfig, BsaProblem

from .hopper_machine import machine_runs

ROWS = 64
CUT = AttendCut(stages=2, jobs=2, step_mib=0, ring_mib=0, silu="exp")


def problem_of(lengths, queries=None, *, targets=None, heads=2, dims=(16, 16), block_size=16, counts=3, gates=0,
               shared=False, dtype=torch.bfloat16):
    queries = queries or lengths
    return BsaProblem(
        batch=len(lengths), heads=heads, queries=sum(queries), keys=sum(lengths), max_seqlen=max(lengths),
        max_seqlen_q=max(queries), attn_dim=dims[0], linear_dim=dims[1], dtype=dtype, block_size=block_size,
        block_counts=counts, local_window=0, gates=gates, alpha=0.7, scaling_seqlen=5, shared=shared, pairs=False,
        has_targets=targets is not None, has_cache=queries is not lengths)


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
                    others = torch.argsort(draw(local), descending=True)[:p.others].sort().values
                    own = [*others.tolist(), local][:p.block_counts] if local else [0]
                    blocks[first + row, head, :len(own)] = torch.tensor(own, dtype=torch.int32)
        return blocks

    def lists(self, blocks, workspace):
        """For each block its queries, in a mixed order, as tiles of ROWS."""
        p, tile_rows = self.problem, self.problem.tile_rows(ROWS)
        workspace |= {"entries": torch.full((p.list_heads, p.queries * p.others), -7, dtype=torch.int32),
                      "tiles": torch.full((p.list_heads, tile_rows, 3), -7, dtype=torch.int32),
                      "num_tiles": torch.full((p.batch * p.list_heads,), -7, dtype=torch.int32)}
        for number in range(p.batch):
            first, rows = self.offsets_q[number].item(), self.queries[number]
            for head in range(p.list_heads):
                own = blocks[first:first + rows, head, :p.others]
                own = own.where(own < self.local(number)[:, None], -1).flatten()
                table = first * p.others // ROWS + self.offsets[number].item() // p.block_size
                start, tile = 0, 0
                for block in range(self.seen[number] // p.block_size):
                    found = (own == block).nonzero().flatten()
                    found = found[torch.randperm(len(found))]
                    workspace["entries"][head, first * p.others + start:][:len(found)] = found
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
    q, k, v, out = ((torch.randn(rows, p.heads, dim) * spread).to(p.dtype) for rows, dim in (
        (p.queries, p.attn_dim), (p.keys, p.attn_dim), (p.keys, p.linear_dim), (p.queries, p.linear_dim)))
    gates = torch.randn(p.queries, p.heads, p.gates).to(p.dtype) if p.gates else None
    workspace = allocate(attend_shapes(p, cut), torch.device("cpu"))
    workspace["partial"].fill_(torch.nan)
    workspace["progress"].fill_(77)
    blocks = sequences.chosen(draw)
    sequences.lists(blocks, workspace)
    targets = torch.tensor([n - s for n, s in zip(sequences.lengths, sequences.seen, strict=True)])
    return BsaCall(problem=p, config=BsaConfig(attend_rows=ROWS), q=q, k=k, v=v, gates=gates,
                   offsets=sequences.offsets, offsets_q=sequences.offsets_q if p.has_cache else None,
                   num_targets=targets if p.has_targets else None, out=out, blocks=blocks, workspace=workspace)


def summed(call, sequences, kind):
    """What `attend_hopper` makes of out, in fp64; or with the kernel's roundings, in its dtype."""
    p, exact = call.problem, kind == torch.float64
    out = call.out.to(torch.float64 if exact else torch.float32)

    def rounded(x):
        return x if exact else x.to(kind).float()

    for number in range(p.batch):
        keys = slice(*sequences.offsets[number:number + 2].tolist())
        rows = slice(*sequences.offsets_q[number:number + 2].tolist())
        for head in range(p.heads):
            q, k, v = (x[:, head].to(out.dtype) for x in (call.q[rows], call.k[keys], call.v[keys]))
            own = call.blocks[rows, 0 if p.shared else head, :p.others]
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
    "two-blocks": ({"lengths": [150], "counts": 2, "gates": 3}, replace(CUT, stages=1, jobs=1)),
    "eight-blocks": ({"lengths": [200, 17], "counts": 8, "heads": 1}, replace(CUT, stages=3)),
    "four-blocks": ({"lengths": [130, 64], "counts": 4, "gates": 3, "dims": (64, 64), "block_size": 32}, CUT),
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
    problem = problem_of(values["lengths"], **given, **{
        name: value for name, value in values.items() if name not in ("lengths", *given)})
    return problem, Sequences(problem, values["lengths"], **given)


@pytest.mark.parametrize("name", CASES)
def test_the_sum_of_partial_rows_is_added(name):
    values, cut = CASES[name]
    problem, sequences = made(values)
    call = call_of(problem, sequences, cut)
    held(call, sequences, ran(call, cut, seed=len(name)))
