"""``sage1``: SageAttention 1, keys and queries in 8 bits, probabilities and values in fp16; inference only.

Version 1.0.6 is the Triton one; 2.x has the same package name but other kernels, so the probe looks
for a module that only 1.x has.  Its function ignores unknown arguments: it has no mask except
causal, and the scale is ``sm_scale``.  It subtracts the mean of K from K in place, so after the first
call this session's K has mean 0, which changes no result.  Without causal, its kernel treats the
padding of the last block of 64 keys as keys with score 0: if Sk is not a multiple of 64, the
comparison with the oracle shows how much that matters (at Sk = 129 a quarter of the output).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from attnbench.backends.base import Budget, Launch, Machine
from attnbench.backends.dense import ALL_DTYPES, DenseBackend, Limits, one_value
from attnbench.backends.differentiable import differentiable
from attnbench.backends.mask import Mask
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import device

    from attnbench.backends.differentiable import Attention
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class Sage1(DenseBackend):
    """Smoothing of K, quantisation and attention are one call, and timed as one."""

    name = "sage1"
    title = "SageAttention 1"
    tested = "NVIDIA H200, torch 2.11"
    install = "pip install sageattention==1.0.6"
    module = "sageattention.attn_qk_int8_per_block_h96"
    distribution = "sageattention"
    limits = Limits(dtypes=ALL_DTYPES, headdims=(64, 96, 128), gqa=True, varlen=True, capability=(8, 0))

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the library would ignore or compute wrongly.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if case.packed and case.headdim == 96:
            raise Unsupported(refusal(self.name, "headdim", 96, "has no variable length", "64 or 128"))

    def budget(self, case: AttentionCase) -> Budget:
        """Rounding q and k to 8 bits changes each weight by about 1 %.

        Averaged over many keys that is about 0.15 of the output's root mean square (emulated: int8
        blocks of 128 and 64, S = 128 to 4096), and 0.32 for the worst of 17 million elements on an
        H200 (S = 4096, D = 64); a causal row with few keys errs by up to 0.05 of a single value, which
        in units of that mean is sqrt(S / H_S).  The error of a wrong mask exceeds the mean itself.
        """
        return Budget(relative=max(0.5, 0.1 * one_value(case)))

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`; changes k in place."""
        return self._function(case, None)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors [B, S, H, D], which the library calls NHD, or packed [T, H, D]."""
        yield differentiable(self._function(case, inputs), case, inputs, notes=("subtracts the mean of K in place",))

    @staticmethod
    def _function(case: AttentionCase, inputs: AttentionInputs | None) -> Attention:
        """Return the library's function for a case; packed cases need `inputs`."""
        library = importlib.import_module("sageattention")
        common = {"is_causal": Mask.of(case).causal, "sm_scale": case.scale}
        if inputs is not None and case.packed:
            return partial(
                library.sageattn_varlen,
                cu_seqlens_q=inputs.cu_seqlens_q,
                cu_seqlens_k=inputs.cu_seqlens_k,
                max_seqlen_q=inputs.max_seqlen_q,
                max_seqlen_k=inputs.max_seqlen_k,
                **common,
            )
        return partial(library.sageattn, tensor_layout="NHD", **common)
