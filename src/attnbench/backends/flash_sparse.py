"""``flash-sparse``: our block-sparse attention, forward.

A configuration (``m128n128w8s2-ws-deep-lazy``) sets tiles and code path.  Two launches on the device convert a map to
lists: at set-up, and as the phase `convert`; with a predictor (``cdf0.98``, ``m…+cdf0.98``) in every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.our_triton import OurTriton
from attnbench.backends.sparse import Following, SparseBackend, SparseLimits
from attnbench.workloads.sparse.case import SparseCase

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.backends.differentiable import Attention
    from attnbench.kernels.flash.sparse.config import Shape
    from attnbench.kernels.shared.family import Family
    from attnbench.workloads.sparse.inputs import SparseInputs


class FlashSparse(SparseBackend, OurTriton[SparseCase, "SparseInputs"]):
    """Tensors [B, S, H, D]; a call allocates its results, and with a predictor the map and its lists."""

    name = "flash-sparse"
    title = "Block-sparse attention, ours (Triton)"
    tested = "NVIDIA H200, torch 2.11"
    heads_first = False
    limits = SparseLimits(max_headdim=128, gqa=True, causal=True, bottom_right=True, empty_rows=True, capability=(8, 0))

    def family(self) -> Family[Shape]:
        """Family of its launch configurations."""
        from attnbench.kernels.flash.sparse.config import FAMILY

        return FAMILY

    def shape(self, case: SparseCase, capability: tuple[int, int]) -> Shape:
        """What its configurations depend on."""
        from attnbench.kernels.flash.sparse.config import Shape

        rows, keys = case.block_shape
        return Shape(dim=case.headdim, block_q=rows, block_k=keys, capability=capability)

    def attend(self, case: SparseCase, device: device) -> Attention | None:
        """See `Backend.attend`; lists of a given map are made in the first call, those of a predicted one in each."""
        import torch

        from attnbench.kernels.flash.sparse import api
        from attnbench.workloads.sparse.patterns import block_map

        def convert(blocks: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
            with torch.cuda.device_of(q):  # Triton launches on the current device
                problem = api.sparse_problem_of(q, k, k, block=case.block_shape, causal=case.causal, scale=case.scale)
                config = api.config_for(self.own or None, q, k, k, problem)
                lists = api.make_lists(blocks, q, k, block=case.block_shape, causal=case.causal, config=config)
                return lists, problem, config

        def attend(q: Tensor, k: Tensor, v: Tensor, made: Any) -> Tensor:
            with torch.cuda.device_of(q):
                out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
                lse = torch.empty(case.batch, case.nheads, case.seqlen, dtype=torch.float32, device=q.device)
                api.launch_sparse(q, k, v, out, lse, *made)
            return out

        if self.predictor is not None:
            return Following(self.predictor.on(case, device), convert, attend)
        blocks = torch.from_numpy(block_map(case).copy()).to(device)
        made: list[Any] = []

        def given(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if not made:
                made.append(convert(blocks, q, k, v))
            return attend(q, k, v, made[0])

        return given

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Make the lists of the map; with a given map a call launches only the kernel."""
        from attnbench.kernels.flash.sparse import api

        given, own = (inputs.q, inputs.k, inputs.v), self.own or None
        terms: dict[str, Any] = {"block": case.block_shape, "causal": case.causal}
        problem = api.sparse_problem_of(*given, **terms, scale=case.scale)
        config = api.config_for(own, *given, problem)
        made: dict[str, api.BlockLists] = {}

        def convert(blocks: Tensor) -> None:
            made["lists"] = api.make_lists(blocks, inputs.q, inputs.k, **terms, config=config)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return api.flash_sparse_attention(q, k, v, made["lists"], **terms, scale=case.scale, config=own)[0]

        yield self.launch(case, inputs, attend, convert=convert, notes=(f"forward {config.short}",))
