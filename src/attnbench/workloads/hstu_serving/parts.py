"""Which requests of a case the oracle computes: all, or as many as take a short time.

A request has complete results of its own, because users do not see each other.  The first and the last one are always
included.  Imports without torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from attnbench.workloads.base import Draw
from attnbench.workloads.hstu_serving.case import ServingCase
from attnbench.workloads.hstu_serving.work import work

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = Draw()
MOST_FLOPS = 2 * 10**11
"Limit of one evaluation over whole histories, unless two requests take more.  An oracle has a dozen of them, in fp64."

T = TypeVar("T")


def choose(case: ServingCase, *, seed: int) -> Draw:
    """Return all requests, or the first, the last, and others by seed."""
    count = sum(map(len, case.steps))
    of_one = work(case, [[0] * len(step) for step in case.steps]).flops / count
    fitting = max(2, int(MOST_FLOPS // of_one))
    if fitting >= count:
        return WHOLE
    others = random.Random(f"{case.id} {seed}").sample(range(1, count - 1), fitting - 2)
    return Draw(tuple((number,) for number in sorted({0, count - 1, *others})), "requests")


def drawn_of(requests: Sequence[T], draw: Draw) -> list[tuple[int, T]]:
    """Return the drawn requests with their indices."""
    return [(number, requests[number]) for number in numbers_of(draw, len(requests))]


def numbers_of(draw: Draw, count: int) -> list[int]:
    """Return the indices of the drawn ones among `count` requests."""
    return list(range(count)) if draw.parts is None else [number for (number,) in draw.parts]


def select(case: ServingCase, out: Tensor, draw: Draw) -> Tensor:
    """Return the logits of the drawn requests, from [requests · num_candidates, tasks]."""
    if draw.parts is None:
        return out
    of_each = out.unflatten(0, (-1, case.num_candidates))
    return of_each[numbers_of(draw, len(of_each))].flatten(0, 1)
