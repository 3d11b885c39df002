"""Arguments of other packages: refused by name where our kernels do not support them."""

from __future__ import annotations

from torch import Tensor


def only(who: str, name: str, value: object, accepted: object, instead: str = "") -> None:
    """Refuse any value of an argument but the one that leaves it out.

    Args:
        who: the function a caller called.
        name: of the argument.
        value: as given.
        accepted: the one that leaves it out.
        instead: what else a caller could do.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    if value is accepted:
        return
    if accepted is None or isinstance(value, Tensor) or value != accepted:
        raise refusal(who, name, value, f"{accepted}{instead and '; '}{instead}")


def refusal(who: str, name: str, value: object, accepted: str) -> ValueError:
    """The one line of a refusal."""
    shown = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:40]
    return ValueError(f"{who}: {name}={shown} is not supported; {accepted}")


def in_rows(x: Tensor) -> Tensor:
    """A tensor whose last dim has no gaps, copied where it has: the packages do so too."""
    return x if x.stride(-1) == 1 else x.contiguous()
