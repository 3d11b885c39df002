"""What an honest evaluation of a whole model may be off by, found by Monte Carlo arithmetic.

A derivation element by element, as `workloads.rounding` has it for one attention, does not carry through layers of
products, norms and SiLU.  So the model is evaluated in fp64 several times, and each result of each operation is moved
at random by what rounding would move it by (Parker, Pierce and Eggert 2000, doi:10.1109/5992.852391): with u the half
step of the case's precision, w that of fp32 and n the length of the sum behind a product,

    stored                       u²/3 x²
    product of matrices          n w²/6 (x² + Σt²), in fp32; beside a result of 16 bits it is nothing
    SiLU                         (8 w)² x², and s² (w² + u²/64) for what a unit of the card makes of s
    LayerNorm, norm              n w²/6 x²

The standard deviation of a task's logits is taken over draws and over all candidates of a user, whose sums are of
equal length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.dtypes import torch_dtype
from attnbench.workloads.hstu_serving.inputs import ServingInputs
from attnbench.workloads.hstu_serving.oracle import evaluate
from attnbench.workloads.rounding import ADD, FUNCTION, SUM, Format

DRAWS, FEW, MORE_DRAWS = 4, 16, 8
"Evaluations; more of them where there are fewer than so many candidates."

_ATEN = torch.ops.aten


def expected_errors(inputs: ServingInputs) -> dict[str, Tensor]:
    """Standard deviation of each logit, fp64 [batch · num_candidates, tasks]."""
    case = inputs.case
    draws = DRAWS if case.num_candidates >= FEW else MORE_DRAWS
    truth = evaluate(inputs, dtype=torch.float64)["out"]
    variance = torch.zeros_like(truth)
    noise = _Noise(Format.of(torch_dtype(case.dtype)), truth.device)
    for _ in range(draws):
        with noise:
            found = evaluate(inputs, dtype=torch.float64)["out"]
        variance += (found - truth).square() / draws
    of_users = variance.view(case.batch, case.num_candidates, -1).mean(dim=1, keepdim=True)
    return {"out": of_users.sqrt().expand(-1, case.num_candidates, -1).reshape(truth.shape)}


class _Noise(TorchDispatchMode):
    """Moves results as rounding does; the same numbers for the same operations in turn.

    An element's random number is that of its column times the sign of its row: no two elements are correlated, and few
    numbers need to be drawn.
    """

    def __init__(self, numbers: Format, device: torch.device) -> None:
        super().__init__()
        self.numbers = numbers
        self.drawn = torch.Generator(device).manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        rule = _RULES.get(func.overloadpacket)
        out = result[0] if isinstance(result, tuple) else result
        if rule is not None and out.is_floating_point() and out.numel():
            relative, further = rule(out, args, self.numbers)
            self._move(out, out, relative + self.numbers.store)
            for values, variance in further:
                self._move(out, values, variance)
        return result

    def _move(self, out: Tensor, values: Tensor, variance: float) -> None:
        """Add errors of this variance, relative to values of the same shape."""
        column = torch.randn(out.shape[-1:], generator=self.drawn, dtype=out.dtype, device=out.device)
        rows = torch.randint(0, 2, (*out.shape[:-1], 1), generator=self.drawn, device=out.device) * 2 - 1
        out.addcmul_(values * column, rows.to(out.dtype), value=math.sqrt(variance))


Errors = tuple[float, list[tuple[Tensor, float]]]
"Relative variance of a result beside that of storing it, and further ones, relative to other values."


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


def _stored(out: Tensor, args: Any, numbers: Format) -> Errors:
    return 0.0, []


_RULES: Mapping[Any, Callable[[Tensor, Any, Format], Errors]] = {
    _ATEN.mm: _product, _ATEN.addmm: _product, _ATEN.bmm: _product, _ATEN.baddbmm: _product, _ATEN.silu: _silu,
    _ATEN.native_layer_norm: _norm, _ATEN.linalg_vector_norm: _norm, _ATEN.mul: _stored, _ATEN.div: _stored,
    _ATEN.add: _stored,
}
