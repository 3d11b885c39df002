"""What is sampled: a closure and what the harness may do around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from attnbench.errors import AttnbenchError


class Misleading(AttnbenchError):
    """The times of a subject are not those of its work."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(reason)
        self.subject = subject


class Inspector(Protocol):
    """Looks at single samples of one subject: was the work done, all of it, and inside the sample?"""

    @property
    def undecided(self) -> bool:
        """Whether more looks are needed, each after further samples."""
        ...

    def disturb(self) -> None:
        """Right before an ordinary sample, untimed: reset, and what `prepare` does to caches, without new data."""
        ...

    def prepare(self) -> None:
        """Right before a sample, untimed: reset, load data never seen, spoil old outputs; queues work on a GPU."""
        ...

    def finish(self, recorded_ms: float | None, repeated_ms: float, ordinary_ms: float, new_ms: float) -> str | None:
        """Right after it: look at the outputs, and leave the subject as it was before `prepare`.

        Args:
            recorded_ms: mean of the last two samples of the subject before this look; None where no look can be taken
                by the group's timer.
            repeated_ms: mean of two samples of the subject, the last of a few in a row as they are recorded.
            ordinary_ms: a sample of it after `disturb`, taken between those and the last.
            new_ms: the sample after `prepare`.

        Returns:
            Words for why the subject's times are not those of its work; None where they may be.
        """
        ...


@dataclass(kw_only=True, slots=True)
class Subject:
    """One competitor: a closure ready to be called again and again."""

    name: str
    call: Callable[[], Any]
    reset: Callable[[], None] | None = None
    "untimed, before each sample"
    reported_ms: Callable[[], float] | None = None
    "the kernel's own figure for the last call"
    capturable: bool = True
    "may be recorded in a CUDA graph"
    callable_untimed: bool = True
    "may be called to warm the caches before a sample; False: the caches are flushed instead"
    inspector: Inspector | None = None
