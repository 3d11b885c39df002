"""One setting that all backends of a process share: how it is read and put back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

ABSENT = object()
"""Read where there is no such setting yet."""

UNREADABLE = "not readable"
"""Read where torch refuses to say: its precision switches disagree, or an open mode forbids the question."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Its name in notes, and two functions."""

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    shown: bool = True
    "False for a value too long for a note, or that names a place of the machine"
    which: Callable[[Any, Any], str] | None = None
    "names what of it changed"

    def get(self) -> Any:
        """Its value now; `UNREADABLE` where that cannot be said."""
        try:
            return self.read()
        except Exception:  # the edge: a backend may have left anything in the way
            return UNREADABLE

    def put_back(self, value: Any) -> None:
        """Set it; who asks reads it again to see whether that worked."""
        if value is not UNREADABLE:
            with suppress(Exception):  # the edge: a limit, a right or a library may forbid it in any way
                self.write(value)

    def same(self, then: Any, now: Any) -> bool:
        """Whether two values of it are the same."""
        if then is now:
            return True
        try:
            return bool(then.equal(now)) if hasattr(then, "equal") else bool(then == now)
        except Exception:  # the edge: see `get`
            return False

    def change(self, then: Any, now: Any) -> str:
        """Words for what changed."""
        if self.which is not None:
            return f"{self.words} {self.which(then, now)}"
        return f"{self.words} ({then} -> {now})" if self.shown else self.words
