"""``sage2``: SageAttention 2 on Hopper, Q and K in int8 with scales for each thread, P V in e4m3; inference only.

Its function for sm_90 is pinned (`sageattn` would choose by the card).  It subtracts the mean of K, quantises, and
calls one kernel.  The phase `quantise` is that call up to the kernel, the phase `kernel` the kernel with its arguments.
The function ignores unknown arguments, so it has no mask except causal, and the scale is ``sm_scale``.  Lengths that
are not a multiple of 128 cost it a copy of V, head dims below 64 or between 64 and 128 copies of all three.  All
kernels run on the default stream, so they are never captured.

Version 2 is on no index; version 1 has the same package name, so an environment can have only one of the two.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Budget, Launch
from attnbench.backends.dense import DenseBackend, Limits, one_value
from attnbench.backends.differentiable import Operands
from attnbench.backends.mask import Mask
from attnbench.backends.replaced import replaced

if TYPE_CHECKING:
    from torch import device

    from attnbench.backends.differentiable import Attention
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs

KERNEL = "qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf"


class Sage2(DenseBackend):
    """Two-level accumulation, the only mode of its sm_90 kernel."""

    name = "sage2"
    title = "SageAttention 2"
    tested = "NVIDIA H200, torch 2.11"
    install = (
        "git clone https://github.com/thu-ml/SageAttention.git && cd SageAttention && "
        "MAX_JOBS={max_jobs} pip install --no-build-isolation ."
    )
    module = "sageattention._qattn_sm90"
    distribution = "sageattention"
    limits = Limits(max_headdim=128, headdim_multiple=8, gqa=True, capability=(9, 0), capability_below=(10, 0))

    def budget(self, case: AttentionCase) -> Budget:
        """Budget for Q and K in int8, P and V with 3 bits of mantissa.

        Emulated against fp64 at 128 to 4096 rows: relative L1 0.033 to 0.040 on normal values and up to 0.047 on
        outliers, the largest error on normal values 0.58 of the output's root mean square, or 0.09 of a single value
        in causal rows with few keys.
        """
        return Budget(relative=max(0.9, 0.15 * one_value(case)), rel_l1=0.05, head_rel_l1=0.06)

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`."""
        function = importlib.import_module("sageattention.core").sageattn_qk_int8_pv_fp8_cuda_sm90
        causal, scale = Mask.of(case).causal, case.scale
        return lambda q, k, v: function(q, k, v, tensor_layout="NHD", is_causal=causal, sm_scale=scale)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors [B, S, H, D], which the library calls NHD."""
        kernels = importlib.import_module("sageattention.core").sm90_compile
        attend, kernel = self.attend(case, inputs.q.device), getattr(kernels, KERNEL)
        operands = Operands(case, inputs)
        given: list[Any] = []

        def keep(*arguments: Any) -> None:
            given[:] = arguments

        def quantise() -> None:
            with replaced(kernels, KERNEL, keep):
                attend(operands.q, operands.k, operands.v)

        phases = {"quantise": quantise, "kernel": lambda: kernel(*given)}
        yield operands.launch(attend, phases=phases, capturable=False)
