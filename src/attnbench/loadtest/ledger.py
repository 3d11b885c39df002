"""The outcome of every request: answered, or refused with a reason, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ANSWERED = ""
"Outcome of an answered request; any other text is the reason of a refusal."
INTERRUPTED = "interrupted"
BACKLOG = "backlog: not reached within the time after the last arrival"


@dataclass(slots=True)
class Flown:
    """One batch that was launched."""

    size: int
    tokens: int
    "of history and candidates"
    host_ms: float
    device_ms: float | None


@dataclass(slots=True)
class Ledger:
    """One row per issued request; times are nanoseconds on the monotonic clock."""

    index: list[int] = field(default_factory=list)
    issued_ns: list[int] = field(default_factory=list)
    started_ns: list[int | None] = field(default_factory=list)
    "when its batch was launched"
    done_ns: list[int | None] = field(default_factory=list)
    outcome: list[str | None] = field(default_factory=list)
    "None: not finished"
    examples: dict[str, str] = field(default_factory=dict)
    "by reason, the full message of its first refusal"
    batches: list[Flown] = field(default_factory=list)
    splits: int = 0
    "batches that failed as a whole and were served in halves"
    backlog: int = 0
    "requests without an answer when the last one was issued"
    interrupted: bool = False

    def arrive(self, index: int, issued_ns: int) -> int:
        """Add a request; return its index."""
        self.index.append(index)
        self.issued_ns.append(issued_ns)
        self.started_ns.append(None)
        self.done_ns.append(None)
        self.outcome.append(None)
        return len(self.index) - 1

    def answer(self, place: int, started_ns: int, done_ns: int) -> None:
        """Record that a request is answered."""
        self._end(place, ANSWERED, done_ns)
        self.started_ns[place] = started_ns

    def refuse(self, place: int, reason: str, now_ns: int, example: str = "") -> None:
        """Record that a request is refused.

        Args:
            place: index of the request.
            reason: short, and the same for all requests refused for it.
            now_ns: the time.
            example: the full message.
        """
        assert reason
        self._end(place, reason, now_ns)
        if example:
            self.examples.setdefault(reason, example)

    def _end(self, place: int, outcome: str, now_ns: int) -> None:
        if self.outcome[place] is not None:
            raise AssertionError(f"request {place} is over twice: {self.outcome[place]!r} and {outcome!r}")
        self.outcome[place], self.done_ns[place] = outcome, now_ns

    @property
    def open(self) -> list[int]:
        """Return the requests that are not finished."""
        return [place for place, outcome in enumerate(self.outcome) if outcome is None]

    @property
    def answered(self) -> int:
        """Number of answered requests."""
        return sum(outcome == ANSWERED for outcome in self.outcome)

    @property
    def refused(self) -> dict[str, int]:
        """Number of refused requests for each reason."""
        found: dict[str, int] = {}
        for outcome in self.outcome:
            if outcome:
                found[outcome] = found.get(outcome, 0) + 1
        return found

    def close(self, now_ns: int, reason: str) -> list[int]:
        """Refuse all unfinished requests; return their indices."""
        found = self.open
        for place in found:
            self.refuse(place, reason, now_ns)
        return found

    def balanced(self) -> bool:
        """Whether issued = answered + refused."""
        return len(self.index) == self.answered + sum(self.refused.values())


def of_answered(ledger: Ledger, values: Sequence[int | None], since: Sequence[int | None]) -> list[float]:
    """Return the milliseconds between two columns, for answered requests."""
    return [
        (value - start) / 1e6
        for outcome, value, start in zip(ledger.outcome, values, since, strict=True)
        if outcome == ANSWERED and value is not None and start is not None
    ]
