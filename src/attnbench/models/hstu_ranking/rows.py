"""The rows of a step, built on the host: token id and position of each row, and which rows are candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.request import Request

TIME_BUCKETS = 2048
POSITIONS = 8192
"Buckets of models that count back from the request; anything further back is in the last one (both: DLRMv3)."


@dataclass(frozen=True, slots=True)
class Rows:
    """New history and candidates of all requests, one request after another; int32 on the model's device.

    There may be padding: rows and candidates beyond the step's own use row 0 of the tables, and their results are not
    read.
    """

    ids: Tensor
    "[rows] row numbers in the table"
    positions: Tensor
    "[rows]"
    candidates: Tensor
    "[candidates] row numbers of the candidates"
    actions: Tensor | None = None
    "[rows] for models that add the action to its item; the row after the vocabulary means no action"
    times: Tensor | None = None
    "[rows] bucket of the time before the request, for models that count back"


def row_lengths(config: ModelConfig, rows: int, candidates: int) -> dict[str, int]:
    """Length of each array of `Rows`."""
    always = {"ids": rows, "positions": rows, "candidates": candidates}
    return always | ({"actions": rows, "times": rows} if config.recency else {})


def rows_of(config: ModelConfig, arrays: Mapping[str, Tensor]) -> Rows:
    """`Rows` from arrays on the device."""
    return Rows(**{name: arrays[name] for name in row_lengths(config, 0, 0)})


def row_parts(
    config: ModelConfig, requests: Sequence[Request], histories: Sequence[np.ndarray], cached: Sequence[int]
) -> dict[str, list[np.ndarray]]:
    """Contents of the arrays of `Rows`.

    Args:
        config: the model.
        requests: already checked.
        histories: token ids of each request.
        cached: how many tokens of each are cached and need no row.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in row_lengths(config, 0, 0)}
    start = 0
    for request, history, before in zip(requests, histories, cached, strict=True):
        length, count = len(history), len(request.candidates)
        parts["ids"] += [history[before:], request.candidates]
        if config.recency:
            for name, found in _counted_back(config, request, length).items():
                parts[name] += found
        else:
            parts["positions"] += [np.arange(before, length), np.full(count, length)]
        start += length - before
        parts["candidates"].append(np.arange(start, start + count))
        start += count
    return parts


def _counted_back(config: ModelConfig, request: Request, length: int) -> dict[str, list[np.ndarray]]:
    """Positions, actions and times of a request, for a model that counts back from it."""
    assert request.times is not None
    features, count = len(config.context), len(request.candidates)
    back = np.minimum(np.arange(length, 0, -1), POSITIONS - 1)
    since = np.sqrt(np.maximum(request.now - request.times.astype(np.int64), 0) / 60).astype(np.int64)
    zeros: np.ndarray = np.zeros(features + count, dtype=np.int64)
    return {
        "positions": [back, zeros[features:]],
        "actions": [np.full(features, config.actions), request.actions, np.full(count, config.actions)],
        "times": [zeros[:features], np.minimum(since, TIME_BUCKETS - 1), zeros[features:]],
    }
