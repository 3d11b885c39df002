"""The paged HSTU kernels and the cache on a card: every page size, split keys, graphs, large pools, transfers.

The pages lie in random order and are NaN where nobody wrote.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from . import paged_step
from .paged_step import make_step

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

ALPHA, SCALE = 0.1, 4000


def on_card(step):
    """The step's tensors on the card, and its table."""
    from attnbench.kernels.hstu.paged.problem import Step

    table = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in step.table.items()}
    return [x.cuda() for x in (step.q, step.k, step.v, step.pool)], Step(**table)


def held(step, found):
    paged_step.held(step, found.cpu(), alpha=ALPHA, scaling_seqlen=SCALE)


LENGTHS = {
    "small": [(0, 5, 3), (63, 2, 1), (64, 1, 0), (65, 0, 7), (0, 0, 0), (130, 200, 150)],
    "one-user": [(1000, 256, 128)],
    "uneven": [(1031, 3, 129), (0, 300, 10), (517, 0, 1)],
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("page_size", [32, 64, 128])
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        (256, torch.bfloat16),
        (128, torch.bfloat16),
        (128, torch.float16),
        (64, torch.bfloat16),
        (40, torch.float16),
        (64, torch.float32),
    ],
    ids=str,
)
def test_right_on_the_card(name, page_size, dim, dtype):
    from attnbench.kernels.hstu.paged.api import hstu_paged_attention

    step = make_step(LENGTHS[name], page_size=page_size, heads=2, dim=dim, dtype=dtype, seed=dim)
    tensors, table = on_card(step)
    for splits in (None, 1, 5):
        found = hstu_paged_attention(*tensors, table, alpha=ALPHA, scaling_seqlen=SCALE, splits=splits, validate=True)
        held(step, found)
        again = hstu_paged_attention(*tensors, table, alpha=ALPHA, scaling_seqlen=SCALE, splits=splits)
        assert torch.equal(found, again)


@pytest.mark.hopper
@pytest.mark.parametrize("config", ["m128n128w8s2-ws", "m192n64w12s3-ws", "m128n32w8s4-ws", "m128n32w8s4-ahead-tma"])
def test_every_tile_and_the_portable_kernel_read_the_same_pages(config):
    """Tiles of one page, of several and of a part of one; what is named runs, whatever the default is."""
    from attnbench.kernels.hstu.paged.api import hstu_paged_attention

    for page_size in (32, 128):
        step = make_step(
            [(0, 5, 3), (259, 70, 131), (128, 1, 0)],
            page_size=page_size,
            heads=2,
            dim=128,
            dtype=torch.bfloat16,
            seed=page_size,
        )
        tensors, table = on_card(step)
        for splits in (1, 4):
            held(
                step,
                hstu_paged_attention(
                    *tensors, table, alpha=ALPHA, scaling_seqlen=SCALE, splits=splits, config=config, validate=True
                ),
            )


@pytest.mark.hopper
def test_the_default_on_hopper_is_hoppers():
    from attnbench.kernels.hstu.paged.api import default_forward

    for dim, dtype, hopper in (
        (256, torch.bfloat16, True),
        (128, torch.float16, True),
        (20, torch.bfloat16, False),
        (64, torch.float32, False),
    ):
        (q, k, v, pool), _ = on_card(make_step([(64, 3, 2)], dim=dim, dtype=dtype))
        assert default_forward(q, k, v, pool).hopper == hopper


@pytest.mark.hopper
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_contiguous_cached_step_is_the_same_by_any_number_of_parts(dim):
    """Parts add up to the whole within rounding, and are bitwise reproducible; the default splits this one."""
    from attnbench.kernels.hstu.dense.api import default_forward, hstu_attention

    made = torch.Generator("cuda").manual_seed(dim)
    q, k, v = (
        torch.randn(rows, 2, dim, generator=made, device="cuda").to(torch.bfloat16) for rows in (390, 2400, 2400)
    )
    offsets, offsets_q, targets = (
        torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 1900, 2400], [0, 300, 390], [120, 0])
    )

    def run(**changes):
        config = replace(default_forward(q, k, v, 1900), **changes)
        return hstu_attention(
            q, k, v, offsets, 1900, offsets_q=offsets_q, max_seqlen_q=300, num_targets=targets, forward=config
        )

    whole = run(parts=1)
    for parts in (None, 2, 7, 60):
        found = run(parts=parts)
        assert torch.equal(found, run(parts=parts))
        torch.testing.assert_close(found.float(), whole.float(), rtol=2e-2, atol=2e-2 * whole.abs().max().item())
    assert not torch.equal(run(), whole)


@pytest.mark.hopper
def test_split_keys_wait_for_the_kernel_before_and_are_waited_for():
    """Both kernels of a split step are launched before the one in front of them ends."""
    from attnbench.kernels.hstu.paged.api import hstu_paged_attention

    (q, k, v, pool), table = on_card(make_step([(2000, 60, 40)], heads=2, dim=128, dtype=torch.bfloat16))
    large = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def run(factor):
        """A long kernel, queries made at once after it, and what is made of the output at once."""
        scale = (large @ large)[0, 0] * 0 + factor
        return hstu_paged_attention(q * scale, k, v, pool, table, scaling_seqlen=SCALE, splits=11) * scale

    wanted = []
    for factor in (1, 2, 3):
        torch.cuda.synchronize()
        wanted.append(run(factor).clone())
    torch.cuda.synchronize()
    found = [run(factor) for _ in range(5) for factor in (1, 2, 3)]
    assert all(torch.equal(one, wanted[number % 3]) for number, one in enumerate(found))
    assert not torch.equal(wanted[0], wanted[1])


@pytest.mark.parametrize("page_size", [32, 128])
def test_append_on_the_card(page_size):
    from attnbench.kernels.hstu.paged.api import hstu_paged_append

    step = make_step(LENGTHS["small"], page_size=page_size, heads=3, dim=64, dtype=torch.bfloat16)
    (_, k, v, pool), table = on_card(step)
    hstu_paged_append(k, v, pool, table, validate=True)
    wanted = step.pool.clone()
    for b, (cached, history, _) in enumerate(step.lengths):
        for i in range(history):
            page = step.table["indices"][step.table["indptr"][b] + (cached + i) // page_size]
            row = int(step.table["offsets"][b]) + i
            wanted[page, 0, (cached + i) % page_size] = step.k[row]
            wanted[page, 1, (cached + i) % page_size] = step.v[row]
    assert torch.equal(pool.cpu().nan_to_num(9.0), wanted.nan_to_num(9.0))


def test_a_graph_follows_its_table():
    """A call captured once serves other lengths under the same bounds, written into the same table."""
    from attnbench.kernels.hstu.paged.api import hstu_paged_append, hstu_paged_attention

    step = make_step([(700, 60, 20)], heads=2, dim=128, dtype=torch.bfloat16)
    (q, k, v, pool), table = on_card(step)

    def run():
        hstu_paged_append(k, v, pool, table)
        return hstu_paged_attention(q, k, v, pool, table, alpha=ALPHA, scaling_seqlen=SCALE)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    graph.replay()
    held(step, out)
    table.cached.fill_(650)
    graph.replay()
    shorter = replace(step, lengths=[(650, 60, 20)], keys=[step.keys[0][:650]], values=[step.values[0][:650]])
    held(shorter, out)


def test_a_pool_of_more_than_two_gigaelements():
    from attnbench.kernels.hstu.paged.api import hstu_paged_append, hstu_paged_attention

    heads, dim, page_size = 4, 256, 64
    pages = 2**31 // (2 * page_size * heads * dim) + 100
    if torch.cuda.mem_get_info()[0] < 2.5 * pages * 2 * page_size * heads * dim:
        pytest.fail("the card has no room for a pool of 4 GiB")
    step = make_step([(300, 10, 5)], page_size=page_size, heads=heads, dim=dim, dtype=torch.bfloat16)
    (q, k, v, small), table = on_card(step)
    pool = torch.full((pages, 2, page_size, heads, dim), torch.nan, dtype=torch.bfloat16, device="cuda")
    moved = table.indices + (pages - small.shape[0])
    pool[moved.long()] = small[table.indices.long()]
    far = replace(table, indices=moved)
    held(step, hstu_paged_attention(q, k, v, pool, far, alpha=ALPHA, scaling_seqlen=SCALE, validate=True))
    hstu_paged_append(k, v, pool, far)
    assert torch.equal(pool[moved[-1].long(), :, 300 % page_size : 300 % page_size + 10], torch.stack([k[:10], v[:10]]))


def test_a_model_on_the_card_with_host_memory():
    """Paged and gathered attention, users evicted and copied in again, against the same model without a cache."""
    from attnbench.models.hstu_ranking.config import config_of
    from attnbench.models.hstu_ranking.model import HstuRanking
    from attnbench.models.hstu_ranking.request import Request

    config = replace(config_of("tiny"), hidden=256, heads=2, dim=128, max_history=700)
    model = HstuRanking(config, seed=1, dtype=torch.float32, device="cuda")
    drawn = np.random.default_rng(0)
    items, actions = drawn.integers(0, 50, (3, 700)), drawn.integers(0, 8, (3, 700))

    def request(user, length):
        return Request(
            user=user,
            items=items[user, :length],
            actions=actions[user, :length],
            candidates=np.arange(20),
            context=np.array([user, 1]),
        )

    for attention in ("paged", "gathered", "reference"):
        cache = model.make_cache(pages=48, page_size=32, host_pages=200, poison=True)
        for user, length in ((0, 400), (1, 300), (0, 410), (2, 600), (0, 640), (1, 301)):
            found = model([request(user, length)], cache=cache, attention=attention)
            torch.testing.assert_close(found, model([request(user, length)]), rtol=1e-3, atol=1e-4)
        cache.settle()
        assert cache.counts.host_hit > 0
        assert cache.counts.evicted_users > 0
