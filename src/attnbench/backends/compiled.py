"""torch.compile for a function that one session calls with tensors of a single shape."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def with_own_code(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Copy a function with a code object of its own, which is torch.compile's cache key."""
    assert isinstance(function, types.FunctionType)
    return types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__
    )


def compiled_alone(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function for one shape, without sharing torch.compile's cache with other functions.

    torch.compile counts shapes by code object, which closures of one function share.  Its
    backward frees buffers that a second backward of the same graph needs, unless told not to
    during compilation, which happens in the first call.
    """
    import torch
    from torch._functorch import config

    compiled: Callable[..., Tensor] = torch.compile(with_own_code(attend), fullgraph=True, dynamic=False)
    first = True

    def call(*operands: Tensor) -> Tensor:
        nonlocal first
        if not first:
            return compiled(*operands)
        first = False
        with config.patch(donated_buffer=False):
            return compiled(*operands)

    return call
