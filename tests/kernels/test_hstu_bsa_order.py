"""Lists of a block-sparse HSTU call in ascending order, for a backward, whatever order a card's atomics left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from .interpreter import interpreted

OTHERS, BLOCK_SIZE = 3, 16
LENGTHS = (0, 83, 15, 50)


@pytest.fixture(scope="module")
def bsa():
    with interpreted("attnbench.kernels.hstu.bsa.api", "attnbench.kernels.hstu.bsa.backward") as modules:
        yield modules


def spread(row, local, draw):
    """Any blocks: lists of odd lengths, some of them empty."""
    return sorted(torch.randperm(local, generator=draw)[:OTHERS].tolist())


def sink(row, local, draw):
    """All queries choose block 0, half of them block 1, and nobody another."""
    return [0, *([1] if row % 2 and local > 1 else [])] if local else []


def last(row, local, draw):
    """All choose what lies just before: lists with a start and an end of the piece they lie in."""
    return [*range(max(local - OTHERS, 0), local)]


def lists_of(chosen, heads):
    """Blocks of each query, each list shuffled, where lists start, and every list in order, by head and sequence."""
    draw = torch.Generator().manual_seed(1)
    total = sum(LENGTHS)
    blocks = torch.full((total, heads, OTHERS + 1), -1, dtype=torch.int32)
    entries = torch.full((heads, total * OTHERS), -7, dtype=torch.int32)
    starts = torch.full((heads, total // BLOCK_SIZE + len(LENGTHS)), -7, dtype=torch.int32)
    ordered = {}
    for head in range(heads):
        first = 0
        for number, length in enumerate(LENGTHS):
            listed = {block: [] for block in range(length // BLOCK_SIZE)}
            for row in range(length):
                for slot, block in enumerate([*chosen(row, row // BLOCK_SIZE, draw), row // BLOCK_SIZE]):
                    blocks[first + row, head, slot] = block
                    if block < row // BLOCK_SIZE:
                        listed[block].append(row * OTHERS + slot)
            place = 0
            for block, mine in listed.items():
                starts[head, first // BLOCK_SIZE + number + block] = place
                shuffled = torch.tensor(mine, dtype=torch.int32)[torch.randperm(len(mine), generator=draw)]
                entries[head, first * OTHERS + place :][: len(mine)] = shuffled
                place += len(mine)
            starts[head, first // BLOCK_SIZE + number + len(listed)] = place
            ordered[head, first] = [entry for mine in listed.values() for entry in mine]
            first += length
    return blocks, entries, starts, ordered


@pytest.mark.parametrize(
    ("chosen", "chunk", "max_seqlen"),
    [(spread, 16, 83), (spread, 256, 2**30), (sink, 16, 2**30), (sink, 64, 83), (last, 32, 83)],
)
def test_every_list_is_put_in_ascending_order(bsa, chosen, chunk, max_seqlen):
    """Lists shorter and longer than a piece, within one and across several; a sort key of 32 bits and of 64."""
    module, backward = bsa
    blocks, entries, starts, ordered = lists_of(chosen, heads := 2)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    x = torch.zeros(sum(LENGTHS), heads, 16)
    tensors = module.BsaTensors(q=x, k=x, v=x, gates=None, offsets=offsets, offsets_q=offsets, num_targets=None)
    problem = module.problem_of(
        tensors,
        max_seqlen=max_seqlen,
        max_seqlen_q=83,
        block_size=BLOCK_SIZE,
        block_counts=OTHERS + 1,
        alpha=1.0,
        scaling_seqlen=1,
        local_window=None,
        selection="head",
        pairs=False,
    )
    config = replace(module.default_config(problem, (0, 0)), order_chunk=chunk)
    found = {name: torch.full_like(entries, -9) for name in ("pieces", "ordered")}
    given = entries.clone()
    call = tensors.call(problem, config, x, blocks, {"entries": entries, "starts": starts})
    backward._order(module.BsaGradients(call=call, dout=x, dq=x, dk=x, dv=x, dgates=None, workspace=found))
    assert torch.equal(entries, given)
    for (head, first), expected in ordered.items():
        assert found["ordered"][head, first * OTHERS :][: len(expected)].tolist() == expected
    written = sum(map(len, ordered.values()))
    assert int((found["ordered"] != -9).sum()) == written
