"""Replay of prepared batches: each line of processed_batches.csv is a request, at its time scaled to a rate.

A line contains a user, a date, and how many interactions of that date precede the request.  The history of its request
is all of the user's interactions until then, including earlier dates.  Its candidates are the items that follow, and
the labels are what the user did with them; or the candidates are drawn, without labels.  Ids are hashed into the
model's vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from attnbench.datasets.history import History
from attnbench.datasets.processed import BATCHES, INFERENCE, read_batches, read_days
from attnbench.errors import UsageError, absent, refusal
from attnbench.loadtest.labels import Labelled
from attnbench.loadtest.serving import Refused
from attnbench.loadtest.users import Policy
from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.synthetic import hashed
from attnbench.store.files import is_file, is_folder

WHO = "load"
FOLLOWING, DRAWN = "following", "drawn"
CANDIDATES = (FOLLOWING, DRAWN)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of processed_batches.csv."""

    user: int
    date: int
    when_ms: int
    end: int
    "interactions of the date before the request"


@dataclass(frozen=True, slots=True)
class _Known:
    """A user, with all dates joined."""

    items: np.ndarray
    actions: np.ndarray
    "in the model's vocabulary"
    masks: np.ndarray
    "as in the files"
    times: np.ndarray
    "seconds"
    context: np.ndarray
    before: dict[int, tuple[int, int]]
    "for each date: number of interactions before it, and of it"


class Replay:
    """The requests of a prepared folder, in the order of time."""

    returning = False
    "Each replay starts with the first line and an empty cache."

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        *,
        candidates: int,
        policy: Policy,
        only_user: int | None = None,
        kind: str = FOLLOWING,
        seed: int = 0,
    ) -> None:
        """Read the files.

        Args:
            folder: of `attnbench data`.
            config: of the model.
            candidates: of each request; fewer if the log ends earlier or has fewer items to draw from.
            policy: for histories that are too long.
            only_user: the user whose lines are used; None: all users.
            kind: of candidates: following, with labels, or drawn from the items of the files, each once.
            seed: of draws; a line always has the same candidates.

        Raises:
            UsageError: a file cannot be read (the message names file, line and column), or there are no lines.
        """
        self._config, self._candidates, self._policy, self._seed = config, candidates, policy, seed
        for name in (INFERENCE, BATCHES):
            if not is_file(folder / name):
                todo = "attnbench data kuairand-1k --to DIR writes them"
                wrong = f"has no {name}" if is_folder(folder) else absent(folder)
                raise UsageError(refusal(WHO, "--source", folder, wrong, "a folder of prepared files", todo))
        days: dict[int, list[History]] = {}
        for history, _ in read_days(folder / INFERENCE):
            if only_user not in (None, history.user_id):
                continue
            days.setdefault(history.user_id, []).append(history)
        self._users = {user: self._joined(found) for user, found in days.items()}
        known = [one.items for one in self._users.values()] if kind == DRAWN else []
        self._drawn_from = np.unique(np.concatenate(known)) if known else None
        every = (Line(*fields) for fields in read_batches(folder / BATCHES))
        self.lines = [line for line in every if only_user in (None, line.user)]
        if only_user is not None and not self.lines:
            raise UsageError(refusal(WHO, "--only-user", only_user, f"has no line in {BATCHES}", "a user of --source"))
        if not self.lines:
            raise UsageError(refusal(WHO, "--source", folder.name, "has no batches", f"{BATCHES} with lines"))

    def _joined(self, days: Sequence[History]) -> _Known:
        days = sorted(days, key=lambda one: int(one.date[0]) if len(one.date) else 0)
        before: dict[int, tuple[int, int]] = {}
        start = 0
        for day in days:
            if len(day.date):
                before[int(day.date[0])] = start, len(day.video_id)
            start += len(day.video_id)
        config, features = self._config, (days[0].user_id, *days[0].features)
        masks = np.concatenate([day.action_weights for day in days])
        context = [features[place % len(features)] % size for place, size in enumerate(config.context)]
        return _Known(
            hashed(np.concatenate([day.video_id for day in days]), config.items),
            masks % config.actions,
            masks,
            np.concatenate([day.time_ms for day in days]) // 1000,
            np.array(context, dtype=np.int64),
            before,
        )

    def due_ns(self, rate: float, duration_s: float) -> list[int]:
        """Return when each request is due: the times of the lines, scaled to the requested rate.

        Args:
            rate: requests a second.
            duration_s: lines of this duration are used, or all if there are fewer.
        """
        count = max(1, min(len(self.lines), round(rate * duration_s)))
        at = np.array([line.when_ms for line in self.lines[:count]], dtype=np.float64)
        at -= at[0]
        # If all lines have the same time, all are due at once, at the end of the duration.
        scaled = at / at[-1] if at[-1] > 0 else np.ones(count)
        due: list[int] = np.round(scaled * (count / rate) * 1e9).astype(np.int64).tolist()
        return due

    def take(self, index: int) -> Request | Refused:
        """Return the request of a line."""
        line = self.lines[index]
        user = self._users.get(line.user)
        if user is None:
            return Refused("unknown user", f"user {line.user} of {BATCHES} is not in {INFERENCE}")
        earlier = sum(count for date, (_, count) in user.before.items() if date < line.date)
        start, length = user.before.get(line.date, (earlier, 0))
        if line.end > length:
            text = f"user {line.user}, date {line.date}: {line.end} interactions of {length}"
            return Refused("not in the user's history", text)
        end = start + line.end
        following = slice(end, end + self._candidates)
        asked = Labelled(
            user=line.user,
            items=user.items[:end],
            actions=user.actions[:end],
            context=user.context,
            candidates=user.items[following],
            labels=user.masks[following],
            times=user.times[:end],
            now=line.when_ms // 1000,
        )
        return self._policy.fit(asked if self._drawn_from is None else self._drawn(asked, index))

    def _drawn(self, asked: Request, index: int) -> Request:
        """Return a request with drawn candidates, for which there are no labels."""
        assert self._drawn_from is not None
        drawn = np.random.default_rng([self._seed, index])
        count = min(self._candidates, len(self._drawn_from))
        candidates = drawn.choice(self._drawn_from, count, replace=False, shuffle=False)
        given = {one.name: getattr(asked, one.name) for one in fields(Request)}
        return Request(**given | {"candidates": candidates})

    def tokens(self, config: ModelConfig) -> list[int]:
        """Return the tokens of each user's longest history, for the size of a pool."""
        return [
            len(config.context) + config.item_tokens * min(len(one.items), config.max_history)
            for one in self._users.values()
        ]

    def numbers(self) -> list[int]:
        """All users."""
        return list(self._users)

    def before(self) -> list[Request]:
        """Return nothing: the log starts with the first line."""
        return []

    def __len__(self) -> int:
        """Number of lines."""
        return len(self.lines)
