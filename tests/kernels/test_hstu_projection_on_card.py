"""The wide product of an HSTU layer with SiLU and append on a card: against fp64, and against the kernels it stands for."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from torch.nn.functional import silu

from attnbench.kernels.hstu.layer import api as layer
from attnbench.kernels.hstu.paged import api as paged
from attnbench.kernels.hstu.projection.api import project

from .paged_step import make_step
from .test_hstu_step_on_card import EPS, HEADS, Chain

pytestmark = pytest.mark.gpu

LENGTHS = {
    "one-user": [(4096, 256, 128)],
    "uneven": [(700, 3, 50), (64, 300, 0), (0, 40, 9), (2000, 1, 1), (63, 0, 5), (65, 63, 0)],
    "one-row": [(64, 1, 0)],
}
CONFIGS = (None, "m128n128k32w8s3", "m128n64k64w4s4-tma", "m64n64k64w4s4-tma", "m64n32k64w4s4-tma", "m64n32k32w4s4")


class Given:
    """Rows of a step and `padded` ones behind them, whose input is no number."""

    def __init__(self, lengths, *, heads=4, dim=256, inputs=1024, dtype=torch.bfloat16, page_size=64, padded=7):
        made = make_step(lengths, page_size=page_size, heads=heads, dim=dim, dtype=dtype)
        table = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in made.table.items()}
        self.step, self.pool, self.heads, self.rows = paged.Step(**table), made.pool.cuda(), heads, len(made.q)
        drawn = torch.Generator("cuda").manual_seed(0)
        shapes = (self.rows + padded, inputs), (4 * heads * dim, inputs), (4 * heads * dim,)
        x, weight, self.bias = (torch.randn(shape, generator=drawn, device="cuda").to(dtype) for shape in shapes)
        x[self.rows :] = torch.nan
        self.x, self.weight = x, weight / inputs**0.5

    def __call__(self, *, config=None, whole=True):
        pool = self.pool.clone()
        given = self.x, self.weight, self.bias
        return project(*given, heads=self.heads, silu=whole, pool=pool, step=self.step, config=config), pool


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LENGTHS)
def test_rows_and_pages_on_the_card(name, dtype, config):
    given = Given(LENGTHS[name], dtype=dtype)
    found, pool = given(config=config)
    plain, _ = given(config=config, whole=False)
    product = given.x.double() @ given.weight.double().T + given.bias.double()
    sizes = given.x.double().abs() @ given.weight.double().abs().T + given.bias.double().abs()
    eps = torch.finfo(dtype).eps
    for part, truth, size in zip("uvqk", product.chunk(4, dim=1), sizes.chunk(4, dim=1), strict=True):
        off = (getattr(plain, part).flatten(1).double() - truth)[: given.rows].abs()
        assert (off <= (eps / 2 * 1.01 * truth.abs() + 2.0**-20 * size)[: given.rows]).all(), part
        smooth = getattr(found, part).flatten(1)[: given.rows]
        wanted = getattr(plain, part).flatten(1).clone()
        if part != "u":
            assert ((smooth.double() - silu(wanted.double())[: given.rows]).abs() <= eps * (1 + smooth.abs())).all()
            layer.silu(wanted)
        assert torch.equal(smooth, wanted[: given.rows])
    appended = given.pool.clone()
    paged.hstu_paged_append(
        found.k[: given.rows].contiguous(), found.v[: given.rows].contiguous(), appended, given.step
    )
    assert torch.equal(pool.nan_to_num(9.0), appended.nan_to_num(9.0))
    for _ in range(10):
        again, other = given(config=config)
        assert all(torch.equal(a[: given.rows], b[: given.rows]) for a, b in zip(again, found, strict=True))
        assert torch.equal(other.nan_to_num(9.0), pool.nan_to_num(9.0))


@pytest.mark.parametrize("page_size", [32, 128])
@pytest.mark.parametrize(("heads", "dim", "inputs"), [(2, 24, 40), (3, 64, 100), (1, 200, 512), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_any_sizes_on_the_card(heads, dim, inputs, dtype, page_size):
    given = Given(LENGTHS["uneven"], heads=heads, dim=dim, inputs=inputs, dtype=dtype, page_size=page_size)
    found, pool = given()
    product = given.x.double() @ given.weight.double().T + given.bias.double()
    sizes = given.x.double().abs() @ given.weight.double().abs().T + given.bias.double().abs()
    eps = torch.finfo(dtype).eps
    for part, truth, size in zip("uvqk", product.chunk(4, dim=1), sizes.chunk(4, dim=1), strict=True):
        wanted = truth if part == "u" else silu(truth)
        off = (getattr(found, part).flatten(1).double() - wanted)[: given.rows].abs()
        assert (off <= (eps * (1.2 * truth.abs() + wanted.abs()) + 2.0**-20 * size)[: given.rows]).all(), part
    appended = given.pool.clone()
    paged.hstu_paged_append(
        found.k[: given.rows].contiguous(), found.v[: given.rows].contiguous(), appended, given.step
    )
    assert torch.equal(pool.nan_to_num(9.0), appended.nan_to_num(9.0))


class Projected(Chain):
    """A layer whose wide product has an epilogue."""

    def __call__(self, *, early=True, apart=lambda: None):
        x, weight = self.x, self.into.t().contiguous()
        bias = weight.new_zeros(len(weight))
        for _ in range(3):
            normed = layer.norm(x, self.weight, self.bias, eps=EPS, leads=early)
            apart()
            u, q, k, v = project(normed, weight, bias, heads=HEADS, pool=self.pool, step=self.step, early=early)
            apart()
            a = paged.hstu_paged_parts(q, k, v, self.pool, self.step, scaling_seqlen=100)
            a = a.flatten(1) if isinstance(a, torch.Tensor) else a
            apart()
            x = x + layer.gate(a, u, self.weight, self.bias, eps=EPS, whole=True, count=self.count) @ self.out
            apart()
        return x


@pytest.mark.parametrize("dim", [256, 128])
@pytest.mark.parametrize("name", ["one-user", "uneven"])
def test_what_is_launched_early_reads_nothing_too_soon(name, dim):
    """Bit by bit what kernels give that are waited for one by one, launch by launch and as a graph."""
    chain = Projected(LENGTHS[name], dim=dim)
    wanted = chain(early=False, apart=torch.cuda.synchronize)
    pool = chain.pool.clone()
    for _ in range(20):
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
