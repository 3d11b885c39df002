"""What a rank calls on a GPU, in Triton's interpreter: our kernels give what the plain path of a CPU gives."""

from __future__ import annotations

import pytest
import torch

from attnbench.parallel import attend as room
from attnbench.parallel.attend import Sequences
from attnbench.parallel.problem import HSTU, SOFTMAX, Problem

from .interpreter import interpreted

CPU = torch.device("cpu")
SEQUENCES = {
    "one": ([40], None),
    "two alike": ([20, 20], None),
    "two of one row": ([1, 1], None),
    "jagged with an empty one": ([33, 0, 17], None),
    "trailing queries": ([12], [50]),
    "trailing queries of several": ([12, 0, 9], [50, 8, 9]),
}


@pytest.fixture(scope="module")
def kernels():
    with interpreted("attnbench.kernels.flash.api", "attnbench.kernels.hstu.dense.api"):
        yield


def problem_of(function: str, heads_kv: int) -> Problem:
    return Problem(
        lengths=(1,),
        heads=2,
        heads_kv=heads_kv,
        dim=16,
        dtype="float32",
        causal=True,
        scale=0.25,
        function=function,
        divisor=50,
    )


def operands(of: Sequences, heads: int, heads_kv: int) -> list[torch.Tensor]:
    """q, k and v as Ulysses has them: heads of one buffer when there are as many rows, else tensors of their own."""
    torch.manual_seed(0)
    queries, keys = sum(of.queries), sum(of.keys)
    if queries == keys:
        return list(torch.randn(queries, heads + 2 * heads_kv, 16).split([heads, heads_kv, heads_kv], 1))
    return [torch.randn(rows, count, 16) for rows, count in ((queries, heads), (keys, heads_kv), (keys, heads_kv))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_softmax_and_its_sums(kernels, name, causal):
    of, problem = Sequences(*SEQUENCES[name], device=CPU), problem_of(SOFTMAX, 1)
    q, k, v = operands(of, 2, 1)
    out, lse = room._flash(q, k, v, of, problem, causal)
    wanted, wanted_lse = room._plain(q, k, v, of, problem, causal)
    assert out.shape == q.shape
    assert lse.shape == (2, q.shape[0])
    assert torch.allclose(out, wanted, atol=1e-5)
    assert torch.allclose(lse, wanted_lse, atol=1e-5)
    assert lse.stride(1) == 1, "as the kernel that merges reads it"


def test_softmax_with_more_queries_than_keys(kernels):
    """Of a step of a ring, without a mask."""
    of, problem = Sequences([41], [20], device=CPU), problem_of(SOFTMAX, 1)
    q, k, v = operands(of, 2, 1)
    found, wanted = (attend(q, k, v, of, problem, False) for attend in (room._flash, room._plain))
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_hstu(kernels, name, causal):
    of, problem = Sequences(*SEQUENCES[name], device=CPU), problem_of(HSTU, 2)
    q, k, v = operands(of, 2, 2)
    found = room._hstu(q, k, v, of, problem, causal)
    assert torch.allclose(found, room._silu(q, k, v, of, problem, causal), atol=1e-5)


@pytest.mark.parametrize("lengths", [([41], [20]), ([20], [21]), ([33, 0, 17], [9, 8, 17])])
def test_hstu_over_parts_of_the_keys(kernels, lengths):
    """Of a step of a ring: more queries than keys, or fewer, and no mask."""
    of, problem = Sequences(*lengths, device=CPU), problem_of(HSTU, 2)
    q, k, v = operands(of, 2, 2)
    found, wanted = room._hstu_parts(q, k, v, of, problem, False), room._silu_parts(q, k, v, of, problem, False)
    assert torch.allclose(found.sums, wanted.sums, atol=1e-5)
    assert found.scale == wanted.scale
