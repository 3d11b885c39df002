"""Properties of the card that a tensor is on, or of the card for which kernels are compiled ahead of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor


class Card(NamedTuple):
    """Properties of a card that determine which kernels are compiled for it, and how."""

    capability: tuple[int, int]
    "(9, 0) of an H200"
    processors: int
    "SMs"

    @classmethod
    def current(cls) -> Card | None:
        """PyTorch's current card; None if there is none."""
        if not torch.cuda.is_available():
            return None
        return _card(torch.cuda.current_device())


@cache  # PyTorch's own look-up takes a dozen calls of Python, and a new shape needs several
def _card(device: int) -> Card:
    found = torch.cuda.get_device_properties(device)
    return Card((found.major, found.minor), found.multi_processor_count)


stand_in: Card | None = None
"Card that tensors on no card are treated as being on."


@contextmanager
def stood_in_for(card: Card) -> Iterator[None]:
    """Treat every tensor as one on this card: for tensors without memory (`shared.ahead`), in a process of its own."""
    global stand_in
    before, stand_in = stand_in, card
    try:
        yield
    finally:
        stand_in = before


def takes_compiled(x: Tensor) -> bool:
    """Whether a tensor is for compiled kernels: on a card, or treated as such."""
    return x.is_cuda or stand_in is not None


def capability_of(x: Tensor) -> tuple[int, int] | None:
    """Compute capability of a tensor's card; None without a card."""
    if stand_in is not None:
        return stand_in.capability
    return _card(x.get_device()).capability if x.is_cuda else None


def processors(x: Tensor) -> int:
    """SMs of a tensor's card; without a card so few that a program processes several tiles."""
    if stand_in is not None:
        return stand_in.processors
    return _card(x.get_device()).processors if x.is_cuda else 2
