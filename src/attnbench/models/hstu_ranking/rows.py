"""The rows of a step, made on the host: which token each is, where it stands, which rows are candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.request import Request

TIME_BUCKETS = 2048
POSITIONS = 8192
"Of models that count back from the request; what is further back stands at the last one (both: DLRMv3)."


@dataclass(frozen=True, slots=True)
class Rows:
    """New history and candidates of all requests, one request after another; int64 on the model's device."""

    ids: Tensor
    "[rows] of the table"
    positions: Tensor
    "[rows]"
    candidates: Tensor
    "[candidates] rows that are candidates"
    actions: Tensor | None = None
    "[rows] of models that add the action to its item; the row behind the vocabulary where there is none"
    times: Tensor | None = None
    "[rows] bucket of the time since, of models that count back"


def make_rows(config: ModelConfig, requests: Sequence[Request], histories: Sequence[np.ndarray],
              cached: Sequence[int], device: torch.device) -> Rows:
    """Rows of a step.

    Args:
        config: the model.
        requests: checked.
        histories: token ids of each.
        cached: tokens of each that need no row.
        device: where the tensors are to be.
    """
    ids, positions, candidates, actions, times = [], [], [], [], []
    start = 0
    for request, history, before in zip(requests, histories, cached, strict=True):
        targets = request.candidates
        length, count = len(history), len(targets)
        ids += [history[before:], targets]
        if config.recency:
            features = len(config.context)
            back = np.minimum(np.arange(length, 0, -1), POSITIONS - 1)
            positions += [back, np.zeros(count, dtype=np.int64)]
            none = np.full(features, config.actions), np.full(count, config.actions)
            actions += [none[0], request.actions, none[1]]
            assert request.times is not None
            since = np.sqrt(np.maximum(request.now - request.times, 0) / 60).astype(np.int64)
            zeros: np.ndarray = np.zeros(features + count, dtype=np.int64)
            times += [zeros[:features], np.minimum(since, TIME_BUCKETS - 1), zeros[features:]]
        else:
            positions += [np.arange(before, length), np.full(count, length)]
        start += length - before
        candidates.append(np.arange(start, start + count))
        start += count
    parts = [ids, positions, candidates] + ([actions, times] if config.recency else [])
    return Rows(*_send([np.concatenate([*part, []]).astype(np.int64) for part in parts], device))


def _send(arrays: list[np.ndarray], device: torch.device) -> list[Tensor]:
    """Tensors of arrays, by one copy that nothing waits for."""
    packed = torch.from_numpy(np.concatenate(arrays))
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    return list(packed.split([len(array) for array in arrays]))
