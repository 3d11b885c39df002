"""Requests of a model, their checks, and the token ids they become.

Context, items and actions share one table: item ids come first, then actions, then context features.  So the ids of a
history determine its keys and values, and a cache compares them.

Can be imported without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnbench.errors import UsageError, refusal
from attnbench.models.hstu_ranking.config import WHO, ModelConfig

LONGEST_TIME = 2**62
"Limit of a time in seconds, so that differences of two times fit 64 bits."


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A user's history and the candidates to rank.  The history may be empty, and so may the candidates.

    Without candidates the history is cached and nothing is scored.
    """

    user: int
    "key of the user's cache entry: any integer; it has no embedding"
    items: np.ndarray
    "int64 [h], oldest first"
    actions: np.ndarray
    "int64 [h]: what the user did with each item"
    candidates: np.ndarray
    "int64 [T] items"
    context: np.ndarray
    "int64 [features]"
    times: np.ndarray | None = None
    "int64 [h] seconds, for models that count times back from the request"
    now: int = 0
    "time of the request in seconds"


def check(config: ModelConfig, requests: Sequence[Request]) -> None:
    """Refuse requests that the model cannot score; nothing is truncated silently.

    Raises:
        UsageError: naming request, field, value and what is accepted.
    """
    seen: set[int] = set()
    for number, request in enumerate(requests):
        if not _as_expected(config, request):
            _check_each(config, f"{WHO}: request {number}", request)
        if request.user in seen:
            who = f"{WHO}: request {number}"
            raise UsageError(refusal(who, "user", request.user, "is in the batch twice", "each user once"))
        seen.add(request.user)


def _as_expected(config: ModelConfig, request: Request) -> bool:
    """Fast check with one pass per array, which most requests pass in every step.

    For any other request `_check_each` finds what is wrong, if anything.
    """
    arrays = request.items, request.actions, request.candidates, request.context
    if config.recency or type(request.user) is not int:
        return False
    for given in arrays:
        if type(given) is not np.ndarray or given.dtype != np.int64 or given.ndim != 1:
            return False
    items, actions, candidates, context = arrays
    return (
        len(items) == len(actions) <= config.max_history
        and len(candidates) <= config.max_candidates
        and len(context) == len(config.context)
        and _are_under(items, config.items)
        and _are_under(actions, config.actions)
        and _are_under(candidates, config.items)
        and all(0 <= one < size for one, size in zip(context.tolist(), config.context, strict=True))
    )


def _are_under(ids: np.ndarray, size: int) -> bool:
    """Whether int64 ids are in [0, size), in one pass: as unsigned numbers, negative ids are large."""
    return not len(ids) or bool(np.maximum.reduce(ids.view(np.uint64)) < size)


def _check_each(config: ModelConfig, who: str, request: Request) -> None:
    """Refuse a request, naming the first invalid field."""
    if not _is_whole(request.user):
        raise UsageError(refusal(who, "user", repr(request.user)[:40], "is no number of a user", "a whole number"))
    for name in ("items", "actions", "candidates", "context"):
        _check_array(who, name, getattr(request, name))
    if config.recency:
        if request.times is not None:
            _check_array(who, "times", request.times)
            _check_whole(who, "times", request.times, "are no seconds")
        if not _is_whole(request.now) or not -LONGEST_TIME < request.now < LONGEST_TIME:
            raise UsageError(refusal(who, "now", repr(request.now)[:40], "is no time", "whole seconds under 2**62"))
    length = len(request.items)
    for name, most in (("items", config.max_history), ("candidates", config.max_candidates)):
        if len(getattr(request, name)) > most:
            raise UsageError(
                refusal(who, f"len({name})", len(getattr(request, name)), "is over the model's", f"at most {most}")
            )
    wanted = {"actions": length, "context": len(config.context)} | ({"times": length} if config.recency else {})
    for name, count in wanted.items():
        given = getattr(request, name)
        if given is None or len(given) != count:
            raise UsageError(
                refusal(who, f"len({name})", None if given is None else len(given), "does not fit", f"{count}")
            )
    for name, size in (("items", config.items), ("candidates", config.items), ("actions", config.actions)):
        _check_ids(who, name, getattr(request, name), size)
    _check_ids(who, "context", request.context, config.context)
    if config.recency and length:
        first, last = int(np.min(request.times)), int(np.max(request.times))
        if first <= -LONGEST_TIME:
            raise UsageError(refusal(who, "times", first, "is no time", "seconds above -2**62"))
        if last > request.now:
            raise UsageError(refusal(who, "now", request.now, "is before the history's end", "the request's time"))


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_array(who: str, name: str, given: object) -> None:
    if not isinstance(given, np.ndarray):
        raise UsageError(refusal(who, name, repr(given)[:40], "is no array", "a numpy array"))
    if not given.ndim:
        raise UsageError(refusal(who, name, f"{given.dtype}[]", "has no dim", "an array of one dim"))


def _check_whole(who: str, name: str, given: np.ndarray, why: str) -> None:
    # An empty array may have any dtype: numpy's default is float.
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise UsageError(refusal(who, name, f"{given.dtype}{list(given.shape)}", why, "whole numbers in one dim"))


def _check_ids(who: str, name: str, ids: np.ndarray, size: int | tuple[int, ...]) -> None:
    _check_whole(who, name, ids, "are no ids")
    if not len(ids) or (isinstance(size, int) and ids.dtype == np.int64 and _are_under(ids, size)):
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
    # In 64 bits: 8-bit actions would overflow.  "unsafe": numpy's empty arrays are float.
    np.add(request.actions, config.items, out=ids[features + 1 :: 2], dtype=np.int64, casting="unsafe")
    return ids
