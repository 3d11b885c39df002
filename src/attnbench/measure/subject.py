"""Subjects of sampling: a closure each, and what the harness may do around its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from attnbench.errors import AttnbenchError


class Misleading(AttnbenchError):
    """The samples of a subject do not measure its work."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(reason)
        self.subject = subject


class Inspector(Protocol):
    """Inspects single samples of one subject: was all the work done, and inside the sample?"""

    @property
    def undecided(self) -> bool:
        """Whether more inspections are needed, each after further samples."""
        ...

    def begin(self) -> str | None:
        """Right after a recorded sample, before any other call: check the outputs that it has left.

        Returns:
            What is wrong with them; None where nothing is.
        """
        ...

    def disturb(self) -> None:
        """Untimed, right before an ordinary sample: reset, and change the caches as `prepare` does, but no data."""
        ...

    def prepare(self) -> None:
        """Untimed, right before a sample: reset, load new data, overwrite old outputs; on a GPU this is queued."""
        ...

    def finish(
        self, recorded_ms: float | None, repeated_ms: float, ordinary_ms: float, new_ms: float, lead_s: float
    ) -> str | None:
        """Right after the sample: check the outputs, and restore the subject's state before `prepare`.

        Args:
            recorded_ms: mean of the last two samples of the subject before this inspection; None where the group's
                timer cannot time an inspection.
            repeated_ms: mean of the last two of a few samples taken in a row, as recorded ones are.
            ordinary_ms: a sample after `disturb`, taken between those and the last.
            new_ms: the sample after `prepare`.
            lead_s: head start that the host had before each of these samples, s.

        Returns:
            Why the subject's samples do not measure its work; None where nothing shows that.
        """
        ...


@dataclass(kw_only=True, slots=True)
class Subject:
    """One competitor: a closure that can be called repeatedly."""

    name: str
    call: Callable[[], Any]
    reset: Callable[[], None] | None = None
    "untimed, before each sample"
    reported_ms: Callable[[], float] | None = None
    "the kernel's own time of the last call"
    capturable: bool = True
    "may be recorded in a CUDA graph"
    callable_untimed: bool = True
    "may be called to warm the caches before a sample; False: the caches are flushed instead"
    inspector: Inspector | None = None
