"""One setting that all backends of a process share: how it is read and restored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

ABSENT = object()
"""Value of a setting that does not exist yet."""

UNREADABLE = "not readable"
"""Value where torch refuses to answer: its precision switches disagree, or an active mode forbids the query."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: its name in notes, and functions that read and write it."""

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    shown: bool = True
    "False for a value that is too long for a note or contains a path of the machine"
    which: Callable[[Any, Any], str] | None = None
    "names the parts that changed"

    def get(self) -> Any:
        """Return its current value; `UNREADABLE` where reading it fails."""
        try:
            return self.read()
        except Exception:  # a backend may have left any object here
            return UNREADABLE

    def put_back(self, value: Any) -> None:
        """Set it; the caller reads it again to see whether that worked."""
        if value is not UNREADABLE:
            with suppress(Exception):  # a limit, a permission or a library may forbid it in any way
                self.write(value)

    def same(self, then: Any, now: Any) -> bool:
        """Return whether two of its values are equal."""
        if then is now:
            return True
        try:
            return bool(then.equal(now)) if hasattr(then, "equal") else bool(then == now)
        except Exception:  # see `get`
            return False

    def change(self, then: Any, now: Any) -> str:
        """Describe what changed."""
        if self.which is not None:
            return f"{self.words} {self.which(then, now)}"
        return f"{self.words} ({then} -> {now})" if self.shown else self.words
