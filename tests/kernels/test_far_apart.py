"""Rows, heads, sequences and pages that lie more than 2³¹ elements apart, in Triton's interpreter.

Memory is reserved and not touched but where the few values are, so a test takes some pages of it.
"""

from __future__ import annotations

import mmap

import pytest
import torch

pytest.importorskip("triton")

from . import paged_step
from .interpreter import interpreted

FAR = 2**31 + 8
APIS = ("flash.api", "flash.sparse.api", "hstu.dense.api", "hstu.paged.api", "hstu.layer.api")


@pytest.fixture(scope="module")
def kernels():
    with interpreted(*(f"attnbench.kernels.{name}" for name in APIS)) as modules:
        yield dict(zip(APIS, modules, strict=True))


def reserved(count, dtype=torch.float32):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags=flags), dtype=dtype)
    except OSError:
        # The tensors span more than the memory of most machines; without overcommit there is no room to reserve.
        pytest.skip("the operating system does not overcommit memory")


def moved(x, *strides):
    """The same values with these strides, the first 8 elements behind the start of the memory."""
    last = sum((extent - 1) * stride for extent, stride in zip(x.shape, strides, strict=True))
    return reserved(last + 9, x.dtype).as_strided(x.shape, strides, 8).copy_(x)


def same(found, right):
    return all(torch.equal(x, y) for x, y in zip(found, right, strict=True))


STRIDES = {"sequences": (FAR, 48, 16, 1), "rows": (2**30, 2**23, 16, 1), "heads": (2**20, 16, FAR, 1)}


@pytest.mark.parametrize("forward", ["m64n64w4s1", "m16n64w4s1-decode"])
@pytest.mark.parametrize("apart", STRIDES)
def test_flash(kernels, apart, forward):
    torch.manual_seed(0)
    tensors = [torch.randn(2, rows, heads, 16) for rows, heads in ((20, 3), (70, 3), (70, 3), (20, 3))]

    def run(q, k, v, dout):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        given = {"causal": True, "forward": forward, "backward": "b64x64w4s1-r64x64w4s1"}
        out, lse = kernels["flash.api"].flash_attention(*leaves, **given)
        return out.detach(), lse, *torch.autograd.grad(out, leaves, dout)

    assert same(run(*(moved(x, *STRIDES[apart]) for x in tensors)), run(*tensors))


def test_a_block_map(kernels):
    torch.manual_seed(0)
    q, k = torch.randn(1, 70, 2, 16), torch.randn(1, 150, 2, 16)
    block_map = torch.tensor([[[[1, 0, 1], [0, 1, 1]], [[1, 1, 0], [0, 0, 0]]]], dtype=torch.bool)
    found, right = (
        kernels["flash.sparse.api"].flash_sparse_attention(q, k, k, given, block=(64, 64), config="m64n64w4s1")
        for given in (moved(block_map, 1, 2**33, FAR, 2**28), block_map)
    )
    assert same(found, right)


@pytest.mark.parametrize("strides", [(2**23, 16, 1), (16, FAR, 1)], ids=["rows", "heads"])
def test_dense_hstu(kernels, strides):
    torch.manual_seed(0)
    dense, tensors = kernels["hstu.dense.api"], [torch.randn(70, 2, 16) for _ in range(4)]
    cut = {"block_m": 32, "block_n": 32, "warps": 4, "stages": 1, "silu": "exp"}
    backward = dense.BackwardConfig(columns=dense.ColumnConfig(**cut, atomic=True), rows=None)

    def run(q, k, v, dout):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        given = {"forward": dense.ForwardConfig(**cut), "backward": backward}
        out = dense.hstu_attention(*leaves, torch.tensor([0, 40, 70]), 40, **given)
        return out.detach(), *torch.autograd.grad(out, leaves, dout)

    assert same(run(*(moved(x, *strides) for x in tensors)), run(*tensors))


@pytest.mark.parametrize("loads", ["pointer", "tma"])
def test_pages(kernels, loads):
    paged = kernels["hstu.paged.api"]
    step = paged_step.make_step([(40, 5, 3), (33, 2, 0)], heads=2, dim=64, seed=3)
    count = 2**32 // step.pool[0].numel()
    places = {page: count - 1 - number * (count // 5) for number, page in enumerate(step.table["indices"].tolist())}
    pool = reserved(count * step.pool[0].numel()).view(count, *step.pool.shape[1:])
    for page, place in places.items():
        pool[place] = step.pool[page]
    table = step.table | {"indices": torch.tensor(list(places.values()), dtype=torch.int32)}
    config = paged.PagedConfig(block_m=16, block_n=32, warps=4, stages=1, silu="exp", loads=loads)
    found, right = (
        paged.hstu_paged_attention(step.q, step.k, step.v, *given, scaling_seqlen=9, config=config)
        for given in ((pool, paged.Step(**table)), (step.pool, paged.Step(**step.table)))
    )
    assert torch.equal(found, right)
    for given in ((pool, paged.Step(**table)), (step.pool, paged.Step(**step.table))):
        paged.hstu_paged_append(step.k, step.v, *given)
    assert all(torch.equal(pool[place].nan_to_num(7), step.pool[page].nan_to_num(7)) for page, place in places.items())


def test_rows_of_a_table(kernels):
    layer, rows = kernels["hstu.layer.api"], torch.randn(3, 64)
    last = FAR // 64
    table, at = reserved((last + 1) * 64).view(-1, 64), torch.tensor([0, last - 1, last])
    table[at] = rows
    found = layer.embed(at.int(), torch.arange(3, dtype=torch.int32), table, rows, scale=1.0)
    assert torch.equal(found, rows + rows)
    assert torch.equal(layer.silu(moved(rows, FAR, 1)), layer.silu(rows.clone()))
