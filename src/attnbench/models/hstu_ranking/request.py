"""Requests as a model takes them, what of them is checked, and the token ids they become.

Context, items and actions share one table: an item is its own id, actions come behind the items, context features
behind these.  So the ids of a history say all that its keys and values depend on, and a cache compares them.

Imports without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnbench.errors import UsageError, refusal
from attnbench.models.hstu_ranking.config import WHO, ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A user's history and the candidates to rank.  An empty history and no candidates are both possible.

    Without candidates there is nothing to score: the history is cached, and that is all.
    """

    user: int
    "whose cache it is; any whole number, no embedding belongs to it"
    items: np.ndarray
    "int64 [h], the oldest first"
    actions: np.ndarray
    "int64 [h]: what the user did with each item"
    candidates: np.ndarray
    "int64 [T] items"
    context: np.ndarray
    "int64 [features]"
    times: np.ndarray | None = None
    "int64 [h] seconds, of models that count times back from the request"
    now: int = 0
    "seconds: when the request is made"


def check(config: ModelConfig, requests: Sequence[Request]) -> None:
    """Refuse requests that the model cannot score; nothing is cut off in silence.

    Raises:
        UsageError: naming request, field, value and what is accepted.
    """
    seen: set[int] = set()
    for number, request in enumerate(requests):
        who = f"{WHO}: request {number}"
        if request.user in seen:
            raise UsageError(refusal(who, "user", request.user, "is in the batch twice", "each user once"))
        seen.add(request.user)
        for name in ("items", "actions", "candidates", "context"):
            if not isinstance(getattr(request, name), np.ndarray):
                raise UsageError(refusal(who, name, repr(getattr(request, name))[:40], "is no array", "a numpy array"))
        length = len(request.items)
        for name, most in (("items", config.max_history), ("candidates", config.max_candidates)):
            if len(getattr(request, name)) > most:
                raise UsageError(refusal(who, f"len({name})", len(getattr(request, name)), "is over the model's",
                                         f"at most {most}"))
        wanted = {"actions": length, "context": len(config.context)} | ({"times": length} if config.recency else {})
        for name, count in wanted.items():
            given = getattr(request, name)
            if given is None or len(given) != count:
                raise UsageError(refusal(who, f"len({name})", None if given is None else len(given), "does not fit",
                                         f"{count}"))
        for name, size in (("items", config.items), ("candidates", config.items), ("actions", config.actions)):
            _check_ids(who, name, getattr(request, name), size)
        _check_ids(who, "context", request.context, config.context)
        if config.recency and length and int(np.max(request.times)) > request.now:
            raise UsageError(refusal(who, "now", request.now, "is before the history's end", "the request's time"))


def _check_ids(who: str, name: str, ids: np.ndarray, size: int | tuple[int, ...]) -> None:
    # An empty array is of any type: numpy's own is of floats.
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise UsageError(refusal(who, name, f"{ids.dtype}{list(ids.shape)}", "are no ids", "whole numbers in one dim"))
    # One pass, as this is done for every id of every request: below 0 is far above as an unsigned number.
    if not len(ids) or (isinstance(size, int) and ids.dtype == np.int64
                        and np.maximum.reduce(ids.view(np.uint64)) < size):
        return
    wrong = (ids < 0) | (ids >= np.asarray(size))
    if wrong.any():
        at = int(wrong.argmax())
        most = (size if isinstance(size, int) else size[at]) - 1
        raise UsageError(refusal(who, f"{name}[{at}]", ids[at], "is outside the vocabulary", f"0 to {most}"))


def history_ids(config: ModelConfig, request: Request) -> np.ndarray:
    """Token ids of context and history, int64: context features, then item, action, item, action, …"""
    features = len(config.context)
    ids: np.ndarray = np.empty(features + 2 * len(request.items), dtype=np.int64)
    starts = config.items + config.actions + np.cumsum((0, *config.context))[:-1] if features else 0
    ids[:features] = request.context + starts
    ids[features::2] = request.items
    ids[features + 1::2] = request.actions + config.items
    return ids
