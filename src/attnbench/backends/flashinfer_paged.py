"""``flashinfer-paged[p64]``: FlashInfer's batch prefill over pages of keys and values; inference only.

``p64+decode`` is the library's wrapper for one query per sequence.  Planning, the phase ``plan``, reads lengths back.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from attnbench.backends.base import Config, Launch, Machine
from attnbench.backends.differentiable import launch
from attnbench.backends.flashinfer import WORKSPACE_BYTES, FlashInfer, kernel_for, offsets_of
from attnbench.backends.kv_pages import KvPages, page_configs, page_size_of
from attnbench.backends.mask import Mask
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class FlashInferPaged(FlashInfer):
    """Both wrappers take the whole pool [pages, 2, page size, heads, dim]."""

    name, title, tested = "flashinfer-paged", "FlashInfer, paged", "NVIDIA H200, torch 2.11"

    def configs(self, case: AttentionCase) -> Iterable[Config]:
        """Return the page sizes, each also with the decode wrapper."""
        return [*page_configs(), *page_configs("+decode", decode=True)]

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the wrapper does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if self.decodes and case.seqlen != 1:
            raise Unsupported(refusal(self.name, "seqlen", case.seqlen, "is no decoding", "1, or no +decode"))

    @property
    def decodes(self) -> bool:
        """Whether it is the wrapper for one query per sequence."""
        return self.config is not None and "decode" in self.config.values

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use packed queries [T, H, D], with keys and values in a pool."""
        import torch

        q, mask, size = inputs.q.detach().clone(), Mask.of(case), page_size_of(self.config)
        pages = KvPages(case, inputs.k, inputs.v, size)
        room = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        given = [pages.indptr, pages.indices, pages.last_page_len, case.nheads, case.nheads_kv, case.headdim, size]
        options = {"sm_scale": case.scale, "window_left": mask.left, "q_data_type": q.dtype}
        if self.decodes:
            make = importlib.import_module("flashinfer.decode").BatchDecodeWithPagedKVCacheWrapper
            how: dict[str, bool | str] = {"use_tensor_cores": case.group_size > 1}
        else:
            make = importlib.import_module("flashinfer.prefill").BatchPrefillWithPagedKVCacheWrapper
            given, options["causal"] = [offsets_of(case, inputs)[0], *given], mask.right == 0
            how = {"backend": kernel_for(q.device)}
        wrapper = make(room, "NHD", **how)
        plan = partial(wrapper.plan, *given, **options)

        def attend() -> Tensor:
            out: Tensor = wrapper.run(q.flatten(0, -3), pages.pool)
            return out.view(q.shape)

        def load(new: AttentionInputs) -> None:
            q.copy_(new.q)
            pages.load(new.k, new.v)

        plan()
        yield launch(attend, {}, None, mode=case.mode, load=load, phases={"plan": plan}, notes=(f"pinned: {how}",))
