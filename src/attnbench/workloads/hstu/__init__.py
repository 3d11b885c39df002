"""HSTU attention: SiLU instead of softmax, jagged sequences with prefix and targets, dense and block-sparse.

Imports without torch; the methods that make or read tensors import what they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, unknown
from attnbench.record import Work
from attnbench.workloads.base import Choice, Draw, OutputKind, Workload
from attnbench.workloads.hstu.axes import AXES
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.lengths import targets_of
from attnbench.workloads.hstu.work import sparse_work, work

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as torch_dtype

    from attnbench.workloads.hstu.inputs import HstuInputs

__all__ = ["WORKLOAD", "HstuCase", "HstuWorkload", "sparse_work"]


class HstuWorkload(Workload[HstuCase, "HstuInputs"]):
    """SiLU attention of jagged sequences: dense (`hstu`) and block-sparse (`hstu-bsa`)."""

    name = "hstu"
    title = "HSTU attention"
    axes = AXES
    variants = ("hstu", "hstu-bsa")

    def outputs(self, variant: str) -> Mapping[str, OutputKind]:
        """Return out, by mode dq, dk and dv; for the block-sparse variant also dgates, and the selected blocks."""
        self._known(variant)
        dense = {"out": OutputKind.VALUE} | dict.fromkeys(("dq", "dk", "dv"), OutputKind.GRADIENT)
        return dense if variant == "hstu" else dense | {"dgates": OutputKind.GRADIENT, "blocks": OutputKind.CHOICE}

    def case(self, values: Mapping[str, Any]) -> HstuCase:
        """Build a case from axis values or from `HstuCase.to_dict`; missing values get the axis default.

        Raises:
            UsageError: an axis is unknown or a value is not allowed.
        """
        return HstuCase(**self.filled(values))

    def work(self, case: HstuCase) -> Work:
        """Return exact useful FLOPs and least bytes of the dense function; `work.py` says what is counted."""
        return work(case)

    def inputs(self, case: HstuCase, *, seed: int, kind: str, device: str | device) -> HstuInputs:
        """Return seeded inputs; see `inputs.make_inputs`."""
        from attnbench.workloads.hstu.inputs import make_inputs

        return make_inputs(case, seed=seed, kind=kind, device=device)

    def oracle(
        self, variant: str, case: HstuCase, inputs: HstuInputs, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return out (and dq, dk, dv, dgates by mode and variant) of the drawn pairs; `parts.py` has the layout."""
        from attnbench.workloads.hstu import oracle, oracle_bsa

        self._known(variant)
        evaluate = oracle.evaluate if variant == "hstu" else oracle_bsa.evaluate
        return evaluate(case, inputs, dtype=dtype, draw=draw)

    def expected_errors(self, variant: str, case: HstuCase, inputs: HstuInputs, *, draw: Draw) -> dict[str, Tensor]:
        """Return the standard deviation of rounding errors of each element; derived in `rounding.py`."""
        from attnbench.workloads.hstu import rounding

        self._known(variant)
        expected = rounding.expected_errors if variant == "hstu" else rounding.expected_errors_bsa
        return expected(case, inputs, draw=draw)

    def draw(self, case: HstuCase, *, seed: int, max_bytes: int) -> Draw:
        """Return all (sequence, head) pairs if the fp64 oracle fits, else the corners and a seeded draw."""
        from attnbench.workloads.hstu.parts import choose

        return choose(case, seed=seed, max_bytes=max_bytes)

    def select(self, case: HstuCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """Return the drawn pairs of a backend's whole outputs, in the oracle's layout."""
        from attnbench.workloads.hstu.parts import select

        return select(case, outputs, draw)

    def choice(self, variant: str) -> Choice[HstuCase, HstuInputs] | None:
        """Return the judge of a block-sparse launch's selected blocks (output `blocks`); ties go either way."""
        self._known(variant)
        if variant == "hstu":
            return None
        from attnbench.workloads.hstu.choice import BlockChoice

        return BlockChoice()

    def suspects(
        self, variant: str, case: HstuCase, inputs: HstuInputs, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        """A mask, factor or divisor that is missing or wrong: those that apply."""
        from attnbench.workloads.hstu.suspects import suspects

        self._known(variant)
        return suspects(variant, case, inputs, draw=draw)

    def signs(self, case: HstuCase) -> Mapping[str, str]:
        """See softmax attention; gates and their gradient, a sum over dimensions, do not change sign."""
        return {"q": "qk", "k": "qk", "dq": "qk", "dk": "qk", "v": "v", "dout": "v", "out": "v", "dv": "v"}

    def shrink(self, case: HstuCase, factor: float) -> HstuCase | None:
        """Return a case of fewer sequences, or for one sequence a shorter one; None if nothing smaller is left.

        Memory is taken as proportional to batch × seqlen.
        """
        if not 0 < factor < 1:
            return None
        batch = max(1, int(case.batch * factor))
        seqlen = case.seqlen
        if (share := factor * case.batch / batch) < 1:
            seqlen = max(1, int(seqlen * share))
            seqlen -= seqlen % 64 if seqlen >= 64 else 0
        changed: dict[str, Any] = {"batch": batch, "seqlen": seqlen}
        changed["block_counts"] = min(case.block_counts, -(-seqlen // case.block_size))
        if case.scaling_seqlen == case.seqlen:
            changed["scaling_seqlen"] = seqlen
        if case.delta_q is not None:
            changed["delta_q"] = min(case.delta_q, seqlen)
        if ":" in case.num_targets:
            changed["num_targets"] = ":".join(map(str, targets_of(case.num_targets, case.batch)[:batch]))
        if case.lengths[0].isdigit():
            changed["lengths"] = ":".join(str(min(shape.length, seqlen)) for shape in case.sequences[:batch])
        try:
            smaller = replace(case, **changed)
        except UsageError:  # prefix or targets no longer fit
            return None
        return None if smaller == case else smaller

    def _known(self, variant: str) -> None:
        if variant not in self.variants:
            raise unknown(self.name, "variant", variant, self.variants)


WORKLOAD = HstuWorkload()
