"""Captured steps on a GPU: the scores of each request in every state of the cache, and no wait of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnbench.models.hstu_ranking import attention
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.graphs import StepGraphs
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.staging import ladder

from .plain_ranking import plain_logits
from .test_hstu_ranking import request

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

WIDE = replace(config_of("tiny"), hidden=256, heads=2, dim=128)
SERIES = [
    [(1, 14, 5), (2, 3, 2)],
    [(1, 15, 5), (2, 9, 2)],
    [(1, 16, 1)],
    [(3, 0, 4)],
    [(1, 24, 3), (2, 10, 0), (3, 40, 2)],
    [(1, 30, 0)],
    [(1, 31, 3)],
    [(1, 32, 3)],
    [(1, 50, 20), (2, 50, 20)],
    [(3, 50, 20), (4, 60, 20)],
    [(4, 61, 1)],
    [(2, 51, 9)],
    [(4, 62, 1)],
    [(2, 52, 9), (1, 60, 2)],
    [(1, 61, 2), (3, 51, 8)],
    [(1, 30, 3)],
]


def held(model, found, requests):
    weights = {name: weight.cpu() for name, weight in model.state_dict().items()}
    truth = torch.cat([plain_logits(model.config, weights, one) for one in requests]).cuda()
    plain = model(requests)
    budget = 2 * (plain.double() - truth).abs().max() + 2.0**-3 * truth.abs().max() / 16
    off = (found.double() - truth).abs().max()
    assert off <= budget, (off, budget)


@pytest.mark.parametrize("memory", [{"pages": 24}, {"pages": 9}, {"pages": 9, "host_pages": 40}, None], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_graphs_and_eager_steps_give_the_scores_of_each_request(dtype, memory):
    model = HstuRanking(WIDE, seed=4, dtype=dtype, device="cuda")
    caches = [None if memory is None else model.make_cache(page_size=32, poison=True, **memory) for _ in range(2)]
    graphs = StepGraphs(model, cache=caches[0])
    for users in SERIES:
        requests = [request(*one) for one in users]
        replayed = graphs(requests).clone()
        eager = model(requests, cache=caches[1], attention="paged")
        if replayed.numel():
            held(model, replayed, requests)
            held(model, eager, requests)
    assert len(graphs.sizes) < len(SERIES)
    # Steps that reload have graphs of their own, which wait.
    assert len(graphs.sizes) <= graphs.captured <= (2 if memory and "host_pages" in memory else 1) * len(graphs.sizes)
    if memory is not None:
        assert caches[0].counts.as_dict().keys() == caches[1].counts.as_dict().keys()
        assert caches[0].counts.hit > 0
        assert (caches[0].counts.evicted_users > 0) == (memory["pages"] == 9)
        assert (caches[0].counts.host_hit > 0) == ("host_pages" in memory)


@pytest.mark.parametrize("memory", [{"pages": 24}, {"pages": 9, "host_pages": 40}], ids=str)
def test_steps_of_graphs_captured_ahead_have_the_scores_of_each_request(memory):
    model = HstuRanking(WIDE, seed=4, dtype=torch.bfloat16, device="cuda")
    cache = model.make_cache(page_size=32, poison=True, **memory)
    graphs = StepGraphs(model, cache=cache, after=2, slack=1.6, most=200)
    first = [request(1, 14, 5)]
    graphs(first)
    for sizes in (rungs := ladder(batch=4, candidates=20, cached=64, page_size=32)):
        graphs.prepare(sizes, first)
    ahead = len(rungs) * (2 if "host_pages" in memory else 1)
    assert graphs.captured == ahead
    for users in SERIES:
        requests = [request(*one) for one in users]
        found = graphs(requests).clone()
        if found.numel():
            held(model, found, requests)
    # Sizes that no rung covers with so few rows are captured when they occur for the third time.
    assert ahead <= graphs.captured <= ahead + 2
    assert len(graphs.sizes) < len(rungs) + len(SERIES) // 2


@pytest.mark.parametrize("memory", [{"pages": 24}, {"pages": 9, "host_pages": 40}], ids=str)
@pytest.mark.parametrize("late", [0, 500_000])
@pytest.mark.parametrize("variant", ["hstu", "stu"])
def test_an_append_beside_attention_changes_no_bit(variant, late, memory, monkeypatch):
    """Against the same launches on one stream; the append of every layer may end long after attention (late: clocks)."""
    model = HstuRanking(replace(WIDE, variant=variant), seed=4, dtype=torch.bfloat16, device="cuda")
    caches = [model.make_cache(page_size=32, poison=True, **memory) for _ in range(2)]
    branched, serial = (StepGraphs(model, cache=one) for one in caches)
    append, used = attention.Paged.append, []

    def delayed(self, pool, k, v):
        if late:
            torch.cuda._sleep(late)
        used.append(torch.cuda.current_stream())
        append(self, pool, k, v)

    monkeypatch.setattr(attention.Paged, "append", delayed)
    for users in SERIES:
        requests = [request(*one) for one in users]
        found = branched(requests).clone()
        with monkeypatch.context() as patch:
            patch.setattr(attention, "_branch", lambda x: None)
            wanted = serial(requests).clone()
        assert torch.equal(found, wanted)
        assert torch.equal(*(one.pool.nan_to_num() for one in caches))
        for one in caches:
            one.settle()  # what is evicted next depends on what has reached the host
    assert attention._beside(caches[0].pool.device) in used
    assert len(branched.sizes) <= branched.captured <= (2 if "host_pages" in memory else 1) * len(branched.sizes)
    assert branched.captured == serial.captured


def test_a_graph_of_gathered_keys_reads_the_pages_of_its_step():
    """Steps of one set of lengths by one graph, whatever pages they lie in."""
    model = HstuRanking(WIDE, seed=4, dtype=torch.bfloat16, device="cuda")
    cache = model.make_cache(pages=24, page_size=32, poison=True)
    graphs = StepGraphs(model, cache=cache, attention="gathered", exact=True)
    for users in ([1, 2], [3, 4], [2, 3], [4, 1]):
        for user in users:
            cache.truncate(user, 0)
        for length in (40, 50):
            requests = [request(user, length, 5) for user in users]
            held(model, graphs(requests), requests)
    assert graphs.captured == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("graph", [True, False])
def test_steps_that_wait_for_one_another_on_the_card_alone_give_the_same_scores(graph):
    """The host is steps ahead: staging, graphs and pages are taken again while replays and copies are under way.

    A reload is started behind a replay that has not begun; that replay must not wait for it.
    """
    model = HstuRanking(WIDE, seed=4, dtype=torch.bfloat16, device="cuda")
    cache = model.make_cache(pages=9, page_size=32, host_pages=40)
    graphs = StepGraphs(model, cache=cache)
    found = []

    def step(users):
        requests = [request(*one) for one in users]
        scores = graphs(requests) if graph else model(requests, cache=cache, attention="paged")
        found.append((requests, scores.clone()))

    for turn in range(2):  # of the second time all sizes are known: nothing waits for a capture
        for users in SERIES:
            if turn:
                torch.cuda._sleep(20_000_000)
            step(users)
        cache.settle()
    for user in list(cache.users):
        cache.evict(user)
    before = cache.counts.host_hit
    for users in ([(4, 5, 2)], [(1, 62, 2)], [(3, 52, 2)], [(1, 63, 2)]):
        torch.cuda._sleep(20_000_000)
        step(users)
    assert cache.counts.host_hit > before
    torch.cuda.synchronize()
    for requests, scores in found:
        if scores.numel():
            held(model, scores, requests)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("host_pages", [0, 40])
def test_the_host_waits_for_nothing_inside_a_step(graph, host_pages):
    from torch.profiler import ProfilerActivity, profile, record_function

    model = HstuRanking(WIDE, seed=4, dtype=torch.bfloat16, device="cuda")
    cache = model.make_cache(pages=24, page_size=32, host_pages=host_pages)
    graphs = StepGraphs(model, cache=cache)

    def step(length):
        requests = [request(1, length, 5), request(2, length, 4)]
        return graphs(requests) if graph else model(requests, cache=cache, attention="paged")

    for length in range(20, 24):
        step(length)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=both, acc_events=True) as found, record_function("step"):
            step(24)
            step(25)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (spanned,) = [one for one in found.events() if one.name == "step" and one.device_type.name == "CPU"]
    waits = [
        one.name
        for one in found.events()
        if "Synchronize" in one.name and spanned.time_range.start <= one.time_range.start <= spanned.time_range.end
    ]
    assert waits == []


@pytest.mark.parametrize("variant", ["hstu", "stu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_operations_in_one_launch_are_those_of_torch(dtype, variant):
    from attnbench.models.hstu_ranking.operations import FUSED, PLAIN

    model = HstuRanking(replace(WIDE, variant=variant), seed=4, dtype=dtype, device="cuda")
    assert model.operations is FUSED
    requests = [request(1, 50, 20), request(2, 3, 1)]
    held(model, model(requests), requests)
    model.operations = PLAIN
    held(model, model(requests), requests)


@pytest.mark.parametrize("page_size", [32, 128])
def test_pages_come_back_from_host_memory_as_they_were(page_size):
    from attnbench.models.paged_cache.transfers import Transfers

    pool = torch.randn(3, 40, 2, page_size, 2, 64, device="cuda").bfloat16()
    host = torch.empty(50, 3, 2, page_size, 2, 64, dtype=torch.bfloat16, pin_memory=True)
    transfers = Transfers(pool, host)
    there = torch.randperm(50)[:30].tolist()
    before = pool[:, 5:35].clone()
    transfers.offload(list(range(5, 35)), there).wait()
    assert torch.equal(host[there], before.transpose(0, 1).cpu())
    pool.fill_(torch.nan)
    back = torch.randperm(40)[:30].tolist()
    ticket = transfers.reload(there, back)
    for layer in range(3):
        ticket.wait_layer(layer)
        assert torch.equal(pool[layer, back], before[layer])
    assert pool[:, [page for page in range(40) if page not in back]].isnan().all()
    transfers.drain()
    assert ticket.done()
