"""Self-attention of long sequences over several devices (context parallel): softmax and HSTU.

Inputs, oracles, budgets and draws are those of the workloads `attention` and `hstu` for the whole problem: the results
of all ranks are compared with one answer.  Imports without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.errors import unknown
from attnbench.record import Work
from attnbench.workloads.attention import WORKLOAD as ATTENTION
from attnbench.workloads.attention_cp.axes import AXES
from attnbench.workloads.attention_cp.case import FUNCTIONS, SOFTMAX, CpCase
from attnbench.workloads.base import Draw, Workload
from attnbench.workloads.hstu import WORKLOAD as HSTU

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as torch_dtype

    from attnbench.workloads.attention.inputs import AttentionInputs
    from attnbench.workloads.hstu.inputs import HstuInputs

__all__ = ["WORKLOAD", "AttentionCpWorkload", "CpCase"]


class AttentionCpWorkload(Workload[CpCase, "AttentionInputs | HstuInputs"]):
    """Self-attention of whole sequences, whose rows are distributed over ranks."""

    name = "attention-cp"
    title = "context-parallel attention"
    axes = AXES
    variants = FUNCTIONS
    in_ranks = True

    def case(self, values: Mapping[str, Any]) -> CpCase:
        """Build a case from axis values or from `CpCase.to_dict`; missing values get the axis default.

        Raises:
            UsageError: an axis is unknown or a value is not allowed.
        """
        return CpCase(**self.filled(values))

    def devices(self, case: CpCase) -> int:
        """One per rank."""
        return case.world

    def work(self, case: CpCase) -> Work:
        """Return the work of the whole problem; communication is not useful work."""
        return _whole(case).work(case.problem)

    def inputs(self, case: CpCase, *, seed: int, kind: str, device: str | device) -> AttentionInputs | HstuInputs:
        """Return the inputs of the function's workload, whole, on one device."""
        found: AttentionInputs | HstuInputs = _whole(case).inputs(case.problem, seed=seed, kind=kind, device=device)
        return found

    def oracle(
        self, variant: str, case: CpCase, inputs: AttentionInputs | HstuInputs, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return out of the drawn (sequence, head) pairs, each over all of its rows."""
        return _whole(case).oracle(self._known(variant), case.problem, inputs, dtype=dtype, draw=draw)

    def expected_errors(
        self, variant: str, case: CpCase, inputs: AttentionInputs | HstuInputs, *, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the errors expected of an evaluation on one device."""
        return _whole(case).expected_errors(self._known(variant), case.problem, inputs, draw=draw)

    def draw(self, case: CpCase, *, seed: int, max_bytes: int) -> Draw:
        """Return all (sequence, head) pairs if the oracle fits, else the corners and a seeded draw."""
        return _whole(case).draw(case.problem, seed=seed, max_bytes=max_bytes)

    def select(self, case: CpCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """Return the drawn pairs of the whole output."""
        return _whole(case).select(case.problem, outputs, draw)

    def suspects(
        self, variant: str, case: CpCase, inputs: AttentionInputs | HstuInputs, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        """Return those of the function's workload."""
        return _whole(case).suspects(self._known(variant), case.problem, inputs, draw=draw)

    def signs(self, case: CpCase) -> Mapping[str, str]:
        """See softmax attention."""
        return {"q": "qk", "k": "qk", "v": "v", "out": "v"}

    def shrink(self, case: CpCase, factor: float) -> CpCase | None:
        """Return a case of fewer sequences, or for one sequence a shorter one; None if nothing smaller is left."""
        smaller = _whole(case).shrink(case.problem, factor)
        if smaller is None:
            return None
        lengths = smaller.lengths
        if case.function == SOFTMAX and lengths[0].isdigit():
            lengths = ":".join(str(queries) for queries, _ in smaller.sequences)
        return replace(case, batch=smaller.batch, seqlen=smaller.seqlen, lengths=lengths)

    def _known(self, variant: str) -> str:
        if variant not in self.variants:
            raise unknown(self.name, "variant", variant, self.variants)
        return variant


def _whole(case: CpCase) -> Workload[Any, Any]:
    """Return the workload of the function on one device."""
    return ATTENTION if case.function == SOFTMAX else HSTU


WORKLOAD = AttentionCpWorkload()
