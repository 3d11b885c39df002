"""What became of every request: answered, or refused with a reason, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ANSWERED = ""
"The outcome of a request that was answered; any other text is why it was refused."
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
    """A line for each request that was issued; times are nanoseconds on the monotonic clock."""

    index: list[int] = field(default_factory=list)
    issued_ns: list[int] = field(default_factory=list)
    started_ns: list[int | None] = field(default_factory=list)
    "when its batch was launched"
    done_ns: list[int | None] = field(default_factory=list)
    outcome: list[str | None] = field(default_factory=list)
    "None: nothing yet"
    examples: dict[str, str] = field(default_factory=dict)
    "the first message in full behind each reason"
    batches: list[Flown] = field(default_factory=list)
    splits: int = 0
    "batches that were refused as a whole and served in halves"
    backlog: int = 0
    "requests that had no answer when the last one was issued"
    interrupted: bool = False

    def arrive(self, index: int, issued_ns: int) -> int:
        """Note a request; its place."""
        self.index.append(index)
        self.issued_ns.append(issued_ns)
        self.started_ns.append(None)
        self.done_ns.append(None)
        self.outcome.append(None)
        return len(self.index) - 1

    def answer(self, place: int, started_ns: int, done_ns: int) -> None:
        """Note that a request is answered."""
        self._end(place, ANSWERED, done_ns)
        self.started_ns[place] = started_ns

    def refuse(self, place: int, reason: str, now_ns: int, example: str = "") -> None:
        """Note that a request is refused.

        Args:
            place: of the request.
            reason: in few words, the same for all that are refused for it.
            now_ns: the time.
            example: the message in full.
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
        """Requests that are not over."""
        return [place for place, outcome in enumerate(self.outcome) if outcome is None]

    @property
    def answered(self) -> int:
        """How many were answered."""
        return sum(outcome == ANSWERED for outcome in self.outcome)

    @property
    def refused(self) -> dict[str, int]:
        """How many were refused for each reason."""
        found: dict[str, int] = {}
        for outcome in self.outcome:
            if outcome:
                found[outcome] = found.get(outcome, 0) + 1
        return found

    def close(self, now_ns: int, reason: str) -> list[int]:
        """Refuse whatever is still open; which these were."""
        found = self.open
        for place in found:
            self.refuse(place, reason, now_ns)
        return found

    def balanced(self) -> bool:
        """Whether issued = answered + refused."""
        return len(self.index) == self.answered + sum(self.refused.values())


def of_answered(ledger: Ledger, values: Sequence[int | None], since: Sequence[int | None]) -> list[float]:
    """Milliseconds between two columns, for the requests that were answered."""
    return [
        (value - start) / 1e6
        for outcome, value, start in zip(ledger.outcome, values, since, strict=True)
        if outcome == ANSWERED and value is not None and start is not None
    ]
