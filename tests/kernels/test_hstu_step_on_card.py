"""The chain of kernels of a serving step's layer on a card: no kernel reads a value too early, and what two kernels did,
one does."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.layer import api as layer
from attnbench.kernels.hstu.paged import api as paged

from .paged_step import make_step

pytestmark = pytest.mark.gpu

HEADS, EPS, SCALE = 4, 1e-5, 100


def drawn(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


class Chain:
    """A layer: norm, product, SiLU and append, attention, gate, product."""

    def __init__(self, lengths, *, dim=256, dtype=torch.bfloat16):
        step = make_step(lengths, page_size=64, heads=HEADS, dim=dim, dtype=dtype)
        wide = HEADS * dim
        table = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in step.table.items()}
        self.step, self.pool, self.dim = paged.Step(**table), step.pool.cuda(), dim
        self.x = drawn(len(step.q), wide, dtype=dtype)
        self.weight, self.bias = (drawn(wide, dtype=dtype, seed=seed) for seed in (1, 2))
        self.into, self.out = (
            drawn(wide, 4 * wide, dtype=dtype, seed=3) / 32,
            drawn(wide, wide, dtype=dtype, seed=4) / 32,
        )
        self.count = self.step.offsets[-1:]

    def split(self, rows):
        u, v, q, k = rows.split(HEADS * self.dim, dim=1)
        return u, *(x.unflatten(1, (HEADS, self.dim)) for x in (q, k, v))

    def __call__(self, *, apart=lambda: None):
        x = self.x
        for _ in range(3):
            normed = layer.norm(x, self.weight, self.bias, eps=EPS)
            apart()
            rows = normed @ self.into
            u, q, k, v = self.split(rows)
            apart()
            paged.hstu_paged_silu_append(q, k, v, self.pool, self.step)
            apart()
            a = paged.hstu_paged_parts(q, k, v, self.pool, self.step, scaling_seqlen=SCALE)
            apart()
            a = a.flatten(1) if isinstance(a, torch.Tensor) else a
            gated = layer.gate(a, u, self.weight, self.bias, eps=EPS, whole=True, count=self.count)
            apart()
            x = x + gated @ self.out
            apart()
        return x


LENGTHS = {
    "one-user": [(4096, 256, 128)],
    "uneven": [(700, 3, 50), (64, 300, 0), (0, 40, 9), (2000, 1, 1)],
    "not-split": [(100, 700, 600)] * 8,
}


@pytest.mark.parametrize("dim", [256, 128])
@pytest.mark.parametrize("name", LENGTHS)
def test_a_chain_gives_the_bits_of_kernels_that_are_waited_for_one_by_one(name, dim):
    chain = Chain(LENGTHS[name], dim=dim)
    wanted = chain(apart=torch.cuda.synchronize)
    pool = chain.pool.clone()
    torch.cuda.synchronize()
    for _ in range(20):
        chain.pool[:, :, :, :, :] = pool
        found = [chain() for _ in range(3)]
        assert all(torch.equal(one, wanted) for one in found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain()
    for _ in range(50):
        captured.fill_(torch.nan)
        graph.replay()
        assert torch.equal(captured, wanted)
    assert torch.equal(chain.pool.nan_to_num(9.0), pool.nan_to_num(9.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LENGTHS)
def test_joined_kernels_give_what_those_they_join_give(name, dtype):
    """Queries, keys, values and pages bit by bit; a norm's sums are added in another order on a card."""
    chain = Chain(LENGTHS[name], dtype=dtype)
    rows = layer.norm(chain.x, chain.weight, chain.bias, eps=EPS) @ chain.into
    apart, before = rows.clone(), chain.pool.clone()
    wide = HEADS * chain.dim
    layer.silu(apart[:, wide:])
    u, q, k, v = chain.split(apart)
    paged.hstu_paged_append(k, v, before, chain.step)
    _, *qkv = chain.split(rows)
    paged.hstu_paged_silu_append(*qkv, chain.pool, chain.step)
    assert torch.equal(rows, apart)
    assert torch.equal(before.nan_to_num(9.0), chain.pool.nan_to_num(9.0))
    given = q, k, v, chain.pool, chain.step
    parts = paged.hstu_paged_parts(*given, scaling_seqlen=SCALE)
    assert isinstance(parts, Parts) == (name != "not-split")
    whole = paged.hstu_paged_attention(*given, scaling_seqlen=SCALE).flatten(1)
    for full in (True, False):
        gated = [
            layer.gate(a, u, chain.weight, chain.bias, eps=EPS, whole=full)
            for a in (parts if isinstance(parts, Parts) else parts.flatten(1), whole)
        ]
        assert torch.equal(gated[0][:, :-wide], gated[1][:, :-wide])  # what is not normed
        torch.testing.assert_close(*gated, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
        assert (gated[0] == gated[1]).double().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "towers", "before", "after"), [(128, 3, 128, 10), (8192, 3, 10, 1), (77, 1, 512, 8)])
def test_towers_on_the_card(dtype, rows, towers, before, after):
    x, weight = drawn(rows, towers * before, dtype=dtype), drawn(towers, after, before, dtype=dtype, seed=1)
    bias = drawn(towers, after, dtype=dtype, seed=2)
    seen = x.double().relu().unflatten(1, (towers, before))
    wanted = (torch.einsum("rti,toi->rto", seen, weight.double()) + bias.double()).flatten(1)
    off = (layer.tower(x, weight, bias).double() - wanted).abs()
    eps = torch.finfo(dtype).eps
    assert (off <= eps * wanted.abs() + before * 2.0**-22 * wanted.abs().max()).all()
