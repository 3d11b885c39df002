"""``sparse-flashinfer``: FlashInfer's block-sparse wrappers; keys of kept blocks are gathered token by token.

``[variable]``, the default, takes a map for every KV head (`VariableBlockSparseAttentionWrapper`); sequences and heads
together are its heads.  ``[bsr]`` takes one map for all heads (`BlockSparseAttentionWrapper`).  `plan` is
host work with a read-back: it runs at set-up and is also the phase ``convert``.  The kernel is pinned: `fa2`, or with
``+fa3`` FlashAttention 3's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Config, Launch, Machine, require
from attnbench.backends.flashinfer import WORKSPACE_BYTES
from attnbench.backends.sparse import SparseBackend, SparseLimits
from attnbench.workloads.sparse.patterns import block_map

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs

DEFAULT = "variable"
MOST_ROWS = 32768
"Limit of block rows over all heads: entries of the library's length buffer."


class SparseFlashInfer(SparseBackend):
    """Forward only; no causal mask."""

    name = "sparse-flashinfer"
    title = "FlashInfer, block sparse"
    tested = "NVIDIA H200, torch 2.11"
    install = "pip install flashinfer-python==0.6.18"
    module = "flashinfer.sparse"
    distribution = "flashinfer-python"
    compiles = True
    follows = False
    default = DEFAULT
    limits = SparseLimits(headdims=(64, 128, 256), capability=(8, 0))

    def configs(self, case: SparseCase) -> Iterable[Config]:
        """Return the two wrappers, each with both kernels that can be pinned."""
        return [Config(f"{wrapper}{kernel}") for wrapper in ("variable", "bsr") for kernel in ("", "+fa3")]

    @property
    def wrapper(self) -> str:
        """The wrapper that is used."""
        return self.config.short.partition("+")[0] if self.config else DEFAULT

    @property
    def kernel(self) -> str:
        """The pinned kernel."""
        return "fa3" if self.config and self.config.short.endswith("+fa3") else "fa2"

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse cases that the wrapper does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        hopper = not machine.capability or machine.capability[0] == 9
        pinned = self.kernel != "fa3" or hopper, "config", "fa3", "runs on compute capability 9.0", "fa2"
        require(self.name, pinned)
        if self.wrapper == "variable":
            rows = case.batch * case.nheads * case.blocks[0]
            wrong = f"makes {rows} rows of blocks over all heads"
            require(self.name, (rows <= MOST_ROWS, "block", case.block, wrong, f"at most {MOST_ROWS}"))
            return
        lengths, maps = (case.seqlen, case.seqlen_k), block_map(case)
        whole = not any(length % size for length, size in zip(lengths, case.block_shape, strict=True))
        alike = bool((maps == maps[:, :1]).all())
        accepted = f"one map for all heads; {self.name}[variable] takes it"
        require(
            self.name,
            (case.batch == 1, "batch", case.batch, "is not supported", "1"),
            (whole, "seqlen", case.seqlen, "is cut by the blocks of the map", f"multiples of {case.block}"),
            (alike, "pattern", case.pattern, "gives each head a map of its own", accepted),
        )

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D], which the wrappers read as [heads, S, D] or [S, H, D]."""
        import torch

        library = importlib.import_module("flashinfer.sparse")
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
        of = self._variable if self.wrapper == "variable" else self._bsr
        plan, attend = of(case, inputs, library, workspace)
        yield self.launch(case, inputs, attend, convert=plan, notes=(f"kernel pinned: {self.kernel}",))

    def _variable(
        self, case: SparseCase, inputs: SparseInputs, library: Any, workspace: Tensor
    ) -> tuple[Callable[[Tensor], None], Callable[..., Tensor]]:
        wrapper = library.VariableBlockSparseAttentionWrapper(workspace, backend=self.kernel)
        heads = case.batch * case.nheads

        def plan(blocks: Tensor) -> None:
            maps, rows, columns = variable_form(case, blocks)
            wrapper.plan(
                maps, rows, columns, heads, heads, case.headdim, sm_scale=case.scale, q_data_type=inputs.q.dtype
            )

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = wrapper.run(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
            return out.unflatten(0, q.shape[:2])

        return plan, attend

    def _bsr(
        self, case: SparseCase, inputs: SparseInputs, library: Any, workspace: Tensor
    ) -> tuple[Callable[[Tensor], None], Callable[..., Tensor]]:
        wrapper = library.BlockSparseAttentionWrapper(workspace, backend=self.kernel)

        def plan(blocks: Tensor) -> None:
            indptr, indices = bsr_form(blocks[0, 0])
            wrapper.plan(
                indptr,
                indices,
                case.seqlen,
                case.seqlen_k,
                *case.block_shape,
                case.nheads,
                case.nheads,
                case.headdim,
                sm_scale=case.scale,
                q_data_type=inputs.q.dtype,
                o_data_type=inputs.q.dtype,
            )

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = wrapper.run(*(x[0].transpose(0, 1) for x in (q, k, v)))
            return out.transpose(0, 1)[None]

        return plan, attend


def bsr_form(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return a map [rows, columns] in BSR format: offsets int32 [rows + 1] and columns int32 [blocks kept]."""
    import torch

    counts = blocks.sum(-1, dtype=torch.int32)
    offsets = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    return offsets, blocks.nonzero()[:, 1].int()


def map_of_bsr(indptr: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Return the map that `bsr_form` converted."""
    import torch

    rows = torch.arange(len(indptr) - 1, device=indptr.device).repeat_interleave(indptr.diff().long())
    found = torch.zeros(len(indptr) - 1, columns, dtype=torch.bool, device=indptr.device)
    found[rows, indices.long()] = True
    return found


def variable_form(case: SparseCase, blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a map as [B·H, rows, columns], and the lengths of its rows and columns, int32 [B·H, rows or columns]."""
    import torch

    sizes = []
    for length, size, count in zip((case.seqlen, case.seqlen_k), case.block_shape, case.blocks, strict=True):
        each = torch.full((count,), size, dtype=torch.int32, device=blocks.device)
        each[-1] = length - size * (count - 1)
        sizes.append(each.expand(case.batch * case.nheads, count).contiguous())
    return blocks.flatten(0, 1), sizes[0], sizes[1]
