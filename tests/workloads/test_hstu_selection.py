"""The blocks of the sparse variant: the right ones, and the judgement of a backend's by score."""

from __future__ import annotations

from dataclasses import replace

import naive_hstu
import pytest
import torch

from attnbench.errors import UsageError
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.inputs import make_inputs
from attnbench.workloads.hstu.oracle_bsa import evaluate, scores_of, select_blocks, selection_faults


def of(**values):
    return WORKLOAD.case(
        {
            "batch": 1,
            "seqlen": 29,
            "nheads": 2,
            "attn_dim": 5,
            "linear_dim": 3,
            "dtype": "fp32",
            "mode": "bwd",
            "block_size": 4,
            "block_counts": 3,
        }
        | values
    )


def make(case, kind="normal"):
    return make_inputs(case, seed=3, kind=kind, device="cpu")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"selection": "shared"},
        {"num_targets": 3},
        {"batch": 4, "lengths": "29:0:1:9"},
        {"delta_q": 3},
        {"batch": 2, "lengths": "6:5", "num_targets": "6:1"},
        {"block_counts": 1},
        {"block_size": 1, "block_counts": 29},
        {"pairs": True},
        {"pairs": True, "selection": "shared", "num_targets": 3},
        {"pairs": True, "batch": 4, "lengths": "29:2:1:12", "delta_q": 7, "num_targets": "0:1:1:3", "block_size": 2},
    ],
)
def test_selects_what_a_loop_selects(values):
    case = of(**values)
    inputs = make(case)
    chosen = select_blocks(case, inputs)
    assert chosen.dtype == torch.int32
    assert not selection_faults(case, inputs, chosen)
    assert torch.equal(select_blocks(case, inputs, workspace=1), chosen)
    row = base = 0
    for shape in case.sequences:
        keys = inputs.k[base : base + shape.length].double()
        for position in range(shape.length - shape.queries, shape.length):
            for head in range(chosen.shape[1]):
                ranking = inputs.q[naive_hstu.ranker(case, shape, position, row)].double()
                expected = naive_hstu.blocks_of(case, shape, (position, ranking), keys, head)
                assert chosen[row, head].tolist() == expected + [-1] * (case.block_counts - len(expected))
            row += 1
        base += shape.length


def test_ties_go_to_the_lower_block():
    case = of()
    chosen = select_blocks(case, make(case, "zeros"))
    assert chosen[28, 0].tolist() == [0, 1, 7]
    assert chosen[3, 0].tolist() == [0, -1, -1]


def tied(case, kind, seed):
    """Keys that repeat: one for all, or a few blocks again and again in a random order; and queries."""
    inputs = make_inputs(case, seed=seed, kind="normal", device="cpu")
    random = torch.Generator().manual_seed(seed)
    if kind == "one key":
        inputs.k.copy_(inputs.k[:1].expand_as(inputs.k))
    elif kind == "no key":
        inputs.k.zero_()
    elif kind == "no query":
        inputs.q.zero_()
    else:
        blocks = inputs.k.shape[0] // case.block_size
        few = inputs.k[: 3 * case.block_size].unflatten(0, (3, case.block_size)).clone()
        order = torch.randint(3, (blocks,), generator=random)
        inputs.k[: blocks * case.block_size] = few[order].flatten(0, 1)
    return inputs


def whole(x):
    """`x` in units of 2**-160, exactly: sums and products of these keep their order, and need no common denominator."""
    numerator, denominator = x.as_integer_ratio()
    assert denominator <= 1 << 160
    return numerator * ((1 << 160) // denominator)


def by_hand(case, inputs):
    """The rule in exact numbers, whole multiples of 2**-160: of equal means the lower block first."""
    heads = 1 if case.selection == "shared" else case.nheads
    chosen = torch.full((inputs.q.shape[0], heads, case.block_counts), -1, dtype=torch.int32)
    q, k = (
        [[[whole(x) for x in head] for head in row] for row in given.double().tolist()]
        for given in (inputs.q, inputs.k)
    )
    size = case.block_size
    means = [
        [[sum(k[b * size + i][h][d] for i in range(size)) for d in range(case.attn_dim)] for b in range(len(k) // size)]
        for h in range(case.nheads)
    ]
    for row in range(len(q)):
        local = row // size
        scores = [
            [sum(x * y for x, y in zip(q[row][h], means[h][b], strict=True)) for b in range(local)]
            for h in range(case.nheads)
        ]
        if heads == 1:
            scores = [[sum(column) for column in zip(*scores, strict=True)]]
        for head in range(heads):
            best = sorted(range(local), key=lambda b, of=scores[head]: (-of[b], b))[: case.block_counts - 1]
            found = [*sorted(best), local]
            chosen[row, head, : len(found)] = torch.tensor(found)
    return chosen


@pytest.mark.parametrize("kind", ["one key", "no key", "no query", "few blocks"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("selection", ["head", "shared"])
def test_ties_go_to_the_lower_block_whatever_the_size_of_a_chunk(kind, dtype, selection):
    for seed, (seqlen, dim, size) in enumerate([(53, 7, 2), (61, 24, 4), (90, 64, 8)]):
        case = of(
            seqlen=seqlen, attn_dim=dim, dtype=dtype, selection=selection, nheads=3, block_size=size, block_counts=4
        )
        inputs = tied(case, kind, seed)
        right = by_hand(case, inputs)
        for workspace in (None, 1, 3000, 20000, 77777):
            chosen = select_blocks(case, inputs, workspace=workspace)
            assert torch.equal(chosen, right), (seqlen, workspace)
        assert not selection_faults(case, inputs, chosen)


@pytest.mark.parametrize("dim", [1, 2, 5, 64, 100, 256])
def test_scores_are_those_of_their_vectors_alone(dim):
    random = torch.Generator().manual_seed(dim)
    q, means = (
        torch.randn(2, rows, dim, generator=random, dtype=torch.float64)
        * 10 ** torch.randint(-8, 9, (2, rows, 1), generator=random).double()
        for rows in (37, 41)
    )
    means[:, 20:] = means[:, :21]
    scores = scores_of(q, means)
    assert torch.equal(scores[:, :, 20:], scores[:, :, :21])
    for rows, columns in ((slice(3, 4), slice(7, 40)), (slice(5, 31), slice(11, 12)), (slice(0, 2), slice(0, 3))):
        assert torch.equal(scores_of(q[:, rows], means[:, columns]), scores[:, rows, columns])
    size = q.norm(dim=-1, keepdim=True) * means.norm(dim=-1)[:, None]
    assert ((scores - q @ means.mT).abs() <= 2**-40 * size).all()


def test_ranked_by_score_and_not_by_its_silu():
    """SiLU falls below -1.28: of the scores -1 and -9 it would put -9 first."""
    case = of(seqlen=12, nheads=1, block_counts=2, alpha=1.0)
    inputs = make(case, "zeros")
    inputs.q[..., 0] = 1.0
    inputs.k[:4, :, 0], inputs.k[4:8, :, 0] = -9.0, -1.0
    assert select_blocks(case, inputs)[11, 0].tolist() == [1, 2]


@pytest.mark.parametrize("tie", [0.0, 1e-9])
def test_another_block_of_the_same_score_is_no_fault_and_has_an_answer(tie):
    case = of(seqlen=12, nheads=1, block_counts=2)
    inputs = make(case)
    inputs.k[4:8] = inputs.k[:4] + tie
    chosen = select_blocks(case, inputs)
    other = chosen.clone()
    other[8:, 0, 0] = 1 - chosen[8:, 0, 0]
    assert not selection_faults(case, inputs, other)
    assert not selection_faults(case, inputs, other.flip(2))
    right, followed = (
        evaluate(case, inputs, dtype=torch.float64, draw=Draw(), blocks=blocks)["out"] for blocks in (chosen, other)
    )
    assert torch.equal(right[:8], followed[:8])
    assert not torch.equal(right[8:], followed[8:])
    assert torch.equal(right, evaluate(case, inputs, dtype=torch.float64, draw=Draw())["out"])


@pytest.mark.parametrize(
    ("row", "blocks", "words"),
    [
        (28, [0, 0, 7], "a block twice"),
        (28, [0, 1, 2], "the local block left out"),
        (28, [1, 7, -1], "not as many blocks as there are to choose"),
        (5, [0, 1, 2], "a block that is not there or lies in the future"),
        (28, [0, 7, 8], "a block that is not there or lies in the future"),
        (28, None, "a block chosen over one that scores higher"),
    ],
)
def test_faults_have_words(row, blocks, words):
    case = of()
    inputs = make(case)
    chosen = select_blocks(case, inputs)
    if blocks is None:
        blocks = [*sorted(set(range(7)) - set(chosen[row, 1].tolist()))[:2], 7]
    chosen[row, 1] = torch.tensor(blocks)
    assert f"sequence 0: {words}" in selection_faults(case, inputs, chosen)


def test_an_action_has_the_blocks_of_its_item():
    case = of(pairs=True, num_targets=2)
    inputs = make(case)
    chosen = select_blocks(case, inputs)
    assert torch.equal(chosen[:26:2], chosen[1:27:2])
    alone = select_blocks(replace(case, pairs=False), inputs)
    assert torch.equal(chosen[::2], alone[::2])
    assert not torch.equal(chosen[1:27:2], alone[1:27:2])
    assert torch.equal(chosen[27:], alone[27:])  # the targets
    assert "sequence 0: an action with other blocks than its item" in selection_faults(case, inputs, alone)
    # In another order they are the same blocks.
    chosen[1] = chosen[1].flip(1)
    assert not selection_faults(case, inputs, chosen)


def test_an_action_is_judged_by_the_scores_of_its_item():
    case = of(pairs=True)
    inputs = make(case)
    chosen = select_blocks(case, inputs)
    own = select_blocks(replace(case, pairs=False), inputs)
    chosen[:28:2] = chosen[1::2] = own[1::2]
    faults = selection_faults(case, inputs, chosen)
    assert faults == ["sequence 0: a block chosen over one that scores higher"]


def test_shapes_and_empty_sequences():
    case = of(lengths="5", num_targets=5)
    inputs = make(case)
    chosen = select_blocks(case, inputs)
    assert (chosen == -1).all()
    chosen[2, 0, 0] = 0
    assert selection_faults(case, inputs, chosen) == ["sequence 0: a block where there is none"]
    assert selection_faults(case, inputs, chosen[:, :1]) == ["blocks have the shape [5, 1, 3], not [5, 2, 3]"]
    with pytest.raises(UsageError, match="hstu-bsa: causal=False is not defined"):
        select_blocks(replace(case, causal=False), inputs)


def ranked(case, inputs, off=0.0):
    """Blocks by means rounded to the case's precision, as a kernel stores them; scores in fp32, off by up to `off`."""
    chosen, size = select_blocks(case, inputs), case.block_size
    noise = torch.Generator().manual_seed(0)
    for number in range(case.batch):
        rows, count = slice(512 * number, 512 * (number + 1)), 512 // size
        k = inputs.k[rows].float().unflatten(0, (count, size)).mean(1).to(inputs.k.dtype).float()
        scores = torch.einsum("thd,chd->thc", inputs.q[rows].float(), k) * case.alpha
        scores += off * (2 * torch.rand(scores.shape, generator=noise) - 1)
        local = torch.arange(512)[:, None, None] // size
        scores = scores.masked_fill(torch.arange(count) > local, -torch.inf)
        best = scores.masked_fill(torch.arange(count) == local, torch.inf).topk(case.block_counts, dim=2)
        chosen[rows] = best.indices.where(best.values > -torch.inf, -1).int()
    return chosen


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_selection_in_the_case_s_own_precision_passes(dtype):
    case = of(seqlen=512, attn_dim=64, dtype=dtype, block_size=16, block_counts=4, batch=2)
    inputs = make(case)
    chosen = ranked(case, inputs)
    assert not selection_faults(case, inputs, chosen)
    if dtype == "bf16":
        assert not torch.equal(chosen.sort(2).values, select_blocks(case, inputs).sort(2).values)


@pytest.mark.parametrize(("dtype", "off"), [("bf16", 0.05), ("fp16", 0.005), ("fp32", 1e-3)])
def test_a_ranking_that_is_off_by_more_than_rounding_does_not(dtype, off):
    """The scores spread over about 0.25; those of fp32 are off as much as products in TF32 would be."""
    case = of(seqlen=512, attn_dim=64, dtype=dtype, block_size=16, block_counts=4, batch=2)
    inputs = make(case)
    assert "sequence 0: a block chosen over one that scores higher" in selection_faults(
        case, inputs, ranked(case, inputs, off)
    )
