"""Turns a differentiable function into a launch.

`launch` wraps any call whose gradients come from autograd.  For softmax attention, ``fn(q, k, v) -> out``,
`Operands` holds a session's own copies of the inputs in the layout of the library, made untimed and
contiguous.  Reloading a session changes only its copies, not the inputs, which all sessions of a group
share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.errors import WorkerError

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs

Attention = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
"""out = fn(q, k, v), all in the library's layout."""


def rows_first(fn: Attention) -> Attention:
    """Turn a function of [B, H, S, D] into one of [B, S, H, D], using views only."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fn(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)

    return attend


def launch(
    call: Callable[[], Tensor],
    leaves: Mapping[str, Tensor],
    dout: Tensor | None,
    *,
    mode: str,
    load: Callable[[Any], None],
    canonical: Callable[[Tensor], Tensor] = lambda x: x,
    choices: Callable[[], Mapping[str, Tensor]] = dict,
    **options: Any,
) -> Launch:
    """Wrap a call that returns the output and is differentiable in a mode with a backward.

    `forward` first frees the last result, so that peak memory is the call's own.  `backward` keeps
    the graph, so that it can be called again, and writes no ``.grad``.

    Args:
        call: computes the output from tensors whose objects do not change.
        leaves: tensors to differentiate by, under the names of their gradients.
        dout: gradient of the output; None in mode fwd.
        mode: of the case.
        load: copies new inputs into these tensors.
        canonical: brings the output and the gradients into the workload's layout.
        choices: further outputs of the last call, which have no gradient.
        options: further fields of `Launch`.
    """
    import torch

    tensors, trains = tuple(leaves.values()), mode != "fwd"
    no_grad, grad, tensor = torch.no_grad, torch.autograd.grad, torch.Tensor
    out: Tensor | None = None
    grads: tuple[Tensor, ...] = ()

    def infer() -> None:
        nonlocal out
        out = None
        with no_grad():
            out = call()

    def train() -> None:
        nonlocal out, grads
        out, grads = None, ()
        out = call()

    def backward() -> None:
        nonlocal grads
        grads = ()
        if not isinstance(out, tensor):
            raise WorkerError("launch: backward was called before forward" if out is None else _no_output(out))
        grads = grad(out, tensors, dout, retain_graph=True)

    def outputs() -> dict[str, Tensor]:
        if not isinstance(out, tensor):
            raise WorkerError(_no_output(out))
        named = dict(zip(("out", *leaves), (out.detach(), *grads), strict=False))
        return {name: canonical(x) for name, x in named.items()} | dict(choices())

    def reload(inputs: AttentionInputs) -> None:
        nonlocal out, grads
        out, grads = None, ()
        load(inputs)

    # A backward captured alone would run on the stream of its forward, outside the graph.
    options.setdefault("capturable", mode != "bwd")
    return Launch(
        forward=train if trains else infer,
        backward=backward if trains else None,
        outputs=outputs,
        reload=reload,
        **options,
    )


def _no_output(found: object) -> str:
    if found is None:
        return "launch: there is no output: forward returned none, or was not called"
    return f"launch: forward returned type={type(found).__name__}; a tensor, the output alone"


class Operands:
    """q, k, v and dout of one session.

    Shapes are the workload's own: dense [B, S, H, D] or packed [T, H, D]; with `heads_first` they are
    [B, H, S, D] and [1, H, T, D].  In a mode with a backward, q, k and v are leaves that require gradients.
    """

    def __init__(self, case: AttentionCase, inputs: AttentionInputs, *, heads_first: bool = False) -> None:
        self.heads_first = heads_first
        self.packed: bool = case.packed
        self.mode: str = case.mode
        self.trains = case.mode != "fwd"
        self.q, self.k, self.v = (self._own(x).requires_grad_(self.trains) for x in (inputs.q, inputs.k, inputs.v))
        self.dout = self._own(inputs.dout) if self.trains else None

    def launch(self, fn: Attention, **options: Any) -> Launch:
        """Wrap `fn`, which must be differentiable in a mode with a backward.

        Args:
            fn: the attention function, in this session's layout.
            options: further fields of `Launch`.
        """
        q, k, v = self.q, self.k, self.v
        return launch(
            lambda: fn(q, k, v),
            {"dq": q, "dk": k, "dv": v},
            self.dout,
            mode=self.mode,
            load=self.load,
            canonical=self._canonical,
            **options,
        )

    def load(self, inputs: AttentionInputs) -> None:
        """Copy new values of the same shapes in place."""
        import torch

        with torch.no_grad():
            for own, new in ((self.q, inputs.q), (self.k, inputs.k), (self.v, inputs.v), (self.dout, inputs.dout)):
                if own is not None:
                    own.copy_(self._native(new))

    def _own(self, x: Tensor) -> Tensor:
        import torch

        return self._native(x.detach()).clone(memory_format=torch.contiguous_format)

    def _native(self, x: Tensor) -> Tensor:
        if not self.heads_first:
            return x
        return x.transpose(0, 1)[None] if self.packed else x.transpose(1, 2)

    def _canonical(self, x: Tensor) -> Tensor:
        if not self.heads_first:
            return x
        return x[0].transpose(0, 1) if self.packed else x.transpose(1, 2)


def differentiable(
    fn: Attention, case: AttentionCase, inputs: AttentionInputs, *, heads_first: bool = False, **options: Any
) -> Launch:
    """Wrap a function that needs no preparation of its operands; see `Operands.launch`."""
    return Operands(case, inputs, heads_first=heads_first).launch(fn, **options)
