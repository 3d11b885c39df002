"""A draw has the corners, is deterministic, fits, and selects the same part from oracle and backend."""

from __future__ import annotations

import pytest
import torch

from attnbench.errors import AttnbenchError
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.attention.parts import output_shapes
from attnbench.workloads.base import Draw

CASES = {
    "dense": {"batch": 5, "seqlen": 33, "seqlen_k": 65, "causal": True},
    "packed": {"batch": 5, "seqlen": 65, "lengths": "9:65:33:1:20"},
    "packed-apart": {"batch": 5, "seqlen": 65, "seqlen_k": 40, "lengths": "9/1:65/7:33/40:1/2:20/20", "causal": True},
}


def of(name, **values):
    shape = {"nheads": 6, "nheads_kv": 3, "headdim": 8, "headdim_v": 4, "dtype": "fp32", "mode": "bwd"}
    return WORKLOAD.case(shape | CASES[name] | values)


def test_everything_where_it_fits():
    assert WORKLOAD.draw(of("dense"), seed=0, max_bytes=2**30) == Draw(None)


@pytest.mark.parametrize("name", CASES)
def test_corners_are_always_in(name):
    case = of(name)
    for seed in range(5):
        draw = WORKLOAD.draw(case, seed=seed, max_bytes=0)
        lengths_q, lengths_k = zip(*case.sequences, strict=True)
        corners = {0, 4} | {
            lengths.index(extreme(lengths)) for lengths in (lengths_q, lengths_k) for extreme in (min, max)
        }
        assert set(draw.parts) == {(s, g) for s in corners for g in (0, 2)}
        assert draw.parts == tuple(sorted(draw.parts))


def test_a_seed_draws_the_same_and_another_seed_others():
    case = WORKLOAD.case({"batch": 64, "seqlen": 512, "nheads": 16, "headdim": 64})
    budget = 2 * 100 * 8 * 512 * 64
    first, again, other = (WORKLOAD.draw(case, seed=seed, max_bytes=budget) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first.parts) == len(other.parts) == len(set(first.parts)) == 100
    assert len({sequence for sequence, _ in first.parts}) > 30


def test_more_memory_draws_more():
    case = WORKLOAD.case({"batch": 64, "seqlen": 512, "nheads": 16, "headdim": 64, "mode": "bwd"})
    sizes = [len(WORKLOAD.draw(case, seed=0, max_bytes=2 * bound * 2**20).parts) for bound in (0, 10, 100)]
    assert sizes[0] == 4 < sizes[1] < sizes[2]
    assert sizes[2] == 100 * 2**20 // (8 * 512 * 4 * 64)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_drawn_oracle_is_the_selected_part_of_the_whole(name, mode):
    case = of(name, mode=mode)
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    whole = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    for pairs in (((0, 0),), ((1, 2), (3, 0), (3, 1)), ((4, 2), (0, 1))):
        draw = Draw(pairs)
        drawn = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=draw)
        chosen = WORKLOAD.select(case, whole, draw)
        assert list(drawn) == list(chosen) == list(output_shapes(case, draw))
        for which, tensor in drawn.items():
            assert tuple(tensor.shape) == tuple(chosen[which].shape) == output_shapes(case, draw)[which]
            torch.testing.assert_close(tensor, chosen[which], rtol=1e-12, atol=1e-13)


def test_selected_values_come_from_the_pair():
    case = of("packed")
    shapes = output_shapes(case)
    numbered = {name: torch.arange(torch.Size(shape).numel()).reshape(shape) for name, shape in shapes.items()}
    chosen = WORKLOAD.select(case, numbered, Draw(((2, 1), (3, 0))))
    # Sequence 2 has the rows 74..107, sequence 3 the row 107; KV head 1 has the query heads 2 and 3.
    assert torch.equal(chosen["out"][:33], numbered["out"][74:107, 2:4])
    assert torch.equal(chosen["dq"][33:], numbered["dq"][107:108, 0:2])
    assert torch.equal(chosen["dk"][:33], numbered["dk"][74:107, 1])
    assert torch.equal(chosen["dv"][33:], numbered["dv"][107:108, 0])


def test_without_a_draw_the_outputs_themselves():
    case = of("dense")
    outputs = {name: torch.zeros(shape) for name, shape in output_shapes(case).items()}
    chosen = WORKLOAD.select(case, outputs | {"lse": torch.zeros(1)}, Draw())
    assert list(chosen) == ["out", "dq", "dk", "dv"]
    assert all(chosen[name] is outputs[name] for name in chosen)
    assert list(WORKLOAD.select(case, {"out": outputs["out"]}, Draw())) == ["out"]


def test_another_layout_is_refused():
    case = of("dense")
    with pytest.raises(AttnbenchError, match=r"out=\[5, 6, 33, 4\] is not the workload's layout; \[5, 33, 6, 4\]$"):
        WORKLOAD.select(case, {"out": torch.zeros(5, 6, 33, 4)}, Draw())
