"""How scaled_dot_product_attention is called, and how one of its kernels is pinned.

`torch.nn.attention.sdpa_kernel` sets a global while it is open and costs 8 µs of host time per
call.  A session may leave no global set, so `pinned` changes the same four switches inside the call
(about 1 µs) and restores them.  The function called is the one users call: F.scaled_dot_product_attention.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from attnbench.backends.base import Launch
from attnbench.backends.dense import DenseBackend
from attnbench.backends.differentiable import Attention, Operands, rows_first
from attnbench.backends.mask import Mask
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs

P = ParamSpec("P")
R = TypeVar("R")

SWITCHES = ("flash", "mem_efficient", "cudnn", "math")
"""Kernels, as torch.backends.cuda names their switches (which apply on the CPU too)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments other than q, k and v."""

    gqa: bool
    bias: Any = None
    "a bool mask [Sq, Sk], True where a key is visible, or torch's own causal bias; None for no mask"
    is_causal: bool = False

    @classmethod
    def of(cls, case: AttentionCase, mask: Mask, device: device) -> Call:
        """Return the simplest call that computes `mask`: a flag if one suffices, else a mask tensor."""
        gqa = case.nheads != case.nheads_kv
        if mask.causal and mask.square:
            return cls(gqa=gqa, is_causal=True)
        return cls(gqa=gqa, bias=mask.visible(device))

    @classmethod
    def bottom_right(cls, case: AttentionCase, mask: Mask) -> Call:
        """For causal with Sq ≠ Sk, return a bias that flash and efficient turn into their own flag."""
        from torch.nn.attention.bias import causal_lower_right

        ((queries, keys),) = mask.sequences
        with warnings.catch_warnings():
            # torch warns that rows without a key become NaN; an adapter's limits decide about them.
            warnings.simplefilter("ignore", UserWarning)
            return cls(gqa=case.nheads != case.nheads_kv, bias=causal_lower_right(queries, keys))

    @property
    def lower_right(self) -> bool:
        """Whether the bias is torch's own causal bias."""
        return self.bias is not None and hasattr(self.bias, "variant")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the record should know about this call."""
        masked = self.bias is not None and not self.lower_right
        return ("the mask is a tensor: hidden keys are computed and then dropped",) if masked else ()

    def attend(self) -> Attention:
        """Return the call as a function of q, k and v, all [B, H, S, D]."""
        import torch

        return partial(
            torch.nn.functional.scaled_dot_product_attention,
            attn_mask=self.bias,
            is_causal=self.is_causal,
            enable_gqa=self.gqa,
        )


def choice(call: Call, operands: Operands) -> str:
    """Return the name of the kernel that torch will choose for these tensors, such as FLASH_ATTENTION."""
    import torch
    from torch.nn.attention import SDPBackend

    q, k, v = operands.q, operands.k, operands.v
    bias = call.bias
    if call.lower_right:  # torch tries these two before it turns the bias into a tensor
        for kernel in ("flash", "mem_efficient"):
            if _accepts(kernel, call, q, k, v):
                return {"flash": "FLASH_ATTENTION", "mem_efficient": "EFFICIENT_ATTENTION"}[kernel]
        bias = call.bias._materialize(q.device)
    number = torch._fused_sdp_choice(q, k, v, attn_mask=bias, is_causal=call.is_causal, enable_gqa=call.gqa)
    return next((name for name, member in SDPBackend.__members__.items() if int(member) == number), str(number))


def pinned(kernel: str, inner: Callable[P, R]) -> Callable[P, R]:
    """Allow only one of torch's kernels in calls of `inner`; torch raises if that kernel cannot run.

    Args:
        kernel: one of `SWITCHES`.
        inner: the call; the switches are restored when it returns.
    """
    switches = [(read, write, name == kernel) for name, read, write in _switches()]

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = [(write, read()) for read, write, _ in switches]
        for _, write, allowed in switches:
            write(allowed)
        try:
            return inner(*args, **kwargs)
        finally:
            for write, allowed in before:
                write(allowed)

    return call


class PinnedSdpa(DenseBackend):
    """One kernel of torch's own, pinned."""

    install = "part of torch"
    kernel: ClassVar[str]
    "one of SWITCHES"
    native_bottom_right: ClassVar[bool] = False
    "on a GPU the kernel itself can align its causal mask to the bottom right"

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`; the first call asks torch whether the kernel accepts its tensors.

        Raises:
            Unsupported: raised by that call if the kernel does not accept its tensors; with torch's own reason.
        """
        call = self._call(case, device)
        run, asked = pinned(self.kernel, call.attend()), not self._asks(device)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            nonlocal asked
            if not asked:
                self._ask(case, call, q, k, v)
                asked = True
            return run(q, k, v)

        return rows_first(attend)

    def _asks(self, device: device) -> bool:
        return device.type == "cuda" and self.kernel != "math"

    def _call(self, case: AttentionCase, device: device) -> Call:
        mask = Mask.of(case)
        if mask.causal and not mask.square and device.type == "cuda" and self.native_bottom_right:
            return Call.bottom_right(case, mask)
        return Call.of(case, mask, device)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D]; torch is asked once, untimed, whether the kernel accepts them.

        Raises:
            Unsupported: it does not; with torch's own reason.
        """
        operands = Operands(case, inputs, heads_first=True)
        call = self._call(case, operands.q.device)
        if self._asks(operands.q.device):
            self._ask(case, call, operands.q, operands.k, operands.v)
        yield operands.launch(pinned(self.kernel, call.attend()), notes=call.notes)

    def _ask(self, case: AttentionCase, call: Call, q: Tensor, k: Tensor, v: Tensor) -> None:
        reasons: list[str] = []
        if not pinned(self.kernel, _accepts)(self.kernel, call, q, k, v, reasons):
            raise Unsupported(
                refusal(
                    self.name,
                    "case",
                    case.id,
                    f"is refused by torch: {' '.join(reasons)}",
                    "what torch says this kernel takes",
                )
            )


def _accepts(kernel: str, call: Call, q: Tensor, k: Tensor, v: Tensor, reasons: list[str] | None = None) -> bool:
    """Ask torch whether a fused kernel accepts these tensors; its warnings are the reasons."""
    import torch

    cuda = torch.backends.cuda
    can_use: Callable[..., bool] = {
        "flash": cuda.can_use_flash_attention,
        "cudnn": cuda.can_use_cudnn_attention,
        "mem_efficient": cuda.can_use_efficient_attention,
    }[kernel]
    bias = None if call.lower_right else call.bias
    params = cuda.SDPAParams(q, k, v, bias, 0.0, call.is_causal, call.gqa)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        accepted = can_use(params, reasons is not None)
    if reasons is not None:
        reasons += [str(warning.message).split(" (Triggered internally")[0] for warning in said]
    return accepted


def _switches() -> list[tuple[str, Callable[[], bool], Callable[[bool], None]]]:
    import torch

    cuda = torch.backends.cuda
    return [(name, getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp")) for name in SWITCHES]
