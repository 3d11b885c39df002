"""A real model and cache under the server: odd requests, small pools, failing steps, exhausted memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.loadtest.simulated import Arrivals, Clock

from attnbench.errors import UsageError
from attnbench.loadtest import setup
from attnbench.loadtest.engine import ModelEngine, make_cache
from attnbench.loadtest.ledger import ANSWERED, Ledger
from attnbench.loadtest.presets import PRESETS
from attnbench.loadtest.run import sizes_up_to
from attnbench.loadtest.serving import Batching, Refused, Server
from attnbench.loadtest.setup import Options, make_bench, make_model, make_pool, make_users
from attnbench.loadtest.users import Policy, Users, dlrm, kuairand
from attnbench.machine.device import CPU
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.host_hits import HostHits
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.staging import Sizes
from attnbench.models.paged_cache.transfers import Transfers

TINY = config_of("tiny")


@pytest.fixture(scope="module")
def model() -> HstuRanking:
    return HstuRanking(TINY, dtype=torch.float32)


def request(user: int, items: int, candidates: int = 3, **other) -> Request:
    ids = np.arange(items, dtype=np.int64)
    return dataclasses.replace(
        Request(
            user=user,
            items=ids % TINY.items,
            actions=ids % TINY.actions,
            candidates=np.arange(candidates),
            context=np.array([1, 2]),
        ),
        **other,
    )


class Given:
    """Requests one by one, fitted by a policy as a library's are."""

    def __init__(self, requests: Sequence[Request], policy: str = "truncate") -> None:
        self.requests, self.policy = requests, Policy(TINY, policy)

    def take(self, index: int) -> Request | Refused:
        return self.policy.fit(self.requests[index])


class Kept(ModelEngine):
    """Keeps the scores of each batch by user."""

    scores: dict[int, list[torch.Tensor]]

    def launch(self, requests: Sequence[Request]):
        self.scores = getattr(self, "scores", {})
        found = super().launch(requests)
        parts = found.scores.split([len(one.candidates) for one in requests])
        for one, part in zip(requests, parts, strict=True):
            self.scores.setdefault(one.user, []).append(part)
        return found


def serve(engine: ModelEngine, requests: Sequence[Request], *, max_batch: int = 4, policy: str = "truncate") -> Ledger:
    clock = Clock()
    source = Arrivals(clock, [0] * len(requests))
    ledger = Server(
        source, engine, Given(requests, policy), Batching(max_batch=max_batch, max_wait_ms=0), clock=clock
    ).run()
    assert ledger.balanced()
    assert not ledger.open
    assert sorted(source.completed) == [1000 + number for number in range(len(requests))]
    return ledger


@pytest.mark.parametrize("graph", [False, True])
def test_odd_requests_have_the_scores_they_have_alone(model: HstuRanking, graph: bool) -> None:
    requests = [
        request(0, 0),
        request(1, 20, candidates=0),
        request(2, 33),
        request(1, 40),
        request(3, 0, candidates=0),
    ]
    engine = Kept(model, attention="reference", cache=model.make_cache(pages=64, page_size=32), graph=graph)
    assert serve(engine, requests).answered == 5
    for one in requests:
        found = engine.scores[one.user].pop(0)
        assert found.shape == (len(one.candidates), TINY.tasks)
        torch.testing.assert_close(found, model([one]), rtol=1e-4, atol=1e-5)


def test_a_long_history_is_cut_at_its_end_or_refused(model: HstuRanking) -> None:
    long = request(0, 130)
    engine = Kept(model, attention="reference", cache=None)
    assert serve(engine, [long]).answered == 1
    torch.testing.assert_close(
        engine.scores[0][0], model([dataclasses.replace(long, items=long.items[:100], actions=long.actions[:100])])
    )
    ledger = serve(engine, [long, request(1, 100)], policy="refuse")
    assert ledger.refused == {"history over the maximum": 1}
    assert ledger.answered == 1
    with pytest.raises(UsageError, match="--long-history=cut is not known; one of truncate, refuse"):
        Policy(TINY, "cut")


def test_wrong_requests_are_refused_one_by_one_and_neighbours_are_answered(model: HstuRanking) -> None:
    requests = [
        request(0, 10),
        request(1, 10, candidates=21),
        request(2, 10, context=np.array([7, 0])),
        dataclasses.replace(request(3, 10), items=np.full(10, 50)),
        request(4, 10),
    ]
    engine = ModelEngine(model, attention="reference", cache=model.make_cache(pages=64, page_size=32))
    ledger = serve(engine, requests, max_batch=5)
    assert [outcome == ANSWERED for outcome in ledger.outcome] == [True, False, False, False, True]
    assert ledger.refused == {
        "refused by hstu-ranking: len(candidates)": 1,
        "refused by hstu-ranking: context": 1,
        "refused by hstu-ranking: items": 1,
    }


def test_a_pool_smaller_than_a_batch_serves_parts_of_it(model: HstuRanking) -> None:
    cache = model.make_cache(pages=4, page_size=32, poison=True)  # 102 tokens take all four pages
    engine = Kept(model, attention="reference", cache=cache)
    requests = [request(user, 50) for user in range(4)] + [request(9, 70)]
    ledger = serve(engine, requests)
    assert ledger.splits > 0
    assert ledger.answered == 4
    assert ledger.refused == {"refused by kv-cache: pages": 1}
    for one in requests[:4]:
        torch.testing.assert_close(engine.scores[one.user][0], model([one]), rtol=1e-4, atol=1e-5)
    assert cache.counts.hit + cache.counts.host_hit + cache.counts.missed == cache.counts.tokens


def test_failing_steps_leave_the_cache_whole(model: HstuRanking) -> None:
    failures = iter([False, True, True, False, True] + [False] * 100)

    class Breaks(Kept):
        def launch(self, requests: Sequence[Request]):
            if next(failures):
                broken = super().launch
                self.attention, before = "nothing of that name", self.attention
                try:
                    return broken(requests)  # inside the cache's step: it is undone
                finally:
                    self.attention = before
            return super().launch(requests)

    cache = model.make_cache(pages=40, page_size=32, poison=True)
    requests = [request(user, 10 + 20 * turn) for turn in range(4) for user in range(4)]
    ledger = serve(Breaks(model, attention="reference", cache=cache), requests)
    assert cache.counts.failed_steps == 3
    assert ledger.answered + ledger.refused.get("refused by hstu-ranking: attention", 0) == 16
    assert ledger.splits == 2
    assert ledger.answered == 15
    assert cache.counts.hit + cache.counts.host_hit + cache.counts.missed == cache.counts.tokens


def test_transfers_that_fail_lose_no_request() -> None:
    class Fails(Transfers):
        count = 0

        def reload(self, host_pages: list[int], pages: list[int]):
            Fails.count += 1
            raise RuntimeError("CUDA error: out of memory")

    model = HstuRanking(TINY, dtype=torch.float32)
    cache = model.make_cache(pages=8, page_size=32, host_pages=64)
    cache._transfers = Fails(cache.pool, cache.host)
    engine = Kept(model, attention="reference", cache=cache)
    requests = [request(user, 40 + 10 * turn) for turn in range(3) for user in range(5)]
    assert serve(engine, requests).answered == 15
    assert Fails.count == cache.counts.failed_transfers > 0
    for one in requests[-5:]:
        torch.testing.assert_close(engine.scores[one.user][-1], model([one]), rtol=1e-4, atol=1e-5)


def test_scores_that_are_not_finite_are_no_answer(model: HstuRanking) -> None:
    broken = HstuRanking(TINY, dtype=torch.float32)
    broken.towers.apply(lambda part: [one.fill_(torch.nan) for one in part.parameters(recurse=False)] and None)
    ledger = serve(ModelEngine(broken, attention="reference", cache=None), [request(0, 5)])
    assert ledger.refused == {"refused by load: scores": 1}


def test_memory_that_is_not_there_is_one_line(model: HstuRanking, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be")

    monkeypatch.setattr(model, "make_cache", none)
    said = (
        r"load: cache=5 pages \+ 10 host pages of \S+ \+ \S+ GB take more memory than there is; fewer --pool-pages or"
    )
    with pytest.raises(UsageError, match=said):
        make_cache(model, pages=5, page_size=32, host_pages=10)

    def broken(**_: object) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(model, "make_cache", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        make_cache(model, pages=5, page_size=32, host_pages=10)


def options(**other) -> Options:
    preset = PRESETS["tiny"]
    usual = {
        "preset": preset,
        "device": CPU,
        "users": 5,
        "candidates": 4,
        "max_batch": 2,
        "max_wait_ms": 1.0,
        "duration_s": 1.0,
        "drain_s": 5.0,
        "slos_ms": (50.0,),
        "pool_share": 0.5,
        "page_size": 32,
    }
    return Options(**(usual | other))


def test_a_pool_for_less_than_one_user_is_refused_before_anything_runs() -> None:
    asked = options(pool_share=0.1)
    users = make_users(asked)
    with pytest.raises(UsageError, match=r"load: --pool-share=0.1 gives 4 pages, fewer than the 7 of one user"):
        make_pool(asked, make_model(asked), users)
    pool = make_pool(dataclasses.replace(asked, pool_pages=9), make_model(asked), users)
    assert pool is not None
    assert pool.pool.shape[1] == 9
    with pytest.raises(UsageError, match="--attention=flash is not known"):
        make_model(options(attention="flash"))


def test_one_user_alone_has_a_pool_where_no_share_was_asked_for() -> None:
    """Half of what one user needs holds nobody: the preset's share is meant for many."""
    bench = make_bench(options(users=1, pool_share=None), lambda line: None)
    assert bench.engine.cache is not None
    assert bench.settings == {"users": 1, "pool_pages": bench.engine.cache.pool.shape[1]}
    bench.warm_up()
    point = bench.returning(40.0, 0.5)
    assert (point.issued, point.answered, point.splits) == (40, 40, 0)
    many = make_bench(options(users=5, pool_share=None), lambda line: None)
    assert many.settings == {"users": 5, "pool_pages": None}
    with pytest.raises(UsageError, match=r"--pool-share=0.5 gives \d pages, fewer than the \d of one user"):
        make_bench(options(users=1, pool_share=0.5), lambda line: None)


@pytest.mark.parametrize("how", ["reload", "recompute", "auto"])
def test_tokens_in_host_memory_are_brought_back_or_computed_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostHits, "measured", classmethod(lambda cls, *_, **__: lambda users: len(users) > 10**9))
    asked = options(host_pages=100, on_host_hit=how)
    cache = make_pool(asked, model := make_model(asked), make_users(asked))
    assert cache is not None
    for _ in range(2):
        for user in range(6):
            model([request(user, 90)], cache=cache)
    assert (cache.counts.host_hit > 0) == (how == "reload")
    assert cache.counts.hit + cache.counts.host_hit + cache.counts.missed == cache.counts.tokens


def test_tables_that_host_memory_has_no_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "available_memory", lambda: 20_000)
    with pytest.raises(
        UsageError,
        match=r"load: --config=tiny has tables of 0.0 GB, 0.0 GB are free; half of it may be theirs; a smaller model",
    ):
        make_model(options())


def test_warming_up_leaves_users_where_their_next_request_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.loadtest.run.PROBE_S", 0.02)
    bench = make_bench(options(pool_share=2.0), lambda text: None)
    bench.warm_up()
    cache = bench.engine.cache
    assert cache is not None
    assert bench.capacity is not None
    assert bench.capacity > 0
    before = cache.counts.as_dict()
    bench._serve(bench._visits(2))
    assert cache.counts.hit - before["hit"] > 0
    assert cache.counts.stale_users == 0


def test_warming_up_serves_each_batch_size_with_histories_cached_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool too small for all users in turn never holds the next one: its warm-up had no step without new history."""
    monkeypatch.setattr("attnbench.loadtest.run.PROBE_S", 0.0)
    bench = make_bench(options(users=6, pool_share=0.9, max_batch=3), lambda text: None)
    cache, served = bench.engine.cache, []
    assert cache is not None
    launch = bench.engine.launch

    def watched(requests: Sequence[Request]) -> Any:
        before = cache.counts.as_dict()
        scored = launch(requests)
        new = cache.counts.as_dict()
        served.append((len(requests), (new["missed"] - before["missed"]) / (new["tokens"] - before["tokens"])))
        return scored

    monkeypatch.setattr(bench.engine, "launch", watched)
    bench.warm_up()
    for size in (1, 2, 3):
        shares = [share for count, share in served if count == size]
        assert {0.0, 1.0} <= set(shares)
        assert any(0.4 < share < 0.6 for share in shares)
    assert cache.counts.stale_users == 0


def test_warming_up_for_large_batches_ends_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has each user once, so three users never fill one of 4096."""
    monkeypatch.setattr("attnbench.loadtest.run.PROBE_S", 0.0)
    monkeypatch.setattr("attnbench.loadtest.run.TELL_S", 0.0)
    said: list[str] = []
    bench = make_bench(options(users=3, max_batch=4096), said.append)
    before = bench.users.before()  # of those who have been there
    bench.warm_up()
    told = [line.partition(", ")[2] for line in said if line.startswith("load: warming up: ")]
    assert told[:-3] == [f"histories of {len(before)} of {len(before)} users"]
    assert told[-3:] == [f"batches of {size}, up to 3" for size in (1, 2, 3)]
    for most in (1, 2, 31, 32, 33, 36, 37, 100, 4096):
        sizes = sizes_up_to(most)
        assert sizes[-1] == most
        assert sizes[:32] == list(range(1, min(most, 32) + 1))
        assert all(1 <= after - before <= 1 + before / 8 for before, after in pairwise(sizes))
    assert len(sizes_up_to(4096)) < 80


def test_graphs_captured_ahead_cover_the_steps_of_a_load(model: HstuRanking) -> None:
    cache = model.make_cache(pages=200, page_size=32)
    engine = ModelEngine(model, attention="reference", cache=cache, graph=True)
    graphs = engine.graphs
    assert graphs is not None
    served = [request(user, 20 + user) for user in range(4)]
    engine.capture_ahead(served, batch=4)
    assert graphs.sizes == []
    engine.launch(served).wait()
    too_long = dataclasses.replace(served[0], items=np.zeros(10_000, dtype=np.int64))
    engine.capture_ahead([*served, too_long], batch=4)
    ahead = graphs.sizes
    assert len(ahead) > 10
    for users in ((0,), (1, 2), (0, 1, 2, 3), (3, 0, 2)):
        engine.launch([request(user, 24 + user + len(users)) for user in users]).wait()
    assert sorted(map(repr, graphs.sizes)) == sorted(map(repr, ahead))
    ModelEngine(model, attention="reference", cache=None, graph=True).capture_ahead(served, batch=4)


def test_graphs_captured_ahead_are_no_more_than_are_kept(model: HstuRanking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.loadtest.engine.BUCKETS", 7)
    engine = ModelEngine(model, attention="reference", cache=model.make_cache(pages=50, page_size=32), graph=True)
    engine.launch(served := [request(1, 20, candidates=0)]).wait()
    assert engine.graphs is not None
    prepared: list[Sizes] = []
    monkeypatch.setattr(engine.graphs, "prepare", lambda sizes, requests: prepared.append(sizes))
    engine.capture_ahead(served, batch=64)
    assert len(prepared) == len(set(prepared)) == 7


def test_capturing_ahead_ends_when_no_memory_is_left(model: HstuRanking, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ModelEngine(model, attention="reference", cache=model.make_cache(pages=50, page_size=32), graph=True)
    engine.launch(served := [request(1, 20)]).wait()
    graphs = engine.graphs
    assert graphs is not None
    prepared: list[Sizes] = []

    def prepare(sizes: Sizes, requests: object) -> None:
        prepared.append(sizes)
        graphs.full = len(prepared) == 3

    monkeypatch.setattr(graphs, "prepare", prepare)
    engine.capture_ahead(served, batch=64)
    assert len(prepared) == 3


def test_a_sample_of_a_user_is_its_next_visit_and_a_second_life_is_another_user() -> None:
    users = kuairand(TINY, users=3, candidates=4, most_items=100, seed=1, policy=Policy(TINY))
    lengths, numbers = [], []
    for _ in range(600):
        one = users.take(1)
        assert isinstance(one, Request)
        lengths.append(len(one.items))
        numbers.append(one.user)
    lives = sorted(set(numbers))
    assert lives[0] == 1
    assert len(lives) > 1
    assert all(life % 3 == 1 for life in lives)
    for life in lives:
        mine = [length for length, number in zip(lengths, numbers, strict=True) if number == life]
        assert mine == sorted(mine)
    assert users.take(3) == Refused("unknown user", "sample 3")
    assert Users([[request(0, 1)]], [0], Policy(TINY)).before() == []


def test_drawn_histories_over_the_maximum_meet_the_policy() -> None:
    def lengths(policy: str) -> list[object]:
        users = kuairand(TINY, users=2, candidates=4, most_items=None, seed=1, policy=Policy(TINY, policy))
        found = [users.take(0) for _ in range(40)]
        return [len(one.items) if isinstance(one, Request) else one.reason for one in found]

    kept, refused = lengths("truncate"), lengths("refuse")
    assert kept[-1] == 100
    assert refused[-1] == "history over the maximum"
    assert [one for one in refused if isinstance(one, int)] == [one for one in kept if one != 100]


def test_users_of_dlrm_have_its_shape() -> None:
    config = config_of("dlrm-v3")
    users = dlrm(config, users=20, candidates=2048, seed=0, policy=Policy(config))
    found = [users.take(number) for number in range(20)]
    assert all(isinstance(one, Request) and len(one.candidates) == 2048 for one in found)
    lengths = [len(one.items) for one in found]
    assert 5000 < min(lengths) < max(lengths) < 8500
    assert 6200 < sum(lengths) / 20 < 7100  # 94.5 timestamps on average, there with 0.7, 100 items each
    assert all((np.diff(one.times) >= 0).all() and one.times[-1] < one.now + 1 for one in found)


def test_what_is_quicker_is_measured_with_the_steps_of_the_load() -> None:
    asked = options(host_pages=100, on_host_hit="auto", graph=True)
    cache = make_pool(asked, make_model(asked), make_users(asked))
    assert cache is not None
    assert cache.counts.steps == 0


def test_a_load_says_the_break_even_that_decides() -> None:
    bench = make_bench(options(host_pages=100, on_host_hit="auto"), lambda text: None)
    (note,) = bench.notes()
    assert note.startswith("on host hit: of 202 tokens a user in host memory: reload ")
    assert note.endswith(" GB/s on")
    assert make_bench(options(host_pages=100), lambda text: None).notes() == ()
    assert make_bench(options(cache=False), lambda text: None).notes() == ()
