"""Arguments of other packages: refused by name where our kernels do not support them."""

from __future__ import annotations

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


def in_rows(x: Tensor) -> Tensor:
    """A tensor whose last dim is contiguous, copied if necessary, as the packages do."""
    return x if x.stride(-1) == 1 else x.contiguous()
