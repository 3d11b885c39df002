"""The paged cache: a state machine of steps, evictions, transfers and failures, and single cases said in words.

Keys and values are numbers made of the token and the layer, so that whatever is read shows whose it is; freed pages are
NaN.  Transfers are late on purpose: a copy is made when somebody waits for it, or when a rule says so.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from attnbench.errors import UsageError
from attnbench.models.paged_cache import PagedCache
from attnbench.models.paged_cache.tables import make_table
from attnbench.models.paged_cache.tier import Tier
from attnbench.models.paged_cache.transfers import Ticket, Transfers, runs

LAYERS, PAGE = 2, 32


class LateTicket:
    """Copies a layer when somebody waits for it, and is done when all have been."""

    def __init__(self, copies):
        self.copies = list(copies)

    def done(self):
        return not self.copies

    def wait(self):
        self.wait_layer(LAYERS)

    def wait_layer(self, layer):
        while self.copies and LAYERS - len(self.copies) <= layer:
            self.copies.pop(0)()


class LateTransfers(Transfers):
    """Copies when waited for; the next one fails after so many layers if told so, in the middle of one."""

    fails_after = None

    def reload(self, host_pages, pages):
        return self._late(self.host.transpose(0, 1), list(host_pages), self.pool, list(pages))

    def offload(self, pages, host_pages):
        return self._late(self.pool, list(pages), self.host.transpose(0, 1), list(host_pages))

    def _late(self, source, given, into, taking):
        def copy(layer):
            into[layer, taking] = source[layer, given]

        whole, type(self).fails_after = type(self).fails_after, None
        if whole is not None:
            for layer in range(whole):
                copy(layer)
            into[whole % LAYERS, taking[:1]] = 12345.0
            raise RuntimeError("no memory for the copy")
        return LateTicket([partial(copy, layer) for layer in range(LAYERS)])


def make_cache(pages=6, host_pages=0, *, transfers=LateTransfers, **more):
    return PagedCache(
        layers=LAYERS,
        heads=1,
        dim=1,
        pages=pages,
        page_size=PAGE,
        dtype=torch.float64,
        poison=True,
        host_pages=host_pages,
        transfers=transfers,
        **more,
    )


def written(tokens, layer):
    return torch.as_tensor(np.asarray(tokens, dtype=np.float64)) * 10 + layer


def compute(cache, step, histories):
    """What a model does with a step: append the new history, then read all of it."""
    for layer in range(LAYERS):
        step.wait_layer(layer)
        pool = cache.pool[layer]
        for pages, history, cached in zip(step.pages, histories, step.cached, strict=True):
            at = np.arange(len(history))
            page, slot = torch.tensor([pages[i // PAGE] for i in at], dtype=torch.int64), torch.as_tensor(at % PAGE)
            new = slice(cached, None)
            pool[page[new], 0, slot[new], 0, 0] = written(history[new], layer)
            pool[page[new], 1, slot[new], 0, 0] = -written(history[new], layer)
            assert torch.equal(pool[page, 0, slot, 0, 0], written(history, layer))
            assert torch.equal(pool[page, 1, slot, 0, 0], -written(history, layer))


def check_books(cache):
    """Every page has one owner or is free; freed pages are NaN; the counts add up."""
    for tier, pool in ((cache._device_tier, cache.pool), (cache._host_tier, cache.host.transpose(0, 1))):
        held = [page for entry in tier.entries.values() for page in entry.pages]
        assert sorted(held + tier.free) == list(range(tier.pages))
        assert pool[:, tier.free].isnan().all()
        for entry in tier.entries.values():
            assert len(entry.tokens) == entry.length
            assert len(entry.pages) >= tier.needed(entry.length)
            assert entry.pins >= 0
    counts = cache.counts
    assert counts.hit + counts.host_hit + counts.missed == counts.tokens


REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([33, 1, 32, 0, 31, 64])),
    min_size=1,
    max_size=2,
    unique_by=lambda one: one[0],
)


class Serving(RuleBasedStateMachine):
    """Users whose histories grow, shrink and change; steps that overlap, end and fail; transfers at any time."""

    @initialize(
        pages=st.integers(4, 9),
        host_pages=st.sampled_from([12, 4, 1, 0]),
        reload=st.sampled_from([True, False, [True, False], [True, None]]),
        chunk=st.sampled_from([1, 33]),
    )
    def start(self, pages, host_pages, reload, chunk):
        LateTransfers.fails_after = None
        self.choices = cycle([reload] if isinstance(reload, bool) else reload)
        reload = reload if isinstance(reload, bool) else self.choose
        self.cache = make_cache(pages, host_pages, reload=reload, offload_chunk=chunk)
        self.histories = {user: np.empty(0, dtype=np.int64) for user in range(4)}
        self.open = []
        self.steps = self.tokens = 0

    def choose(self, users):
        """Whoever decides about host hits may change its mind from step to step, and may fail."""
        assert any(one.on_host for one in users)
        assert all(one.rows >= 3 and not (one.cached and one.on_host) for one in users)
        chosen = next(self.choices)
        if chosen is None:
            raise ArithmeticError("no choice")
        return chosen

    def history_of(self, user, more):
        """A history that has grown, or begun anew when it is long; tokens are as often shared by users as not."""
        history = self.histories[user]
        start = len(history) + 1000 * (user % 2)
        grown = np.concatenate([history, np.arange(start, start + more)])
        self.histories[user] = grown if len(grown) < 4 * PAGE else grown[:more]
        return self.histories[user].copy()

    def opened(self, requests):
        users = [user for user, _ in requests]
        histories = [self.history_of(user, more) for user, more in requests]
        context = self.cache.step(users, histories, [3] * len(users))
        before = self.cache.counts.as_dict()
        try:
            step = context.__enter__()
        except ArithmeticError:
            # Users who were evicted, or had nothing to go on with, are gone; the step is not counted.
            kept = ("evicted_users", "stale_users")
            after = self.cache.counts.as_dict()
            assert {name: after[name] for name in after if name not in kept} == {
                name: before[name] for name in before if name not in kept
            }
            return None
        except UsageError:
            assert self.cache.counts.as_dict() == before
            needed = sum(-(-len(history) // PAGE) for history in histories)
            assert needed > self.cache.pool.shape[1] or self.open
            return None
        self.steps, self.tokens = self.steps + 1, self.tokens + sum(map(len, histories))
        assert make_table(step, torch.device("cpu")).cached.tolist() == step.cached
        return context, step, histories

    def closed(self, context, step, histories):
        compute(self.cache, step, histories)
        context.__exit__(None, None, None)
        for user, history in zip(step.users, histories, strict=True):
            assert self.cache.users.get(user, 0) == len(history)

    @rule(requests=REQUESTS)
    def serve(self, requests):
        if one := self.opened(requests):
            self.closed(*one)

    @rule(requests=REQUESTS)
    def begin(self, requests):
        if one := self.opened(requests):
            self.open.append(one)

    @rule(user=st.integers(0, 3), kept=st.sampled_from([0.0, 0.5, 0.9]))
    def shrink(self, user, kept):
        self.histories[user] = self.histories[user][: int(kept * len(self.histories[user]))]

    @rule(user=st.integers(0, 3), where=st.sampled_from([0.0, 0.6, 0.99]))
    def change(self, user, where):
        changed = self.histories[user].copy()
        if len(changed):
            changed[int(where * len(changed))] += 7
            self.histories[user] = changed

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9))
    def end(self, which):
        self.closed(*self.open.pop(which % len(self.open)))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9), computed=st.booleans())
    def fail(self, which, computed):
        context, step, histories = self.open.pop(which % len(self.open))
        if computed:
            compute(self.cache, step, histories)
        assert not context.__exit__(RuntimeError, RuntimeError("the model failed"), None)

    @rule(which=st.integers(0, 9))
    def arrive(self, which):
        if self.cache._moving:
            self.cache._moving[which % len(self.cache._moving)].ticket.wait()

    @rule()
    def settle(self):
        self.cache.settle()

    @rule(user=st.integers(0, 3), kept=st.sampled_from([0, 1, 32, 33]), evicted=st.booleans())
    def forget(self, user, kept, evicted):
        """Truncated or evicted from outside: what is left is what it was, and steps go on from it."""
        before = self.cache.held(user)
        forget = (lambda: self.cache.evict(user)) if evicted else (lambda: self.cache.truncate(user, kept))
        if any(user in step.users for _, step, _ in self.open):
            with pytest.raises(UsageError, match=f"user={user} is in a running step"):
                forget()
            assert self.cache.held(user) == before
            return
        forget()
        device, host = self.cache.held(user)
        assert device == (0 if evicted else min(before[0], kept))
        assert host == (before[1] if evicted else min(before[1], kept))

    @rule(which=st.integers(0, 9), layer=st.integers(0, LAYERS - 1))
    def arrive_in_part(self, which, layer):
        """One layer of a transfer is there, the others not yet: nothing of it may be used but that."""
        if self.cache._moving:
            self.cache._moving[which % len(self.cache._moving)].ticket.wait_layer(layer)

    @rule(user=st.integers(0, 3), more=st.sampled_from([1, 32]))
    def go_on_in_transfer(self, user, more):
        """A user comes back while what was new is copied out, and comes with one more page."""
        for _ in range(2):
            if one := self.opened([(user, more)]):
                self.closed(*one)

    @rule(user=st.integers(0, 3), other=st.integers(0, 3))
    def ask_twice(self, user, other):
        """A batch with a user twice is refused, whatever it or others hold, and changes nothing."""
        users = [user, other, user]
        before = self.cache.counts.as_dict(), [self.cache.held(one) for one in range(4)]
        with (
            pytest.raises(UsageError, match="is in the batch twice"),
            self.cache.step(users, [self.histories[one] for one in users], [1, 1, 1]),
        ):
            pass
        assert before == (self.cache.counts.as_dict(), [self.cache.held(one) for one in range(4)])

    @rule(users=st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
    def allocate_for_nothing(self, users):
        """As phases are timed: pages are given, maybe copied into, and the step is given up at once."""
        histories = [self.histories[user] for user in users]
        try:
            step = self.cache.allocate(users, histories, [3] * len(users), self.cache.lookup(users, histories))
        except (ArithmeticError, UsageError):
            return
        self.cache.abort(step)
        self.steps, self.tokens = self.steps + 1, self.tokens + sum(map(len, histories))

    @rule(user=st.integers(0, 3), other=st.integers(0, 3))
    def swap(self, user, other):
        """Two users come with each other's histories: what is cached of both is stale, at the same time."""
        self.histories[user], self.histories[other] = self.histories[other], self.histories[user]

    @rule(layers=st.integers(0, LAYERS - 1))
    def break_next_transfer(self, layers):
        LateTransfers.fails_after = layers

    @invariant()
    def books(self):
        if hasattr(self, "cache"):
            check_books(self.cache)
            assert (self.cache.counts.steps, self.cache.counts.tokens) == (self.steps, self.tokens)

    def teardown(self):
        LateTransfers.fails_after = None
        if hasattr(self, "cache"):
            for context, step, histories in self.open:
                compute(self.cache, step, histories)
                context.__exit__(None, None, None)
            self.cache.settle()
            check_books(self.cache)
            tiers = self.cache._device_tier, self.cache._host_tier
            assert not any(entry.pins for tier in tiers for entry in tier.entries.values())


TestServing = Serving.TestCase
TestServing.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def tokens(count, start=0):
    return np.arange(start, start + count, dtype=np.int64)


def serve(cache, *requests):
    users, histories = [user for user, _ in requests], [history for _, history in requests]
    with cache.step(users, histories, [0] * len(users)) as step:
        compute(cache, step, histories)
    return step.cached


def test_a_longer_history_is_a_hit_of_what_it_was():
    cache = make_cache()
    assert serve(cache, (7, tokens(40))) == [0]
    assert serve(cache, (7, tokens(41)), (8, tokens(3))) == [40, 0]
    assert serve(cache, (7, tokens(41))) == [41]
    assert cache.counts.as_dict() | {"steps": 3} == cache.counts.as_dict()
    assert (cache.counts.hit, cache.counts.missed, cache.counts.tokens) == (81, 44, 125)


@pytest.mark.parametrize(
    "history",
    [tokens(39), tokens(40, 1), np.append(tokens(20), tokens(30)), tokens(0)],
    ids=["shrank", "differs", "differs-late", "emptied"],
)
def test_what_a_history_does_not_continue_is_computed_again(history):
    cache = make_cache(host_pages=4)
    serve(cache, (7, tokens(40)))
    assert serve(cache, (7, history)) == [0]
    assert cache.counts.stale_users in (1, 2)
    assert cache.counts.hit == cache.counts.host_hit == 0
    assert cache.users.get(7, 0) == len(history)


def test_the_least_recently_used_goes_first_and_nobody_of_the_batch():
    cache = make_cache(pages=3)
    serve(cache, (1, tokens(5)), (2, tokens(6)), (3, tokens(7)))
    serve(cache, (1, tokens(5)))
    assert serve(cache, (2, tokens(6)), (4, tokens(8))) == [6, 0]
    assert cache.users == {1: 5, 2: 6, 4: 8}
    assert cache.counts.evicted_users == 1


def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing():
    cache = make_cache(pages=3)
    serve(cache, (1, tokens(40)))
    before = cache.counts.as_dict()
    for requests, said in (
        ([(2, tokens(97))], "kv-cache: pages=3 are too few for a batch that takes 4; a larger pool or a smaller batch"),
        ([(2, tokens(5)), (2, tokens(5))], "kv-cache: user=2 is in the batch twice; each user once"),
        ([(1, tokens(39)), (2, tokens(64))], "kv-cache: pages=3 are too few for a batch that takes 4"),
    ):
        with pytest.raises(UsageError, match=said.replace("(", "\\(")):
            serve(cache, *requests)
        assert cache.users == {1: 40}
        assert cache.counts.as_dict() == before
    with cache.step([1], [tokens(50)], [0]) as step:
        with pytest.raises(UsageError, match="user=1 is in another running step; one step of a user at once"):
            serve(cache, (1, tokens(50)))
        with pytest.raises(UsageError, match="pages=3 are too few beside the steps that run: a batch takes 2"):
            serve(cache, (2, tokens(33)))
        compute(cache, step, [tokens(50)])
    assert serve(cache, (1, tokens(50))) == [50]


def test_a_step_that_fails_leaves_what_was_there():
    cache = make_cache()
    serve(cache, (1, tokens(40)))
    context = cache.step([1, 2], [tokens(90), tokens(9)], [0, 0])
    compute(cache, context.__enter__(), [tokens(90), tokens(9)])
    with pytest.raises(KeyError):
        context.gen.throw(KeyError())
    assert cache.users == {1: 40}
    check_books(cache)
    assert serve(cache, (1, tokens(90))) == [40]
    assert cache.counts.failed_steps == 1


@pytest.mark.parametrize("place", ["CacheStep", "Tier.grow"])
def test_an_error_before_the_step_leaves_what_was_there(monkeypatch, place):
    """No memory for the step, or anything else: no page is lost, nobody stays in use, nothing is counted."""
    cache = make_cache(pages=6, host_pages=6)
    serve(cache, (1, tokens(40)), (3, tokens(8)))
    cache.settle()
    before = cache.counts.as_dict()
    calls = []

    def fails(*given):
        calls.append(given)
        if len(calls) == (2 if "grow" in place else 1):
            raise MemoryError
        return grow(*given)

    grow = Tier.grow
    monkeypatch.setattr(f"attnbench.models.paged_cache.cache.{place}", fails)
    with pytest.raises(MemoryError):
        serve(cache, (1, tokens(70)), (2, tokens(33, 500)))
    monkeypatch.undo()
    assert cache.users == {3: 8, 1: 40}
    assert cache.counts.as_dict() == before
    check_books(cache)
    assert serve(cache, (1, tokens(70)), (2, tokens(33, 500))) == [40, 0]


@pytest.mark.parametrize("count", [-1, -33, 5.5, True, None])
def test_no_user_is_cut_to_a_number_that_is_none(count):
    """-33 tokens would be -1 pages: the last one freed, the others held by nobody who is found."""
    cache = make_cache(pages=3)
    serve(cache, (1, tokens(70)))
    with pytest.raises(UsageError, match=f"^kv-cache: tokens={count} cannot be used; a whole number from 0$"):
        cache.truncate(1, count)
    assert cache.users == {1: 70}
    check_books(cache)


@pytest.mark.parametrize("targets", [[0], [0, -1], [0, 0, 0]])
def test_a_batch_has_a_number_of_candidates_for_each_user(targets):
    cache = make_cache(pages=3)
    with (
        pytest.raises(UsageError, match=r"^kv-cache: targets=.* does not fit 2 users and 2 histories"),
        cache.step([1, 2], [tokens(3), tokens(3)], targets),
    ):
        pass
    assert cache.counts.steps == 0


def test_what_was_evicted_comes_back_from_host_memory():
    cache = make_cache(pages=3, host_pages=9)
    serve(cache, (1, tokens(70)))
    cache.settle()
    serve(cache, (2, tokens(70, 500)))
    assert cache.users == {2: 70}
    assert serve(cache, (1, tokens(80))) == [70]
    assert (cache.counts.host_hit, cache.counts.hit, cache.counts.offloaded) == (70, 0, 150)
    without = make_cache(pages=3, host_pages=9, reload=False)
    for request in ((1, tokens(70)), (2, tokens(70, 500)), (1, tokens(80))):
        assert serve(without, request) == [0]
        without.settle()


def test_a_page_that_was_partly_filled_is_copied_out_again():
    cache = make_cache(pages=3, host_pages=9)
    for request in ((1, tokens(40)), (1, tokens(50)), (2, tokens(70, 500))):
        serve(cache, request)
        cache.settle()
    assert serve(cache, (1, tokens(60))) == [50]


def test_a_copy_out_that_failed_leaves_whole_pages_alone():
    cache = make_cache(pages=3, host_pages=9)
    serve(cache, (1, tokens(40)))
    cache.settle()
    LateTransfers.fails_after = 0
    serve(cache, (1, tokens(50)))
    serve(cache, (2, tokens(70, 500)))
    cache.settle()
    assert serve(cache, (1, tokens(60))) == [32]


def test_a_batch_is_copied_at_once_and_in_chunks():
    cache = make_cache(pages=5, host_pages=20, offload_chunk=40)
    serve(cache, (1, tokens(40)), (2, tokens(39, 500)))
    assert len(cache._moving) == 1
    cache.settle()
    assert {user: entry.length for user, entry in cache._host_tier.entries.items()} == {1: 40}
    serve(cache, (1, tokens(64)), (2, tokens(60, 500)))
    cache.settle()
    assert {user: entry.length for user, entry in cache._host_tier.entries.items()} == {1: 40, 2: 60}
    serve(cache, (3, tokens(100, 900)), (4, tokens(5)))
    assert cache.users == {3: 100, 4: 5}
    cache.settle()
    with cache.step([1, 2], [tokens(64), tokens(60, 500)], [0, 0]) as step:
        assert len(step.tickets) == 1
        compute(cache, step, [tokens(64), tokens(60, 500)])
    assert step.cached == [40, 60]
    assert cache.counts.host_hit == 100


def test_a_user_in_transfer_is_waited_for_not_evicted():
    cache = make_cache(pages=3, host_pages=9)
    serve(cache, (1, tokens(70)))
    assert not cache._moving[0].ticket.done()
    serve(cache, (2, tokens(70, 500)))
    cache.settle()
    assert serve(cache, (1, tokens(70))) == [70]


@pytest.mark.parametrize("host_pages", [0, 4, 8, 24], ids=lambda pages: f"host{pages}")
def test_a_pool_of_exactly_one_batch_serves_every_batch(host_pages):
    """Each batch evicts whoever was there, while what these brought is still copied out, or fails to be."""
    cache, drawn = make_cache(pages=8, host_pages=host_pages), random.Random(host_pages)
    lengths = dict.fromkeys(range(6), 97)
    for _ in range(150):
        users = drawn.sample(range(6), 2)
        for user in users:
            lengths[user] = lengths[user] + drawn.choice([0, 1, 31]) if lengths[user] <= 97 else 97
        if drawn.random() < 0.2:
            LateTransfers.fails_after = drawn.randrange(LAYERS)
        serve(cache, *((user, tokens(lengths[user], 1000 * user)) for user in users))
        assert list(cache.users) == users
        check_books(cache)
    LateTransfers.fails_after = None
    assert cache.counts.evicted_users > 100
    assert (cache.counts.host_hit > 1000) == (host_pages == 24)


def test_host_memory_that_is_full_keeps_what_it_can():
    cache = make_cache(pages=9, host_pages=2)
    serve(cache, (1, tokens(70)))
    assert (cache.counts.offloaded, cache.counts.not_offloaded) == (0, 70)
    serve(cache, (2, tokens(64)))
    cache.settle()
    serve(cache, (3, tokens(20)))
    cache.settle()
    assert list(cache._host_tier.entries) == [3]


def test_a_transfer_that_fails_is_a_miss():
    cache = make_cache(pages=3, host_pages=9)
    serve(cache, (1, tokens(70)))
    cache.settle()
    serve(cache, (2, tokens(70, 500)))
    cache.settle()
    LateTransfers.fails_after = 0
    assert serve(cache, (1, tokens(70))) == [0]
    LateTransfers.fails_after = 0
    serve(cache, (1, tokens(80)))
    assert cache.counts.failed_transfers == 2
    cache.settle()
    check_books(cache)


def test_copies_on_a_cpu_are_made_at_once():
    cache = make_cache(pages=3, host_pages=9, transfers=Transfers)
    for request in ((1, tokens(70)), (2, tokens(70, 500)), (1, tokens(71)), (2, tokens(72, 500))):
        serve(cache, request)
    assert cache.counts.host_hit == 140
    assert runs([4, 5, 6, 2, 9, 10]) == [(0, 4, 3), (3, 2, 1), (4, 9, 2)]
    assert runs([]) == []


def test_a_layer_is_waited_for_on_the_stream_of_the_pools_device(monkeypatch):
    waits = []

    class Stream:
        def __init__(self, device):
            self.device = device

        def wait_event(self, event):
            waits.append((str(self.device), event))

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    Ticket(None, ["first", "second"], torch.device("cuda:1")).wait_layer(1)
    assert waits == [("cuda:1", "second")]


def test_the_table_is_what_the_kernels_take():
    cache = make_cache(pages=9)
    serve(cache, (1, tokens(31)))
    with cache.step([1, 2, 3], [tokens(33), tokens(0), tokens(2)], [4, 5, 0]) as step:
        table = make_table(step, torch.device("cpu"))
        assert table.offsets.tolist() == [0, 6, 11, 13]
        assert table.cached.tolist() == [31, 0, 0]
        assert table.indptr.tolist() == [0, 2, 2, 3]
        assert table.indices.tolist() == [*step.pages[0], *step.pages[2]]
        assert table.num_targets.tolist() == [4, 5, 0]
        assert (table.max_new, table.max_cached) == (6, 31)
        assert {x.data_ptr() % 16 for x in (table.offsets, table.cached, table.indptr, table.indices)} == {
            table.offsets.data_ptr() % 16
        }
        compute(cache, step, [tokens(33), tokens(0), tokens(2)])
    assert 2 not in cache.users


@pytest.mark.parametrize(
    "wrong",
    [{"pages": 0}, {"page_size": 48}, {"heads": 1.5}, {"host_pages": -1}, {"offload_chunk": 0}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_numbers_that_cannot_be_used(wrong):
    usual = {"layers": 1, "heads": 1, "dim": 1, "pages": 2, "page_size": 32}
    with pytest.raises(UsageError, match=f"kv-cache: {next(iter(wrong))}={next(iter(wrong.values()))} "):
        PagedCache(**usual | wrong)
