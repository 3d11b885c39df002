"""Settings of the process and of torch that a backend may have left changed.

All sessions of a group are open at once, so a setting that one leaves changed affects the answers and the times of
the others.  It is restored and noted; the backend's numbers stand.  A setting that cannot be restored (`is_stuck`)
requires another process for the other backends.

Capturing and restoring take some tenths of a millisecond and surround every step of a backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.check.functions import CONSTANT, FUNCTION
from attnbench.check.process_settings import ENVIRONMENT, SEARCH_PATH, process_settings
from attnbench.check.setting import ABSENT, Setting
from attnbench.check.torch_settings import torch_settings

STUCK = ", which cannot be restored"
KEPT = ", which is kept"
ON_IMPORT = frozenset({ENVIRONMENT, SEARCH_PATH})
"""Settings that a backend file may change on import, to find its own modules and libraries."""


def is_stuck(note: str) -> bool:
    """Return whether a note of `GlobalState.restore` says that the setting is still changed."""
    return note.endswith(STUCK)


@dataclass(frozen=True, slots=True)
class GlobalState:
    """The settings at one moment."""

    values: Mapping[str, Any]

    @classmethod
    def capture(cls) -> GlobalState:
        """Read every setting; starts no CUDA context."""
        return cls({setting.words: setting.get() for setting in _settings()})

    def restore(self, *, but: frozenset[str] = frozenset()) -> list[str]:
        """Restore every setting.

        Args:
            but: names of settings that are noted but not restored.

        Returns:
            A note for each that had been changed, such as ``global left changed: grad mode (True -> False)``.
        """
        # A device initialised since the capture has settings without a captured value.
        known = [setting for setting in _settings() if self.values.get(setting.words, ABSENT) is not ABSENT]
        now = {setting.words: setting.get() for setting in known}
        changed = [one for one in known if not one.same(self.values[one.words], now[one.words])]
        if not changed:
            return []
        # One after another, each compared with its value at that moment: setting one changes others.
        for setting in known:
            if setting.words not in but and not self._holds(setting):
                setting.put_back(self.values[setting.words])
        notes = []
        for setting in changed:
            state = KEPT if setting.words in but else "" if self._holds(setting) else STUCK
            change = setting.change(self.values[setting.words], now[setting.words])
            notes.append(f"global left changed: {change}{state}")
        return notes

    def replaced(self, *prefixes: str) -> list[str]:
        """Names of functions and constants, beginning with one of these, that have been replaced since."""
        watched = [one for one in process_settings() if one.words in (FUNCTION, CONSTANT)]
        found = {name for setting in watched for name in setting.read() - self.values[setting.words]}
        return sorted(name for name in found if name.startswith(prefixes))

    def _holds(self, setting: Setting) -> bool:
        return setting.same(self.values[setting.words], setting.get())


def _settings() -> tuple[Setting, ...]:
    return process_settings() + torch_settings()
