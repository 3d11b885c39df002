"""Lengths and composition of the sequences of an `HstuCase`.  Imports without torch.

A sequence of n rows is ``[contextual prefix | history | targets]``.  For named distributions only the history is
drawn: prefix and targets are always complete.  ``kuairand`` histories follow the log-normal fit to the users
of KuaiRand-1K (both log periods: μ 8.94, σ 1.00 of the number of interactions), with two tokens per
interaction (item, action), truncated to what fits.
"""

from __future__ import annotations

import math
import random
import re
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

ACCEPTED_LENGTHS = "full, uniform, zipf, kuairand, or a length for each sequence: 100:0:7"
ACCEPTED_TARGETS = "a number for every sequence (20), a range to draw from (1-20), or one for each sequence (3:0:5)"

_NAMED = ("full", "uniform", "zipf", "kuairand")
_EXPLICIT = re.compile(r"\d{1,9}(:\d{1,9})*", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_SEED = "attnbench hstu lengths 1"
_KUAIRAND = NormalDist(8.94, 1.00)


class SequenceShape(NamedTuple):
    """One sequence: ``length = prefix + history + targets`` keys, of which the last `queries` are also queries."""

    length: int
    queries: int
    prefix: int
    "contextual rows at the front; fewer than contextual_len if the sequence is too short for them"
    targets: int

    @property
    def seen(self) -> int:
        """Prefix and history: the rows before the targets."""
        return self.length - self.targets

    @property
    def history(self) -> int:
        """Rows that are neither prefix nor target."""
        return self.seen - self.prefix

    @property
    def first_query(self) -> int:
        """Position of query 0 among the keys: the last query is at the last key."""
        return self.length - self.queries


def read_lengths(text: str) -> tuple[int, ...] | None:
    """Parse explicit lengths; None for a named distribution.

    Raises:
        ValueError: it is neither; the message says what is accepted.
    """
    if text in _NAMED:
        return None
    if not _EXPLICIT.fullmatch(text):
        raise ValueError(ACCEPTED_LENGTHS)
    return tuple(int(length) for length in text.split(":"))


def read_targets(text: str) -> tuple[int, ...] | range:
    """Parse a specification of targets: one number, one for each sequence, or a range to draw from.

    Raises:
        ValueError: it is none of them; the message says what is accepted.
    """
    if _EXPLICIT.fullmatch(text):
        return tuple(int(count) for count in text.split(":"))
    if (bounds := _RANGE.fullmatch(text)) is None or int(bounds[1]) > int(bounds[2]):
        raise ValueError(ACCEPTED_TARGETS)
    return range(int(bounds[1]), int(bounds[2]) + 1)


@lru_cache(maxsize=256)
def targets_of(spec: str, batch: int) -> tuple[int, ...]:
    """Targets of each sequence, the same in every process and version."""
    read = read_targets(spec)
    if isinstance(read, tuple):
        return read * batch if len(read) == 1 else read
    rng = random.Random(f"{_SEED} targets {spec} {batch}")
    return tuple(read[int(rng.random() * len(read))] for _ in range(batch))


@lru_cache(maxsize=256)
def shapes_of(
    lengths: str, batch: int, seqlen: int, contextual_len: int, targets: tuple[int, ...], delta_q: int | None
) -> tuple[SequenceShape, ...]:
    """Every sequence of a case, the same in every process and version."""
    found = read_lengths(lengths)
    if lengths == "full":
        found = (seqlen,) * batch
    elif found is None:
        # Not mode, dtype or mask: cases that differ only in those must have the same sequences.
        rng = random.Random(f"{_SEED} {lengths} {batch} {seqlen} {contextual_len}")
        found = tuple(
            contextual_len + count + _history(lengths, seqlen - contextual_len - count, rng.random())
            for count in targets
        )
    return tuple(
        SequenceShape(
            length, length if delta_q is None else min(delta_q, length), min(contextual_len, length - count), count
        )
        for length, count in zip(found, targets, strict=True)
    )


def _history(kind: str, room: int, draw: float) -> int:
    """A history of 1 to `room` rows from a uniform draw; only Random.random() is the same in every Python version."""
    if room < 1:
        return 0
    if kind == "uniform":
        return 1 + int(draw * room)
    if kind == "zipf":  # length n with frequency ln(1 + 1/n), about 1/n
        return min(int((room + 1) ** draw), room)
    interactions = max(1, round(math.exp(_KUAIRAND.inv_cdf(min(max(draw, 1e-9), 1 - 1e-9)))))
    return min(2 * interactions, room - room % 2 or 1)
