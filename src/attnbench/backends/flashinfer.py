"""``flashinfer``: FlashInfer's batch prefill over ragged (packed) keys and values; inference only.

`plan` is host work that serves many calls with the same lengths.  It runs at set-up and is also the phase ``plan`` (it
reads lengths back to the host, so it synchronises).  The library's own choice between its kernels is not used: this
adapter pins `fa3` on Hopper and `fa2` elsewhere and notes it; ``flashinfer[fa2]`` and ``flashinfer[fa3]`` pin one
explicitly.  The first call of a shape compiles with nvcc.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import Config, Launch, Machine
from attnbench.backends.dense import DenseBackend, Limits
from attnbench.backends.differentiable import Operands
from attnbench.backends.mask import Mask
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs

WORKSPACE_BYTES = 128 << 20
"""The size that FlashInfer recommends for its split-k workspace."""


class FlashInfer(DenseBackend):
    """A window may be bounded on the left only."""

    name = "flashinfer"
    title = "FlashInfer"
    tested: ClassVar[str | None] = "NVIDIA H200, torch 2.11"
    install = "pip install flashinfer-python==0.6.18"
    module = "flashinfer.prefill"
    distribution = "flashinfer-python"
    compiles = True
    limits = Limits(headdims=(64, 128, 256), gqa=True, window=True, bottom_right=True, varlen=True, capability=(8, 0))

    def configs(self, case: AttentionCase) -> Iterable[Config]:
        """Return the two kernels that can be pinned."""
        return Config("fa2"), Config("fa3")

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the pinned kernel does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if Mask.of(case).right > 0:
            raise Unsupported(
                refusal(
                    self.name, "window", case.window, "is bounded on the right", "a bound on the left, causal or not"
                )
            )
        if self.config and self.config.short == "fa3" and machine.capability and machine.capability[0] != 9:
            raise Unsupported(refusal(self.name, "config", "fa3", "runs on compute capability 9.0", "fa2"))

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use packed tensors [T, H, D], with the offsets of every sequence."""
        import torch

        library = importlib.import_module("flashinfer.prefill")
        operands = Operands(case, inputs)
        mask = Mask.of(case)
        kernel = self.config.short if self.config else kernel_for(operands.q.device)
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=operands.q.device)
        wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=kernel)
        offsets = offsets_of(case, inputs)

        def plan() -> None:
            wrapper.plan(
                *offsets,
                case.nheads,
                case.nheads_kv,
                case.headdim,
                causal=mask.right == 0,
                window_left=mask.left,
                sm_scale=case.scale,
                q_data_type=operands.q.dtype,
            )

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return wrapper.run(q.flatten(0, -3), k.flatten(0, -3), v.flatten(0, -3)).view(q.shape)

        plan()
        yield operands.launch(attend, phases={"plan": plan}, notes=(f"kernel pinned: {kernel}",))


def kernel_for(device: device) -> str:
    """Return the kernel that is pinned by default."""
    import torch

    return "fa3" if torch.cuda.get_device_capability(device)[0] == 9 else "fa2"


def offsets_of(case: AttentionCase, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Return the offsets of queries and keys, int32 [B + 1], of a packed or a dense case."""
    import torch

    if case.packed:
        return inputs.cu_seqlens_q, inputs.cu_seqlens_k
    steps = torch.arange(case.batch + 1, dtype=torch.int32, device=inputs.q.device)
    return steps * case.seqlen, steps * case.seqlen_k
