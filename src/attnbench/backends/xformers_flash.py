"""``xformers-flash``: xFormers with its flash kernel pinned (flash-attn where installed, else torch's copy)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Machine
from attnbench.backends.dense import Limits
from attnbench.backends.xformers_call import XformersBackend
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from attnbench.workloads.attention.case import AttentionCase


class XformersFlash(XformersBackend):
    """Grouped heads forward only; windows for dense tensors only."""

    name = "xformers-flash"
    title = "xFormers flash"
    tested = "NVIDIA H200, torch 2.11"
    limits = Limits(
        max_headdim=256,
        headdim_multiple=8,
        gqa=True,
        window=True,
        bottom_right=True,
        empty_rows=True,
        varlen=True,
        backward=True,
        capability=(8, 0),
    )

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the operator does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if case.has_backward and case.nheads != case.nheads_kv:
            raise Unsupported(
                refusal(
                    self.name, "nheads_kv", case.nheads_kv, "has no backward", f"the nheads, {case.nheads}, or mode fwd"
                )
            )
        if case.packed and case.window is not None:
            raise Unsupported(refusal(self.name, "window", case.window, "has no variable length", "none"))

    def operators(self, fmha: Any) -> tuple[Any, Any]:
        """Return flash for forward and backward."""
        return fmha.flash.FwOp, fmha.flash.BwOp
