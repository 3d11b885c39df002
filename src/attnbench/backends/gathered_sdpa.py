"""``gathered-sdpa[p64]``: copies keys and values out of their pages, then calls torch's attention; inference only.

The copies, which a kernel that reads pages avoids, are part of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.backends.base import Config, Launch, Machine
from attnbench.backends.dense import DenseBackend
from attnbench.backends.differentiable import launch
from attnbench.backends.kv_pages import KvPages, page_configs, page_size_of
from attnbench.backends.sdpa import Sdpa

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class GatheredSdpa(DenseBackend):
    """Sequences of one length."""

    name = "gathered-sdpa"
    title = "SDPA over gathered copies of pages"
    tested = "NVIDIA H200, torch 2.11"
    install = "part of torch"
    devices = ("cpu", "cuda")
    limits = replace(Sdpa.limits, headdim_v=False, backward=False)

    def configs(self, case: AttentionCase) -> Iterable[Config]:
        """Return the page sizes."""
        return page_configs()

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that torch's attention computes wrongly, and several sequence lengths.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        Sdpa().check(case, machine)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Put keys and values into a pool."""
        q, pages = inputs.q.detach().clone(), KvPages(case, inputs.k, inputs.v, page_size_of(self.config))
        attention = Sdpa().attend(case, q.device)

        def attend() -> Tensor:
            k, v = (x.unflatten(0, (case.batch, case.seqlen_k)) for x in pages.gathered())
            return attention(q, k, v)

        def load(new: AttentionInputs) -> None:
            q.copy_(new.q)
            pages.load(new.k, new.v)

        yield launch(attend, {}, None, mode=case.mode, load=load)
