"""Labels (what users did with the candidates of their requests) and the AUC of the scores for each task.

Task k is bit k of `action_weights`, as in NVIDIA's evaluation.  The area under the ROC curve of a task is the share of
all pairs of a candidate with that action and one without in which the former has the higher score; equal scores count
half.  Pairs may come from different requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbench.datasets.history import ACTIONS
from attnbench.models.hstu_ranking.request import Request
from attnbench.store.load_file import TaskAuc

DIGITS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled(Request):
    """A request from a log that continues after it."""

    labels: np.ndarray
    "int64 [T]: mask of what the user did with each candidate"


class Judged:
    """Collects scores with their labels."""

    def __init__(self) -> None:
        """Start empty."""
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def take(self, requests: Sequence[Request], scores: Any) -> None:
        """Add a batch.

        Args:
            requests: that were answered.
            scores: tensor [candidates, tasks] on the host, request after request; may be overwritten later.
        """
        if not all(isinstance(one, Labelled) for one in requests):
            return
        self._scores.append(np.array(scores.float().numpy(), dtype=np.float32))
        self._labels += [one.labels for one in requests if isinstance(one, Labelled)]

    def of_tasks(self) -> tuple[TaskAuc, ...]:
        """Return the AUC of each task; none if there are no labels."""
        if not self._scores:
            return ()
        scores, labels = np.concatenate(self._scores), np.concatenate(self._labels)
        return tuple(_task(number, scores[:, number], labels >> number & 1 == 1) for number in range(scores.shape[1]))


def _task(number: int, scores: np.ndarray, positive: np.ndarray) -> TaskAuc:
    count = int(positive.sum())
    area = auc(scores, positive)
    return TaskAuc(
        task=ACTIONS[number] if number < len(ACTIONS) else f"task {number}",
        auc=None if area is None else round(area, DIGITS),
        positive=count,
        negative=len(scores) - count,
    )


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Compute the area under the ROC curve from ranks; equal scores get their mean rank.

    Args:
        scores: [n].
        positive: booleans [n].

    Returns:
        From 0 to 1; None where all are positive, or none.
    """
    high = int(positive.sum())
    low = len(positive) - high
    if not high or not low:
        return None
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    above = float(ranks[which.reshape(-1)][positive].sum()) - high * (high + 1) / 2
    return above / (high * low)
