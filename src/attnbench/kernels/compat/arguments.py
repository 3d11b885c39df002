"""Arguments of other packages: refused by name where our kernels do not support them.

The packages pass numbers and flags on to C++, which also takes NumPy's, and tensors of one element, whose values it reads.
Our own functions take Python's alone.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor


def only(who: str, name: str, value: object, accepted: object, instead: str = "") -> None:
    """Refuse every value of an argument except the one that disables it.

    Args:
        who: the function that was called.
        name: of the argument.
        value: as passed.
        accepted: the value that disables it.
        instead: an alternative for the caller.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    if value is accepted:
        return
    if accepted is None or isinstance(value, Tensor) or value != accepted:
        raise refusal(who, name, value, f"{accepted}{instead and '; '}{instead}")


def refusal(who: str, name: str, value: object, accepted: str) -> ValueError:
    """The error for an argument, in one line."""
    shown = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:40]
    return ValueError(f"{who}: {name}={shown} is not supported; {accepted}")


def whole(value: Any) -> Any:
    """A whole number of NumPy or in a tensor of one element as Python's; that of a tensor on a card is waited for.

    Anything else is returned unchanged, for `flash_attention` or `hstu_attention` to refuse.
    """
    if value is None or type(value) in (int, bool, torch.SymInt) or torch.compiler.is_compiling():
        return value
    if isinstance(value, Tensor) and (value.numel() != 1 or value.dtype is torch.bool):
        return value
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # a tensor without values
        return value


def bound(who: str, name: str, value: Any) -> Any:
    """A whole number as of `whole`.

    Raises:
        ValueError: it is none; naming the argument, its value and what is accepted.
    """
    found = whole(value)
    if type(found) not in (int, torch.SymInt):
        raise refusal(who, name, found, "a whole number")
    return found


def flag(value: Any) -> Any:
    """True or False of NumPy as Python's; anything else unchanged, for `flash_attention` or `hstu_attention` to refuse.

    A tensor is no flag: a branch on a value on a card is more often a mistake than meant.
    """
    if type(value) is bool or isinstance(value, Tensor) or torch.compiler.is_compiling():
        return value
    return bool(value) if getattr(getattr(value, "dtype", None), "kind", "") == "b" and value.size == 1 else value


def window(value: Any) -> Any:
    """A pair of whole numbers as of `whole`; anything else unchanged."""
    return tuple([whole(one) for one in value]) if isinstance(value, tuple | list) else value


def in_rows(x: Tensor) -> Tensor:
    """A tensor whose last dim is contiguous, copied if necessary, as the packages do."""
    return x if x.stride(-1) == 1 else x.contiguous()
