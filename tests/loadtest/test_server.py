"""Every request is answered or refused with a reason, once, whatever happens."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loadtest.simulated import Arrivals, Clock, Engine, Library

from attnbench.errors import UsageError
from attnbench.loadtest import ledger as ledger_of
from attnbench.loadtest import queueing, serving
from attnbench.loadtest.ledger import ANSWERED, BACKLOG, INTERRUPTED, Ledger
from attnbench.loadtest.points import Schedule, point_of
from attnbench.loadtest.serving import Batching, Server
from attnbench.models.hstu_ranking.request import Request

MS = 1_000_000


def served(due_ms: Sequence[float], users: Sequence[int], how: Batching, **engine) -> tuple[Ledger, Engine, Arrivals]:
    clock = Clock()
    source, found = Arrivals(clock, [round(one * MS) for one in due_ms]), Engine(clock, **engine)
    return Server(source, found, Library(users), how, clock=clock).run(), found, source


def check_conserved(ledger: Ledger, source: Arrivals, issued: int) -> None:
    assert len(ledger.index) == issued
    assert not ledger.open
    assert ledger.balanced()
    assert all(reason for reason in ledger.refused)
    completed = sorted(source.completed)
    assert completed == [1000 + number for number in range(issued)], "each completes once, answered or refused"


def test_a_batch_is_launched_when_full_or_when_its_oldest_has_waited() -> None:
    how = Batching(max_batch=3, max_wait_ms=5)
    ledger, engine, source = served([0, 1, 2, 10, 30], [0, 1, 2, 3, 4], how)
    check_conserved(ledger, source, 5)
    assert engine.batches == [[0, 1, 2], [3], [4]]
    waited = [(start - at) / MS for start, at in zip(ledger.started_ns, ledger.issued_ns, strict=True)]
    assert waited[0] == pytest.approx(2, abs=0.1)  # full with the third
    assert waited[3] == pytest.approx(5, abs=0.1)  # not full
    assert waited[4] == pytest.approx(0, abs=0.1)  # nobody follows


def test_a_user_twice_waits_for_the_next_batch_and_stays_in_order() -> None:
    ledger, engine, source = served([0, 0, 0, 0, 0], [7, 7, 8, 7, 9], Batching(max_batch=4, max_wait_ms=0))
    check_conserved(ledger, source, 5)
    assert engine.batches == [[7, 8, 9], [7], [7]]
    assert ledger.done_ns[0] < ledger.done_ns[1] < ledger.done_ns[3]
    _, engine, _ = served([0] * 5, [7, 8, 7, 8, 9], Batching(max_batch=1, max_wait_ms=0))
    assert engine.batches == [[7], [8], [7], [8], [9]], "users who come back are served in the order of arrival, too"


def test_on_a_card_a_full_batch_is_launched_behind_the_running_one() -> None:
    _, engine, _ = served([0] * 8, range(8), Batching(max_batch=4, max_wait_ms=0), depth=2, service_ns=5 * MS)
    assert engine.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # A batch that is not full waits for the device: who arrives meanwhile joins.
    _, engine, _ = served([0, 0, 1, 2, 30], range(5), Batching(max_batch=4, max_wait_ms=0), depth=2, service_ns=5 * MS)
    assert engine.batches == [[0, 1], [2, 3], [4]]


def test_a_rate_above_capacity_ends_in_bounded_time_with_the_backlog_stated() -> None:
    due = [number * 0.1 for number in range(1000)]  # 10,000 a second for a server of 1,000
    ledger, _, source = served(due, range(1000), Batching(max_batch=4, max_wait_ms=1, drain_s=0.05))
    check_conserved(ledger, source, 1000)
    assert ledger.backlog > 850
    assert set(ledger.refused) == {BACKLOG}
    assert ledger.refused[BACKLOG] == 1000 - ledger.answered > 800
    assert max(ledger.done_ns) < (100 + 50 + 10) * MS


def test_only_the_request_at_fault_is_refused_and_the_reason_names_the_field() -> None:
    def too_large(number: int, requests: Sequence[Request]) -> None:
        if any(one.user == 5 for one in requests):
            raise UsageError("hstu-ranking: request 2: items[3]=99 is outside the vocabulary; 0 to 49")

    ledger, engine, source = served([0] * 8, range(8), Batching(max_batch=8, max_wait_ms=0), at_launch=too_large)
    check_conserved(ledger, source, 8)
    assert ledger.refused == {"refused by hstu-ranking: items": 1}
    assert ledger.outcome[5] != ANSWERED
    assert ledger.splits == 3
    assert "99 is outside the vocabulary" in ledger.examples["refused by hstu-ranking: items"]
    assert engine.batches == [[0, 1, 2, 3], [4], [6, 7]]


def test_a_pool_that_holds_two_users_serves_any_batch_in_pairs() -> None:
    def small(number: int, requests: Sequence[Request]) -> None:
        if len(requests) > 2:
            raise UsageError("kv-cache: pages=8 are too few for a batch that takes 16; a larger pool")

    ledger, engine, source = served([0] * 8, range(8), Batching(max_batch=8, max_wait_ms=0), at_launch=small)
    check_conserved(ledger, source, 8)
    assert ledger.answered == 8
    assert [len(batch) for batch in engine.batches] == [2, 2, 2, 2]


@pytest.mark.parametrize("fault", [RuntimeError("device-side assert"), OSError("at every question")])
def test_a_device_that_fails_after_the_launch_refuses_its_batch_alone(fault: Exception) -> None:
    ledger, _, source = served(
        [0] * 6,
        range(6),
        Batching(max_batch=2, max_wait_ms=0),
        depth=2,
        at_end=lambda number: fault if number == 1 else None,
    )
    check_conserved(ledger, source, 6)
    assert ledger.refused == {f"failed step: {type(fault).__name__}": 2}
    assert [place for place, outcome in enumerate(ledger.outcome) if outcome] == [2, 3]


def test_ctrl_c_keeps_what_was_answered_and_refuses_the_rest() -> None:
    def stop(number: int, requests: Sequence[Request]) -> None:
        if number == 3:
            raise KeyboardInterrupt

    ledger, _, source = served([0] * 10, range(10), Batching(max_batch=2, max_wait_ms=0), at_launch=stop)
    assert ledger.interrupted
    check_conserved(ledger, source, 10)
    assert ledger.refused == {INTERRUPTED: 10 - ledger.answered}
    assert ledger.answered == 6


def test_answers_a_second_are_of_the_whole_load() -> None:
    """Whoever refuses all but the first requests answers no more a second than are answered in that second."""
    users = [0, 1] + [-1] * 8
    ledger, _, source = served([100 * at for at in range(10)], users, Batching(max_wait_ms=0))
    schedule = Schedule(source.due_ns, 0)
    point = point_of(ledger, schedule, scenario="gaps", generator="x", asked=10.0, slos_ms=(50.0,), cache={})
    assert point.whole_s == point.load_s == 0.9
    assert point.achieved_rate == point.goodput[0].rate == pytest.approx(2 / 0.9)
    assert point.refused == {"unknown user": 8}


class SignalAtLine:
    """Sends this process SIGINT before one of the lines in which the server works, counted from its first turn."""

    def __init__(self, number: int) -> None:
        self.left, self.sent = number, False

    def __call__(self, frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        inside = frame.f_code.co_filename in (serving.__file__, ledger_of.__file__, queueing.__file__)
        return self.count if inside and frame.f_code.co_name not in ("run", "_finished") else None

    def count(self, frame: FrameType, event: str, arg: object) -> Callable[..., object]:
        if event == "line" and not self.sent:
            self.left -= 1
            if not self.left:
                self.sent = True
                signal.raise_signal(signal.SIGINT)
        return self.count


def test_ctrl_c_at_any_line_leaves_a_ledger_that_adds_up() -> None:
    """A line of the ledger is written whole, and a batch is answered as a whole or not at all."""
    users = [0, 1, 0, 2, -1, 1]
    for number in itertools.count(1, 11):
        clock = Clock()
        source, traced = Arrivals(clock, [at * MS for at in (0, 0, 1, 2, 2, 9)]), SignalAtLine(number)
        server = Server(source, Engine(clock), Library(users), Batching(max_batch=2, max_wait_ms=1), clock=clock)
        before = sys.gettrace()
        sys.settrace(traced)
        try:
            ledger = server.run()
        finally:
            sys.settrace(before)
        columns = ledger.index, ledger.issued_ns, ledger.started_ns, ledger.done_ns, ledger.outcome
        assert len(set(map(len, columns))) == 1
        assert ledger.balanced()
        assert not ledger.open
        assert ledger.interrupted == traced.sent
        assert sum(batch.size for batch in ledger.batches) == ledger.answered
        assert len(set(source.completed)) == len(source.completed)
        if not traced.sent:
            break
    assert number > 500
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_request_that_is_over_twice_is_a_mistake_of_ours() -> None:
    ledger = Ledger()
    place = ledger.arrive(0, 0)
    ledger.answer(place, 1, 2)
    with pytest.raises(AssertionError, match="over twice"):
        ledger.refuse(place, "backlog", 3)


FAULTS = st.sampled_from(
    [
        None,
        None,
        None,
        RuntimeError("no memory"),
        MemoryError(),
        ZeroDivisionError(),
        KeyboardInterrupt(),
        UsageError("kv-cache: pages=1 are too few; more"),
    ]
)


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.floats(0, 40), st.integers(-1, 4)), max_size=40),
    max_batch=st.integers(1, 5),
    max_wait_ms=st.floats(0, 10),
    drain_s=st.floats(0.001, 0.05),
    service_ms=st.floats(0.01, 10),
    depth=st.integers(1, 3),
    launches=st.lists(FAULTS, max_size=12),
    ends=st.lists(st.booleans(), max_size=12),
)
def test_requests_are_conserved_whatever_fails(
    arrivals, max_batch, max_wait_ms, drain_s, service_ms, depth, launches, ends
) -> None:
    arrivals = sorted(arrivals, key=lambda one: one[0])
    order: list[int] = []

    def at_launch(number: int, requests: Sequence[Request]) -> None:
        assert len(requests) <= max_batch
        if number < len(launches) and launches[number] is not None:
            raise launches[number]

    def at_end(number: int) -> BaseException | None:
        return RuntimeError("late") if number < len(ends) and ends[number] else None

    ledger, _, source = served(
        [at for at, _ in arrivals],
        [user for _, user in arrivals],
        Batching(max_batch=max_batch, max_wait_ms=max_wait_ms, drain_s=drain_s),
        service_ns=round(service_ms * MS),
        depth=depth,
        at_launch=at_launch,
        at_end=at_end,
    )
    interrupted = any(isinstance(one, KeyboardInterrupt) for one in launches)
    assert ledger.interrupted <= interrupted
    if not ledger.interrupted:
        check_conserved(ledger, source, len(arrivals))
    assert ledger.balanced()
    assert not ledger.open
    assert ledger.refused.get("unknown user", 0) <= sum(user < 0 for _, user in arrivals)
    assert sum(batch.size for batch in ledger.batches) == ledger.answered
    for user in range(5):
        mine = [
            place
            for place in range(len(ledger.index))
            if arrivals[place][1] == user and ledger.outcome[place] == ANSWERED
        ]
        started = [ledger.started_ns[place] for place in mine]
        done = [ledger.done_ns[place] for place in mine]
        order += mine
        assert started == sorted(set(started)), "one user's requests are launched in order, never in one batch"
        assert done == sorted(done)
    assert len(order) == ledger.answered
