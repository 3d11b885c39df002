"""Steps from the fixed buffers of a graph: run launch by launch here, captured on a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbench.errors import UsageError
from attnbench.models.hstu_ranking import attention as attentions
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.graphs import StepGraphs
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.staging import BETWEEN, MOST_ROWS, Sizes, Staging, ladder, rounded

from .test_hstu_ranking import RECENCY, held, request

TINY = config_of("tiny")


@pytest.fixture(autouse=True)
def nobody_reads_rows_that_are_not_there(monkeypatch):
    """Attention leaves NaN in rows of no sequence: whoever reads one is found."""
    attend = attentions.Reference.attend

    def poisoned(self, pool, q, k, v):
        out = attend(self, pool, q, k, v)
        out[sum(self.sequences.new) + sum(self.sequences.targets) :] = torch.nan
        return out

    monkeypatch.setattr(attentions.Reference, "attend", poisoned)


SERIES = [
    [(1, 20, 5), (2, 3, 2)],
    [(1, 24, 5), (2, 9, 2)],
    [(2, 10, 1)],
    [(3, 0, 4)],
    [(1, 24, 3), (2, 10, 0), (3, 40, 2)],
    [(1, 30, 0)],
    [(3, 15, 3)],
    [(1, 50, 20), (2, 50, 20), (3, 50, 20), (4, 60, 20)],
    [(4, 61, 1)],
    [(4, 64, 3)],
]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("variant", "dtype"), [("hstu", torch.float32), ("hstu", torch.bfloat16), ("stu", torch.float64)], ids=str
)
def test_a_bucket_serves_many_steps_with_the_scores_of_each(variant, dtype, cached):
    model = HstuRanking(replace(TINY, variant=variant), seed=4, dtype=dtype)
    cache = model.make_cache(pages=24, page_size=32, poison=True) if cached else None
    graphs = StepGraphs(model, cache=cache, attention="reference")
    for users in SERIES:
        requests = [request(*one) for one in users]
        held(model, graphs(requests).clone(), requests)
    assert len(graphs.sizes) < len(SERIES)
    assert cache is None or cache.counts.hit > 0


def test_scores_are_the_same_bits_in_any_bucket():
    """Rows that are not there change nothing: neither their number nor what stood in the buffer before."""
    model = HstuRanking(TINY, seed=4, dtype=torch.float64)
    one = [request(1, 20, 5)]
    alone = model(one)
    graphs = StepGraphs(model, attention="reference")
    for others in ([], [request(2, 40, 9)], [request(2, 1, 1), request(3, 99, 20)]):
        graphs([request(8, 60, 20), request(9, 80, 17), *others])
        torch.testing.assert_close(graphs(one + others)[:5], alone, rtol=1e-12, atol=1e-12)


def test_after_eviction_and_reload_a_step_from_fixed_buffers_is_right():
    model = HstuRanking(TINY, seed=2, dtype=torch.float32)
    cache = model.make_cache(pages=5, page_size=32, host_pages=20, poison=True)
    graphs = StepGraphs(model, cache=cache, attention="reference")
    for user, length in ((1, 40), (2, 30), (1, 41), (3, 60), (1, 44), (2, 31)):
        requests = [request(user, length)]
        held(model, graphs(requests), requests)
    assert cache.counts.host_hit > 0
    assert cache.counts.evicted_users >= 3


def test_a_model_that_counts_back_runs_from_fixed_buffers_too():
    model = HstuRanking(RECENCY, dtype=torch.float64)
    graphs = StepGraphs(model, attention="reference")
    for length in (20, 24, 3):
        one = replace(request(1, length, 4), context=np.array([3]), times=np.arange(length) * 1000, now=60_000)
        torch.testing.assert_close(graphs([one]), model([one]), rtol=1e-12, atol=1e-12)


def test_a_bucket_has_room_for_its_steps_and_little_more():
    drawn = np.random.default_rng(0)
    for _ in range(300):
        batch = int(drawn.integers(1, 20))
        cached, new, targets = (drawn.integers(0, most, batch) for most in (5000, 300, 1100))
        pages = [-(-int(length) // 64) for length in cached + new]
        sizes = Sizes(
            batch,
            int((new + targets).sum()),
            int(targets.sum()),
            sum(pages),
            int((new + targets).max()),
            int(cached.max()),
        )
        bucket = sizes.bucket(64)
        for name in Sizes.__slots__:
            assert getattr(bucket, name) >= getattr(sizes, name), name
        assert bucket.rows <= sizes.rows * 33 / 32 + 32
        assert bucket.max_new <= sizes.max_new * 1.25 + 32
        assert bucket.max_cached < max(2 * sizes.max_cached, 513)
        assert bucket.max_cached & (bucket.max_cached - 1) == 0, "histories of any length share a few bounds"
        assert bucket.batch < 2 * batch
        assert bucket.bucket(64) == bucket
    assert [rounded(count, 32) for count in (0, 1, 384, 385, 5376, 10240, 10241, 43008)] == [
        0,
        32,
        384,
        416,
        5376,
        10240,
        10496,
        43008,
    ]


def test_the_buckets_used_last_are_kept():
    model = HstuRanking(TINY, dtype=torch.float32)
    graphs = StepGraphs(model, attention="reference", most=2)
    for length in (10, 40, 10, 90):
        graphs([request(1, length)])
    assert [sizes.rows for sizes in graphs.sizes] == [32, 192]


@pytest.mark.parametrize("name", ["reference", "gathered"])
def test_an_attention_made_once_reads_the_pages_that_the_table_names_now(name):
    """As a graph of one set of lengths does: the table on the device changes, lengths do not."""
    model = HstuRanking(TINY, seed=4, dtype=torch.float64)
    cache = model.make_cache(pages=20, page_size=32)
    users = [1, 2]
    history = [np.arange(70), np.arange(41)]
    with cache.step(users, [one[:-3] for one in history], [2, 2]):
        pass
    step = cache.allocate(users, history, [2, 2], cache.lookup(users, history))
    requests = [request(1, 34, 2), request(2, 20, 2)]
    staging = Staging(TINY, Sizes.of(step), torch.device("cpu"))
    staging.fill(requests, [np.arange(70), np.arange(41)], step)
    attention = model.prepared(staging, step, name, cache).attention
    drawn = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(10, 2, 16, generator=drawn, dtype=torch.float64) for _ in range(3))
    pool = torch.randn(20, 2, 32, 2, 16, generator=drawn, dtype=torch.float64)

    def run(pool):
        attention.append(pool, k, v)
        if name == "reference":
            return attention.attend(pool, q, k, v)
        return torch.cat(attention.gathered(pool, k, v))

    order = torch.randperm(20, generator=drawn)
    moved = torch.empty_like(pool)
    moved[order] = pool
    first = run(pool)
    assert first.isfinite().any()
    staging.table.indices.copy_(order[staging.table.indices.long()])
    torch.testing.assert_close(run(moved), first, equal_nan=True)
    assert torch.equal(moved[order], pool)


def test_an_exact_graph_serves_steps_of_the_same_lengths_alone():
    model = HstuRanking(TINY, seed=4, dtype=torch.float32)
    cache = model.make_cache(pages=24, page_size=32)
    graphs = StepGraphs(model, cache=cache, attention="reference", exact=True)
    for users in ([(1, 20, 5)], [(1, 22, 5)], [(2, 20, 5)], [(2, 22, 5)], [(2, 23, 5)]):
        requests = [request(*one) for one in users]
        held(model, graphs(requests), requests)
    assert [sizes.rows for sizes in graphs.sizes] == [47, 9, 7]


@pytest.fixture
def captured(monkeypatch):
    """Memory pools of the graphs captured so far; a replay here calls again what was captured."""
    found = []

    class Replayed:
        def __init__(self, call):
            self.replay = call

    def capture(call, memory=None):
        call()
        found.append(memory)
        return Replayed(call)

    monkeypatch.setattr("attnbench.models.hstu_ranking.graphs.capture", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return found


def test_only_steps_with_copies_from_host_memory_replay_a_graph_that_waits(monkeypatch, captured):
    model, waited = HstuRanking(TINY, seed=2, dtype=torch.float32), []
    cache = model.make_cache(pages=5, page_size=32, host_pages=20)
    monkeypatch.setattr(type(cache), "wait_layer", lambda cache, layer: waited.append(layer))
    graphs = StepGraphs(model, cache=cache, attention=attentions.Reference, capture=True, exact=True)
    layers, told = list(range(TINY.layers)), []
    for user, length in ((1, 40), (2, 30), (1, 40), (3, 60), (1, 40), (1, 40), (3, 60), (1, 40)):
        waited.clear()
        before, hits = len(captured), cache.counts.host_hit
        graphs([request(user, length)])
        reloaded, new = cache.counts.host_hit > hits, len(captured) - before
        assert waited == layers * (1 + new) * reloaded, "by the capture, and by the replay"
        told.append((reloaded, new))
    assert (True, 1) in told, "the first step that reloads captures a graph of its own"
    assert (True, 0) in told, "the next one uses it"
    assert graphs.captured == len(captured)


def test_a_graph_that_waits_is_captured_ahead_if_steps_may_reload(captured):
    model = HstuRanking(TINY, seed=2, dtype=torch.float32)
    for memory, wanted in (({}, 1), ({"host_pages": 20}, 2), ({"host_pages": 20, "reload": False}, 1)):
        captured.clear()
        cache = model.make_cache(pages=5, page_size=32, **memory)
        graphs = StepGraphs(model, cache=cache, attention=attentions.Reference, capture=True, exact=True)
        requests = [request(1, 40)]
        model(requests, cache=cache, attention="reference")
        graphs.prepare(Sizes(1, 64, 64, 8, 64, 100), requests)
        assert len(captured) == graphs.captured == wanted


def test_without_memory_for_a_graph_steps_run_launch_by_launch(monkeypatch, captured):
    model = HstuRanking(TINY, seed=4, dtype=torch.float32)
    cache = model.make_cache(pages=40, page_size=32, poison=True)
    graphs = StepGraphs(model, cache=cache, attention=attentions.Reference, capture=True, exact=True)
    graphs([request(1, 20)])

    def no_memory(call, memory=None):
        call()  # what is launched before the capture fits, and writes to the cache
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert not graphs.full
    monkeypatch.setattr("attnbench.models.hstu_ranking.graphs.capture", no_memory)
    for users in SERIES:
        requests = [request(10 + user, length, count) for user, length, count in users]
        held(model, graphs(requests), requests)
        assert graphs.full
    assert graphs.captured == 1
    assert cache.counts.hit > 0


def test_sizes_become_a_graph_once_they_have_come_often_enough(captured):
    model = HstuRanking(TINY, seed=4, dtype=torch.float32)
    for after, wanted in ((0, [1, 1, 1, 2]), (2, [0, 0, 1, 1])):
        captured.clear()
        # Captured as if lengths were the device's: these steps have the same.
        graphs = StepGraphs(model, attention="reference", capture=True, exact=True, after=after)
        counts = []
        for user, length in ((1, 20), (2, 20), (3, 20), (1, 24)):
            requests = [request(user, length)]
            scores = graphs(requests)
            if len(counts) < 2:
                held(model, scores, requests)
            counts.append(len(captured))
        assert counts == wanted
        assert graphs.captured == wanted[-1]
        assert set(captured) == {"pool"}


def test_a_step_uses_a_larger_bucket_that_is_ready_instead_of_one_of_its_own():
    model = HstuRanking(TINY, seed=4, dtype=torch.float32)
    cache = model.make_cache(pages=40, page_size=32, poison=True)
    graphs = StepGraphs(model, cache=cache, attention="reference", after=2, slack=1.6)
    first = request(1, 20, 5)
    held(model, graphs([first]).clone(), [first])
    rungs = ladder(batch=4, candidates=20, cached=200, page_size=32)
    for sizes in rungs:
        graphs.prepare(sizes, [first])
    covered = 0
    for users in SERIES:
        requests = [request(*one) for one in users]
        before = len(graphs.sizes)
        held(model, graphs(requests).clone(), requests)
        covered += len(graphs.sizes) == before
    assert covered >= len(SERIES) - 1
    small = next(sizes for sizes in rungs if sizes.batch == 1)
    with pytest.raises(UsageError, match=r"sizes=.* are too small for the step"):
        graphs.prepare(small, [request(7, 90, 20), request(8, 90, 20)])
    assert cache.counts.failed_steps == 1


def test_without_slack_no_step_uses_a_larger_bucket():
    model = HstuRanking(TINY, seed=4, dtype=torch.float32)
    cache = model.make_cache(pages=40, page_size=32)
    graphs = StepGraphs(model, cache=cache, attention="reference")
    graphs([request(1, 20, 5)])
    graphs.prepare(Sizes(4, 512, 80, 64, 256, 512), [request(1, 20, 5)])
    graphs([request(2, 90, 20)])
    assert len(graphs.sizes) == 3


def test_a_larger_bucket_is_bound_by_the_slack_and_forgotten_when_dropped():
    model = HstuRanking(TINY, seed=4, dtype=torch.float32)
    cache = model.make_cache(pages=60, page_size=32)
    graphs = StepGraphs(model, cache=cache, attention="reference", after=9, slack=1.5, most=2)
    graphs([request(1, 20, 5)])
    graphs.prepare(Sizes(4, 512, 80, 64, 256, 512), [request(1, 20, 5)])
    for rows, uses_it in ((190, True), (60, False), (190, False)):
        user = 100 + rows + uses_it
        requests = [request(user, (rows - 20) // 2, 20)]
        held(model, graphs(requests).clone(), requests)
        assert (graphs.sizes[-1] == Sizes(4, 512, 80, 64, 256, 512)) == (uses_it and rows * 1.5 >= 512)


@pytest.mark.parametrize("cached", [0, 300, 9000])
def test_a_rung_covers_each_step_up_to_the_largest(cached):
    chance = np.random.default_rng(7)
    rungs = ladder(batch=8, candidates=256, cached=cached, page_size=64)
    assert len(rungs) == len(set(rungs)) < 150
    missed, waste = 0, []
    for _ in range(500):
        users = int(chance.integers(1, 9))
        new = chance.integers(0, 60, users) + (chance.random(users) < 0.1) * chance.integers(0, 3000, users)
        targets = chance.integers(200, 257, users)
        own = Sizes(
            users,
            int(new.sum() + targets.sum()),
            int(targets.sum()),
            users,
            int((new + targets).max()),
            int(chance.integers(0, cached + 1)),
        ).bucket(64)
        fitting = [one.rows for one in rungs if one.covers(own)]
        missed += own.rows <= MOST_ROWS / BETWEEN and not fitting
        waste += [min(fitting) / own.rows] if fitting else []
    assert missed <= 25
    assert float(np.median(waste)) < 1.4


@pytest.mark.parametrize("candidates", [0, 1, 256])
def test_no_rung_is_empty(candidates):
    """A graph of no rows would capture nothing."""
    assert min(one.rows for one in ladder(batch=8, candidates=candidates, cached=500, page_size=64)) >= 32


def test_no_graph_is_made_where_the_requests_are_refused():
    from attnbench.errors import UsageError

    model = HstuRanking(TINY, dtype=torch.float32)
    graphs = StepGraphs(model, attention="reference")
    with pytest.raises(UsageError, match="user=1 is in the batch twice"):
        graphs([request(1, 3), request(1, 4)])
    assert graphs.sizes == []


@pytest.mark.parametrize(
    ("capture", "attention", "accepted"),
    [(True, "reference", "paged"), (True, "gathered", "paged"), (False, "gathered", "paged or reference")],
)
def test_attention_with_lengths_of_one_step_goes_with_no_graph(capture, attention, accepted):
    """A graph would repeat the lengths of the step that it was captured with: wrong scores for all others."""
    from attnbench.errors import UsageError

    said = f"hstu-ranking: attention={attention} does not go with graphs, .*; {accepted}$"
    with pytest.raises(UsageError, match=said):
        StepGraphs(HstuRanking(TINY), attention=attention, capture=capture)
