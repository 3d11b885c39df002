"""The history of one user, as the files of this package hold it.  Imports without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

FEATURES = (
    "user_active_degree",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
)
"Features of a user; with the user's number, the six context features of the model."
ACTIONS = ("is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view", "is_profile_enter")
"Bits of `action_weights`, lowest first."
LISTS = ("video_id", "time_ms", "action_weights", "play_time_ms", "duration_ms")


@dataclass(frozen=True, slots=True)
class History:
    """One user's interactions, ordered by time; all arrays are int64 [interactions]."""

    user_id: int
    features: tuple[int, ...]
    "in the order of `FEATURES`, categories numbered from 1"
    video_id: np.ndarray
    time_ms: np.ndarray
    action_weights: np.ndarray
    play_time_ms: np.ndarray
    duration_ms: np.ndarray
    date: np.ndarray
    "YYYYMMDD of each interaction"

    def days(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each date once, the earliest first, with the places of its interactions in the order of time.

        A date is the data set's own and may come again after another one: NVIDIA's preprocessing groups by it, too.
        """
        order = np.argsort(self.date, kind="stable")
        starts = np.flatnonzero(np.diff(self.date[order]))
        for places in np.split(order, starts + 1):
            if len(places):
                yield int(self.date[places[0]]), places


def intervals(times: np.ndarray, interval_ms: int) -> list[int]:
    """Return the ends of intervals as counts of interactions; an interval begins with one and has a fixed duration.

    Args:
        times: milliseconds, ascending.
        interval_ms: duration of an interval.
    """
    following = np.asarray(np.searchsorted(times, times + interval_ms, side="left")).tolist()
    ends, at = [0], 0
    while at < len(times):
        at = following[at]
        ends.append(at)
    return ends
