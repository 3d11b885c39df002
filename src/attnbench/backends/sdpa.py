"""``sdpa``: torch's scaled_dot_product_attention as users call it; torch chooses the kernel.

The choice is queried with the launch's own tensors and noted.  torch aligns
``is_causal`` to the top left; for Sq ≠ Sk the documented way to align to the bottom right is a
`causal_lower_right` bias on a GPU, and a mask tensor elsewhere and for windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch, Machine
from attnbench.backends.dense import ALL_DTYPES, DenseBackend, Limits
from attnbench.backends.differentiable import Operands, rows_first
from attnbench.backends.mask import Mask
from attnbench.backends.sdpa_call import Call, choice

if TYPE_CHECKING:
    from torch import device

    from attnbench.backends.differentiable import Attention
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class Sdpa(DenseBackend):
    """The kernel is torch's choice, and noted."""

    name = "sdpa"
    title = "SDPA, torch's choice"
    tested = "NVIDIA H200, torch 2.11"
    install = "part of torch"
    devices = ("cpu", "cuda")
    limits = Limits(
        dtypes=ALL_DTYPES, headdim_v=True, gqa=True, window=True, bottom_right=True, empty_rows=True, backward=True
    )

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the kernel chosen by torch computes wrongly.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        # torch 2.11 on an H200 returns values of order 1, not 0, in rows whose mask hides every key.
        limits = self.limits if machine.device == "cpu" else replace(self.limits, empty_rows=False)
        limits.check(self.name, case, machine)

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`."""
        return rows_first(self._call(case, device).attend())

    @staticmethod
    def _call(case: AttentionCase, device: device) -> Call:
        mask = Mask.of(case)
        if mask.causal and not mask.square and device.type == "cuda":
            return Call.bottom_right(case, mask)
        return Call.of(case, mask, device)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D]; a mask, if needed, is made once."""
        operands = Operands(case, inputs, heads_first=True)
        call = self._call(case, operands.q.device)
        yield operands.launch(call.attend(), notes=(f"torch chose {choice(call, operands)}", *call.notes))
