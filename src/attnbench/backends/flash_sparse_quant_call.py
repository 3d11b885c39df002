"""The parts of ``flash-sparse-quant``: lists of a map, preparation, and the kernel that uses both."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from attnbench.backends.base import Preparing
from attnbench.backends.dense import largest_term
from attnbench.backends.sparse import Following
from attnbench.workloads.sparse.patterns import block_map, spans, visible_pairs

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.kernels.flash.quant.prepare import Quantised
    from attnbench.kernels.flash.sparse.lists import BlockLists
    from attnbench.workloads.sparse.case import SparseCase


def largest_error(case: SparseCase, *, given: bool) -> float:
    """Return the largest error of an output, in units of the root mean square of all.

    Weights and values have 4 bits.  With n keys an output of normal values has the size 1 / sqrt(n) and is off by up to
    half of that, or up to 0.35 for small n, or by a sixteenth of its largest term, which weighs most in the row with the
    fewest keys.  If the map is
    predicted and not the case's own, a row may have a single block, and an output is at least as large as that of
    dense attention.
    """
    import numpy as np

    (start, queries), (_, sizes) = spans(case)
    # Under a causal mask the first of more queries than keys see none: a block may have a few that do.
    hidden = max(0, case.seqlen - case.seqlen_k) if case.causal else 0
    queries = np.clip(start + queries - hidden, 0, queries)
    kept = block_map(case) if given else np.ones((1, 1, *case.blocks), dtype=bool)
    keys = np.where(kept, visible_pairs(case), 0).sum(-1) / np.maximum(
        queries[:, 0], 1
    )  # averaged over a block's queries
    seen = keys > 0
    if not seen.any():
        return 0.5
    fewest = 1.0 if case.causal else float(keys[seen].min() if given else sizes.min())
    mean_square = np.where(seen, queries[:, 0] / np.where(seen, keys, 1), 0).sum() / (
        case.seqlen * kept.shape[0] * kept.shape[1]
    )
    largest = min(0.35, 0.5 / fewest**0.5) / float(mean_square) ** 0.5
    if case.causal:
        return max(0.5, largest)
    outputs = case.batch * case.seqlen * case.nheads * case.headdim
    return max(0.5, largest, largest_term(fewest, outputs) / 16 / (fewest * float(mean_square)) ** 0.5)


class SparseQuantCall:
    """The operation for one case on tensors [B, S, H, D], in parts: lists, preparation, kernel."""

    def __init__(self, case: SparseCase, operands: tuple[Tensor, Tensor, Tensor], short: str) -> None:
        from attnbench.kernels.flash.sparse_quant import api

        self.operands = operands
        self.problem, self.dense = api.problems_of(
            *operands, block=case.block_shape, causal=case.causal, scale=case.scale
        )
        self.config = api.config_for(short or None, operands[0], self.problem)
        self.lists: BlockLists | None = None

    def convert(self, given: Tensor | BlockLists) -> None:
        """Make the lists of a map, or keep given lists."""
        from attnbench.kernels.flash.sparse_quant.api import listed

        self.lists = listed(given, *self.operands[:2], self.problem)

    @cached_property
    def prepared(self) -> Quantised:
        """Quantise Q, K and V to 8 bits: phases `smooth` and `quantise` in one launch, which is faster."""
        from attnbench.kernels.flash.sparse_quant.api import allocate, launch_prepare

        made = allocate(*self.operands[:2], self.dense)
        launch_prepare(*self.operands, made, self.dense)
        return made

    @cached_property
    def results(self) -> tuple[Tensor, Tensor]:
        """Tensors for out and lse."""
        import torch

        from attnbench.kernels.flash.sparse_quant.api import lse_shape

        q = self.operands[0]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        return out, torch.empty(lse_shape(q, self.dense), dtype=torch.float32, device=q.device)

    def smooth(self) -> None:
        """Compute statistics of K and V."""
        from attnbench.kernels.flash.sparse_quant.api import launch_smooth

        launch_smooth(*self.operands, self.prepared, self.dense)

    def quantise(self) -> None:
        """Quantise Q, K and V to 8 bits."""
        from attnbench.kernels.flash.sparse_quant.api import launch_quantise

        launch_quantise(*self.operands, self.prepared, self.dense)

    def kernel(self) -> None:
        """Compute attention from the quantised tensors and the lists."""
        from attnbench.kernels.flash.sparse_quant.api import launch_sparse_quant

        assert self.lists is not None, "convert was not called"
        launch_sparse_quant(self.prepared, *self.results, self.lists, self.problem, self.config)


def _prepared(
    case: SparseCase, short: str, operands: tuple[Tensor, Tensor, Tensor], given: Tensor | BlockLists
) -> SparseQuantCall:
    """Return a call on a model's tensors with its lists and quantised tensors made."""
    import torch

    with torch.cuda.device_of(operands[0]):  # Triton launches on the current device
        call = SparseQuantCall(case, operands, short)
        call.convert(given)
        assert call.prepared
    return call


def _attended(call: SparseQuantCall) -> Tensor:
    import torch

    with torch.cuda.device_of(call.operands[0]):
        call.kernel()
    return call.results[0]


class OverGivenMap(Preparing):
    """The operation over the case's map as a function of a model's tensors; the first call makes its lists."""

    def __init__(self, case: SparseCase, short: str, blocks: Tensor) -> None:
        self.case, self.short = case, short
        self.given: Tensor | BlockLists = blocks

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Backend.attend`."""
        with self.preparing():
            call = _prepared(self.case, self.short, (q, k, v), self.given)
        assert call.lists is not None
        self.given = call.lists
        return _attended(call)


def following(case: SparseCase, short: str, predict: Callable[[Tensor, Tensor], Tensor]) -> Following:
    """Return the operation over a map that is predicted in every call."""
    return Following(
        predict,
        lambda blocks, q, k, v: _prepared(case, short, (q, k, v), blocks),
        lambda q, k, v, call: _attended(call),
    )


def over_given_map(case: SparseCase, short: str, where: device) -> OverGivenMap:
    """Return the operation over the case's own map."""
    import torch

    return OverGivenMap(case, short, torch.from_numpy(block_map(case).copy()).to(where))
