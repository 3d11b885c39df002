"""The server: takes arrivals, forms batches, launches them, and accounts for every request.

It has one thread.  Between two launches it receives arrivals; on a GPU it may launch a full batch behind the running
one, so that the host's work is hidden.  A batch that is refused or fails is served in halves, down to single requests:
only those that cause it are refused.  After the last arrival it continues for a limited time; requests left then are
refused as backlog.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from attnbench.errors import AttnbenchError
from attnbench.loadtest.ending import Ending
from attnbench.loadtest.generator import Source
from attnbench.loadtest.ledger import BACKLOG, INTERRUPTED, Flown, Ledger
from attnbench.loadtest.queueing import Queue, Waiting

if TYPE_CHECKING:
    from attnbench.models.hstu_ranking.request import Request

IDLE_S = 0.05
"Longest wait for an arrival when idle."
BUSY_S = 20e-6
"Interval of checks whether a batch on the device is done."


@dataclass(frozen=True, slots=True)
class Refused:
    """Reason why a request is not served."""

    reason: str
    example: str = ""


class Handle(Protocol):
    """A batch that was launched."""

    @property
    def scores(self) -> Any:
        """Tensor [candidates, tasks] on the host, after `wait`."""

    def done(self) -> bool:
        """Return whether it is finished; does not wait."""

    def wait(self) -> float | None:
        """Wait until it is finished; return the device time in milliseconds, None if unknown.

        Raises:
            AttnbenchError: the scores are invalid.
            RuntimeError: the device has failed.
        """


class Engine(Protocol):
    """Computes the scores of batches."""

    depth: int
    "batches that may be in flight at the same time"

    def launch(self, requests: Sequence[Request]) -> Handle:
        """Start a batch of different users.

        Raises:
            AttnbenchError: a request or the cache refuses it; nothing has changed then.
            Exception: the step failed; nothing has changed then.
        """


class Library(Protocol):
    """Maps the indices of arrivals to requests."""

    def take(self, index: int) -> Request | Refused:
        """Return the next request of a sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """How batches are formed and how long the server continues."""

    max_batch: int = 8
    max_wait_ms: float = 2.0
    "a batch that is not full is launched once its oldest request has waited this long"
    drain_s: float = 30.0
    "longest time after the last arrival"


@dataclass(slots=True)
class _Flight:
    batch: list[Waiting]
    handle: Handle
    started_ns: int
    host_ms: float

    def over(self) -> bool:
        """Whether waiting for it is pointless: it is done, or its device has failed, which `wait` reports."""
        try:
            return self.handle.done()
        except Exception:  # `wait` raises it again
            return True


def reason_of(error: BaseException) -> Refused:
    """Return why a single request was refused: the field named by a refusal, or the kind of error."""
    text = " ".join(str(error).split())
    if isinstance(error, AttnbenchError) and "=" in text:
        who, _, field = text.split("=", 1)[0].rpartition(": ")
        who = who.split(":")[0]
        return Refused(f"refused by {who}: {field.split('[')[0]}", text)
    return Refused(f"failed step: {type(error).__name__}", text)


class Server:
    """Serves one load."""

    def __init__(
        self,
        source: Source,
        engine: Engine,
        library: Library,
        batching: Batching,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        on_progress: Callable[[Ledger, int], None] | None = None,
        on_scores: Callable[[Sequence[Request], Any], None] | None = None,
    ) -> None:
        """Create a server.

        Args:
            source: of arrivals.
            engine: computes the scores.
            library: maps the indices of arrivals to requests.
            batching: parameters.
            clock: nanoseconds.
            on_progress: called between batches with the ledger and the number of waiting requests.
            on_scores: called with the requests of an answered batch, and its scores.
        """
        self._source, self._engine, self._library, self._how = source, engine, library, batching
        self._clock, self._on_progress, self._on_scores = clock, on_progress, on_scores
        self.ledger = Ledger()
        self.ending: KeyboardInterrupt | None = None
        "the signal that ended the load before its time"
        self._signals = Ending()
        self._queue = Queue()
        self._flights: deque[_Flight] = deque()
        self._numbers: list[int] = []
        "numbers assigned by the generator, by index in the ledger"
        self._last_ns: int | None = None

    def run(self) -> Ledger:
        """Serve until every request that was issued is over; after Ctrl-C what is left is refused as interrupted."""
        with self._signals:
            try:
                while not self._finished():
                    self._turn()
            except KeyboardInterrupt as ending:
                self.ledger.interrupted, self.ending = True, ending
                for arrival in self._source.take(0):
                    self._note(arrival.number, arrival.index, arrival.issued_ns)
                self._close(INTERRUPTED)
        return self.ledger

    def _finished(self) -> bool:
        return self._source.over and not self._queue and not self._flights

    def _turn(self) -> None:
        self._take(self._patience())
        self._land_what_is_done()
        if self._overdue():
            while self._flights:
                self._land()
            self._close(BACKLOG)
        elif self._may_launch():
            self._launch(self._queue.batch(self._how.max_batch))
            self._land_what_is_done()  # a CPU engine computes in `launch`
        if self._on_progress is not None:
            self._on_progress(self.ledger, len(self._queue))

    def _patience(self) -> float:
        """Seconds to wait for an arrival."""
        if self._may_launch():
            return 0.0
        if self._flights:
            return BUSY_S
        if not self._queue:
            return IDLE_S
        ready = self._queue.oldest_ns + self._how.max_wait_ms * 1e6
        return min(IDLE_S, max(0.0, (ready - self._clock()) * 1e-9))

    def _take(self, timeout_s: float) -> None:
        arrivals = self._source.take(timeout_s)
        with self._signals.whole():
            for arrival in arrivals:
                place = self._note(arrival.number, arrival.index, arrival.issued_ns)
                found = self._library.take(arrival.index)
                if isinstance(found, Refused):
                    self._refuse([place], found)
                else:
                    self._queue.add(Waiting(place, arrival.number, found, arrival.issued_ns))
        if self._source.all_issued and self._last_ns is None:
            self._last_ns = self._clock()
            self.ledger.backlog = len(self.ledger.open)

    def _note(self, number: int, index: int, issued_ns: int) -> int:
        self._numbers.append(number)
        return self.ledger.arrive(index, issued_ns)

    def _overdue(self) -> bool:
        """Whether the time after the last arrival is over."""
        if self._last_ns is None or not self._queue:
            return False
        return self._clock() - self._last_ns > self._how.drain_s * 1e9

    def _may_launch(self) -> bool:
        if not self._queue or len(self._flights) >= self._engine.depth:
            return False
        if self._queue.users >= self._how.max_batch:
            return True
        # Behind a running batch only a full one is launched, because requests that arrive meanwhile may still join.
        if self._flights:
            return False
        nobody_follows = self._source.all_issued
        return nobody_follows or self._clock() - self._queue.oldest_ns >= self._how.max_wait_ms * 1e6

    def _launch(self, batch: list[Waiting]) -> None:
        started = self._clock()
        try:
            handle = self._engine.launch([one.request for one in batch])
        except Exception as error:  # catches everything: the batch's requests are refused with the reason
            if len(batch) == 1:
                self._refuse([batch[0].place], reason_of(error))
                return
            self.ledger.splits += 1
            half = len(batch) // 2
            for part in (batch[:half], batch[half:]):
                self._launch(part)
            return
        self._flights.append(_Flight(batch, handle, started, (self._clock() - started) / 1e6))
        while len(self._flights) > self._engine.depth:
            self._land()

    def _land_what_is_done(self) -> None:
        while self._flights and self._flights[0].over():
            self._land()

    def _land(self) -> None:
        """Wait for the batch that was launched first, and record its requests."""
        flight = self._flights[0]
        places = [one.place for one in flight.batch]
        try:
            device_ms = flight.handle.wait()
        except Exception as error:  # catches everything: the batch's requests are refused with the reason
            self._flights.popleft()
            self._refuse(places, reason_of(error))
            return
        with self._signals.whole():
            self._flights.popleft()
            now = self._clock()
            for place in places:
                self.ledger.answer(place, flight.started_ns, now)
            tokens = sum(2 * len(one.request.items) + len(one.request.candidates) for one in flight.batch)
            self.ledger.batches.append(Flown(len(places), tokens, flight.host_ms, device_ms))
            self._source.answered([self._numbers[place] for place in places])
            if self._on_scores is not None:
                self._on_scores([one.request for one in flight.batch], flight.handle.scores)

    def _refuse(self, places: Sequence[int], why: Refused) -> None:
        now = self._clock()
        for place in places:
            self.ledger.refuse(place, why.reason, now, why.example)
        self._source.answered([self._numbers[place] for place in places])

    def _close(self, reason: str) -> None:
        """Refuse all unfinished requests."""
        self._queue = Queue()
        self._flights.clear()
        places = self.ledger.close(self._clock(), reason)
        self._source.answered([self._numbers[place] for place in places])
