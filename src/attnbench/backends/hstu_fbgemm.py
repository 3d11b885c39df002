"""``hstu-fbgemm``: NVIDIA's CUTLASS kernels for HSTU attention, from the wheel fbgemm-gpu-hstu-nightly.

The latest wheel we have seen is built for CUDA 12 (it needs libcudart.so.12) and has one Python tag.  With a torch for
CUDA 13 its kernels read a device structure of another layout and crash the process.  The harness survives that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch, Machine, card_checks, require
from attnbench.backends.hstu import HstuBackend, Operands
from attnbench.errors import Unavailable, Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs

DIMS = (32, 64, 128, 256)


class HstuFbgemm(HstuBackend):
    """Forward and backward on sm_80 and sm_90; the backward accumulates dQ with atomics."""

    name = "hstu-fbgemm"
    title = "HSTU, NVIDIA CUTLASS (FBGEMM)"
    install = "pip install fbgemm-gpu-hstu-nightly (with a torch for CUDA 12)"
    tested = "NVIDIA H200, torch 2.11"
    module = "fbgemm_gpu.experimental.hstu"
    distribution = "fbgemm-gpu-hstu-nightly"

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse cases that the library does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        plain = case.max_attn_len is None and case.causal
        self.take(
            case,
            ("dtype", case.dtype != "fp32", "bf16, fp16"),
            ("attn_dim", case.attn_dim in DIMS, f"one of {', '.join(map(str, DIMS))}"),
            ("linear_dim", case.linear_dim == case.attn_dim, f"attn_dim={case.attn_dim}"),
            ("contextual_len", plain or case.contextual_len == 0, "0 with a window or without causal"),
            ("num_targets", plain or case.num_targets == "0", "0 with a window or without causal"),
        )
        require(self.name, *card_checks(machine, (8, 0), (10, 0)))

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Make int32 offsets once; the mask is a window and numbers of prefix and target tokens."""
        function, takes = _function(self.name)
        import torch

        def whole(numbers: list[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=inputs.q.device)

        offsets = "seq_offsets" if "seq_offsets_q" in takes else "cu_seqlens"
        given: dict[str, Any] = dict.fromkeys(takes & {"num_contexts", "num_targets", "seqused_q", "seqused_k"}) | {
            f"{offsets}_q": inputs.seq_offsets_q.int(),
            f"{offsets}_k": inputs.seq_offsets.int(),
            "max_seqlen_q": inputs.max_seqlen_q,
            "max_seqlen_k": inputs.max_seqlen,
            "alpha": case.alpha,
            "window_size": _window(case),
        }
        if case.contextual_len:
            given["num_contexts"] = whole([shape.prefix for shape in case.sequences])
        if inputs.num_targets is not None:
            given["num_targets"] = inputs.num_targets.int()
        given |= _divisor(self.name, case, inputs, takes)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return function(q=q, k=k, v=v, **given)

        built = torch.version.cuda
        notes = (
            ()
            if built is None or built.startswith("12.")
            else (
                f"fbgemm: this torch is for CUDA {built}; a plain wheel for CUDA 12 ends the process at its first kernel",
            )
        )
        yield Operands(case, inputs).launch(attend, notes=notes)


def _function(who: str) -> tuple[Any, set[str]]:
    """Return the library's function and the names of its arguments, which differ between versions."""
    import inspect

    try:
        from fbgemm_gpu.experimental.hstu import hstu_attn_varlen_func as function  # type: ignore[import-not-found]  # installed where there is a card
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(
            f"{who}: fbgemm_gpu.experimental.hstu does not import: {' '.join(str(error).split())}; "
            "a wheel for this Python and torch's CUDA, and libcudart.so.12 beside it"
        ) from error
    return function, set(inspect.signature(function).parameters)


def _window(case: HstuCase) -> tuple[int, int]:
    reach = -1 if case.max_attn_len is None else case.max_attn_len
    return reach, 0 if case.causal else reach


def _divisor(who: str, case: HstuCase, inputs: HstuInputs, takes: set[str]) -> dict[str, int]:
    """Return the divisor of the outputs; if it is not an argument, it is ``max_seqlen_q``, a bound of the lengths."""
    divisor = case.scaling_seqlen
    if "scaling_seqlen" in takes:
        return {"scaling_seqlen": divisor}
    if divisor == inputs.max_seqlen_q:
        return {}
    # With fewer queries than keys, changing one bound would change the mask, so both are raised or none.
    if case.delta_q is None and divisor > inputs.max_seqlen_q:
        return {"max_seqlen_q": divisor, "max_seqlen_k": divisor}
    longest = f"the longest sequence, {inputs.max_seqlen_q}" + (", or more" if case.delta_q is None else "")
    raise Unsupported(refusal(who, "scaling_seqlen", divisor, "is not taken by this version", longest))
