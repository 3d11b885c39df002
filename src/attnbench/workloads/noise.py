"""Monte Carlo arithmetic: estimates the rounding errors of a whole model by evaluating it with random errors.

The model is evaluated in fp64 several times, and every result of every operation is changed at random by as much as
rounding would change it (Parker, Pierce and Eggert 2000, doi:10.1109/5992.852391): with u the half step of the case's
precision, w that of fp32 and n the length of the sum in a product,

    stored                       u²/3 x²
    product, convolution         n w²/6 (x² + Σt²), in fp32; negligible compared with a 16-bit result
    SiLU, GELU                   (8 w)² x², and s² (w² + u²/64) for the hardware's approximation at s
    LayerNorm, RMSNorm, norm     n w²/6 x²
    softmax                      (8 w)² x² + n w²/6 x²
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.workloads.rounding import ADD, FUNCTION, SUM, Format

_ATEN = torch.ops.aten
PIECE = 2**16
"Random numbers drawn at once: on a GPU a draw for each operation would take longer than the operation."


class Noise(TorchDispatchMode):
    """Changes results as rounding does; the same random numbers for the same sequence of operations.

    An element's random number is that of its column times the sign of its row: no two elements are correlated, and few
    numbers need to be drawn.
    """

    def __init__(self, numbers: Format, device: torch.device) -> None:
        super().__init__()
        self.numbers = numbers
        drawn = torch.Generator(device).manual_seed(0)
        self._columns, self._rows = _Numbers(drawn, _normal), _Numbers(drawn, _signs)

    def _dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        rule = _RULES.get(func.overloadpacket)
        out = result[0] if isinstance(result, tuple) else result
        # Values that a model computes in fp32 whatever its precision, such as the angles of a time step, are exact in
        # comparison, and so are the coefficients of a scheduler, which are scalars.
        if rule is not None and out.dtype == torch.float64 and out.dim() and out.numel():
            relative, further = rule(out, args, self.numbers)
            self._move(out, out, relative + self.numbers.store)
            for values, variance in further:
                self._move(out, values, variance)
        return result

    def _move(self, out: Tensor, values: Tensor, variance: float) -> None:
        """Add errors of this variance, relative to values of the same shape."""
        column, rows = self._columns.next((out.shape[-1],)), self._rows.next((*out.shape[:-1], 1))
        out.addcmul_(values * column, rows, value=math.sqrt(variance))


class _Numbers:
    """A sequence of random numbers, fp64, each used once; they are drawn in pieces."""

    def __init__(self, drawn: torch.Generator, draw: Callable[[int, torch.Generator], Tensor]) -> None:
        self._drawn, self._draw = drawn, draw
        self._piece, self._used = draw(0, drawn), 0

    def next(self, shape: Sequence[int]) -> Tensor:
        """Return the next numbers in this shape, a view: not to be written to."""
        count = math.prod(shape)
        if self._used + count > len(self._piece):
            self._piece, self._used = self._draw(max(count, PIECE), self._drawn), 0
        self._used += count
        return self._piece[self._used - count : self._used].view(shape)


def _normal(count: int, drawn: torch.Generator) -> Tensor:
    return torch.randn(count, generator=drawn, dtype=torch.float64, device=drawn.device)


def _signs(count: int, drawn: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=drawn, dtype=torch.float64, device=drawn.device).mul_(2).sub_(1)


# A method defined in the class body would be wrapped by torch, which imports all of torch._dynamo at the first call;
# nothing is compiled while an oracle is evaluated.
Noise.__torch_dispatch__ = Noise._dispatch

Errors = tuple[float, list[tuple[Tensor, float]]]
"Relative variance of a result in addition to storing it, and further variances, relative to other values."


def _product(out: Tensor, args: Any, numbers: Format) -> Errors:
    a, b = args[-2:]
    if numbers.store > SUM:
        return 0.0, []
    added = a.shape[-1] * ADD
    return added, [(torch.matmul(a.square(), b.square()).sqrt_(), added)]


def _silu(out: Tensor, args: Any, numbers: Format) -> Errors:
    return FUNCTION, [(args[0], SUM**2 + 3 * numbers.store / 64)]


def _norm(out: Tensor, args: Any, numbers: Format) -> Errors:
    return args[0].shape[-1] * ADD, []


def _convolution(out: Tensor, args: Any, numbers: Format) -> Errors:
    if numbers.store > SUM:
        return 0.0, []
    added = args[1][0].numel() * ADD
    squared = torch.ops.aten.convolution(args[0].square(), args[1].square(), None, *args[3:])
    return added, [(squared.sqrt_(), added)]


def _softmax(out: Tensor, args: Any, numbers: Format) -> Errors:
    return FUNCTION + out.shape[-1] * ADD, []


def _stored(out: Tensor, args: Any, numbers: Format) -> Errors:
    return 0.0, []


_RULES: Mapping[Any, Callable[[Tensor, Any, Format], Errors]] = {
    _ATEN.mm: _product,
    _ATEN.addmm: _product,
    _ATEN.bmm: _product,
    _ATEN.baddbmm: _product,
    _ATEN.silu: _silu,
    _ATEN.native_layer_norm: _norm,
    _ATEN.linalg_vector_norm: _norm,
    _ATEN.mul: _stored,
    _ATEN.div: _stored,
    _ATEN.add: _stored,
    _ATEN.gelu: _silu,
    _ATEN._softmax: _softmax,
    _ATEN.convolution: _convolution,
    _ATEN._fused_rms_norm: _norm,
}
