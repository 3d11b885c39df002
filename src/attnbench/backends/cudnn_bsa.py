"""``cudnn-bsa``: cuDNN frontend's block-sparse attention in CuTe DSL, blocks of 64x64 and 128x128.

``[fp8]`` is its Sage recipe: queries and keys in e4m3 with a scale for each row and each 16 keys, values in e4m3.  It
quantises inside the call, accumulates P V in one accumulator, and needs the same number of blocks in every row.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Budget, Config, Launch, Machine
from attnbench.backends.dense import largest_term
from attnbench.backends.sparse import SparseBackend, SparseLimits, lists_of, native_block
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs


class CudnnBsa(SparseBackend):
    """Forward only; no causal mask."""

    name = "cudnn-bsa"
    title = "cuDNN block-sparse attention"
    tested = "NVIDIA H200, torch 2.11"
    install = 'pip install nvidia-cudnn-frontend==1.32.0 "nvidia-cutlass-dsl[cu13]>=4.8.0" "apache-tvm-ffi>=0.1.11"'
    module = "cudnn.block_sparse_attention"
    distribution = "nvidia-cudnn-frontend"
    compiles = True
    limits = SparseLimits(headdims=(64, 96, 128), blocks=("128x128", "64x64"), gqa=True, capability=(9, 0))

    def configs(self, case: SparseCase) -> Iterable[Config]:
        """Return the Sage recipe beside the 16-bit kernel."""
        return (Config("fp8"),)

    @property
    def quantised(self) -> bool:
        """Whether it is the Sage recipe."""
        return self.own == "fp8"

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse cases that the kernel does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if self.quantised and self.predictor:
            raise Unsupported(
                refusal(
                    self.name,
                    "config",
                    self.config and self.config.short,
                    "gives rows different numbers of blocks",
                    "fp8 with a given map, or a predictor without fp8",
                )
            )
        if self.quantised:
            replace(
                self.limits, dtypes=("bf16",), headdims=(128,), gqa=False, whole_blocks=True, equal_counts=True
            ).check(self.name, case, machine)
        elif native_block(case, self.limits.blocks) == (64, 64) and case.seqlen % 64:
            raise Unsupported(
                refusal(self.name, "seqlen", case.seqlen, "is cut by blocks of 64 queries", "a multiple of 64")
            )

    def budget(self, case: SparseCase) -> Budget:
        """For the Sage recipe: e4m3 with 3 bits of mantissa for Q, K and P.

        Emulated against fp64 at 4096 rows the relative L1 is 0.055 on normal values and 0.070 on outliers; the limit
        for a head is a quarter higher.  The largest error of 8-bit attention is half the output's root mean square, or a
        tenth of the largest term: 1.4 times that of `flash-sparse-quant`, as measured at 32768 rows.
        """
        keys, outputs = (case.density or 1.0) * case.seqlen, case.batch * case.seqlen * case.nheads * case.headdim
        limit = max(0.5, 0.1 * largest_term(max(1.0, keys), outputs))
        return Budget(relative=limit, rel_l1=0.08, head_rel_l1=0.1) if self.quantised else Budget()

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D]; the first call compiles."""
        bsa = importlib.import_module("cudnn").BSA
        made: dict[str, Tensor] = {}
        native = native_block(case, self.limits.blocks)

        def convert(blocks: Tensor) -> None:
            made.update(lists_of(blocks))

        given: dict[str, Any] = {"sparse_block_size": native[0]}
        if self.quantised:
            kept = self.native_map(case, inputs)[0]
            function, given["block_sparse_num"] = bsa.block_sparse_attention_fp8_forward, int(kept[0, 0, 0].sum())
        else:
            function = bsa.block_sparse_attention_forward
            given |= {"layout": "bhsd", "softmax_scale": case.scale}

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            counts = {} if self.quantised else {"q2k_block_nums": made["counts"]}
            out: Tensor
            out, *_ = function(q, k, v, q2k_block_index=made["indices"], **counts, **given)
            return out

        yield self.launch(case, inputs, attend, convert=convert, notes=(f"blocks of {native[0]}x{native[1]}",))
