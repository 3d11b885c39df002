"""A session of ``flash-triton``: the public calls of our kernels, on own copies of the inputs.

So the host time of a row is that of a user's call.  The backward is called without autograd.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.buffers import Buffers

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.backends.differentiable import Attention
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
"Arguments that only packed sequences have."


def function_of(case: AttentionCase, short: str) -> Attention:
    """Return the forward as a function of tensors [B, S, H, D] with contiguous rows; its results are new tensors."""
    from attnbench.kernels.flash.api import flash_attention

    arguments = _arguments(case, short)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q, k, v, **arguments)[0]

    return attend


def _arguments(case: AttentionCase, short: str) -> dict[str, Any]:
    """Return the arguments of `flash_attention` that follow from the case and the row's name."""
    from attnbench.kernels.flash.config.family import FAMILY

    configs = FAMILY.split(short) if short else {}
    return {"causal": case.causal, "window": case.window, "scale": case.scale, **configs}


class FlashSession(Buffers):
    """Own copies of the inputs of one session; a call allocates its results, as a user's call does."""

    def __init__(self, case: AttentionCase, inputs: AttentionInputs, short: str) -> None:
        from attnbench.kernels.flash import api as kernels
        from attnbench.kernels.flash.calls import call_of

        super().__init__(inputs)
        self.case = case
        self.qkv = self.own["q"], self.own["k"], self.own["v"]
        self.offsets = self.own.get("cu_seqlens_q"), self.own.get("cu_seqlens_k")
        bounds = (inputs.max_seqlen_q, inputs.max_seqlen_k) if case.packed else (None, None)
        self.arguments = _arguments(case, short) | dict(zip(PACKED, (*self.offsets, *bounds), strict=True))
        problem = kernels.problem_of(
            *self.qkv, **{name: value for name, value in self.arguments.items() if name not in ("forward", "backward")}
        )
        forward, backward = self.arguments.get("forward"), self.arguments.get("backward")
        self.config = kernels.parse(forward) if forward else kernels.default_forward(*self.qkv, problem)
        self.backward_config = (
            kernels.parse_backward(backward) if backward else kernels.default_backward(*self.qkv, problem)
        )
        self.call = call_of(
            *self.qkv,
            *self.offsets,
            max_seqlen_q=bounds[0],
            max_seqlen_k=bounds[1],
            causal=case.causal,
            window=case.window,
            scale=case.scale,
            deterministic=False,
            forward=forward,
            backward=backward,
            validate=True,
        )
        self.out: Tensor | None = None
        self.lse: Tensor | None = None
        self.grads: dict[str, Tensor | None] = {}

    def launch(self) -> Launch:
        """Return the session's launch."""
        trains = self.case.has_backward
        sums = "" if self.backward_config.deterministic else ", dQ added up by atomics in another order each time"
        notes = [f"forward {self.config.short}"] + [f"backward {self.backward_config.short}{sums}"] * trains
        return Launch(
            forward=self.forward,
            backward=self.backward if trains else None,
            outputs=self.outputs,
            reload=self.load,
            notes=tuple(notes[self.case.mode == "bwd" :]),
        )

    def run_forward(self) -> None:
        """Call the forward; the last results are freed first, so that peak memory is the call's own."""
        from attnbench.kernels.flash.api import flash_attention

        self.out = self.lse = None
        self.out, self.lse = flash_attention(*self.qkv, **self.arguments)

    def run_backward(self) -> None:
        """Call the backward with the results of the last forward."""
        assert self.out is not None  # set by the forward
        assert self.lse is not None
        self.grads = {}
        found = self.call.gradients(self.own["dout"], *self.qkv, self.out, self.lse, *self.offsets)
        self.grads = dict(zip(("dq", "dk", "dv"), found, strict=True))

    def results(self) -> Mapping[str, Tensor]:
        """Results of the last forward."""
        assert self.out is not None  # read after a forward
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        """Gradients of the last backward."""
        return {name: x for name, x in self.grads.items() if x is not None}
