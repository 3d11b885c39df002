"""Block-sparse softmax attention: one block map, as an input (`given`) or as the backend's own choice (`chosen`).

Imports without torch; the methods that make or read tensors import what they need.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import Work
from attnbench.workloads.base import ATTENTION_KINDS, Choice, Draw, OutputKind, Workload
from attnbench.workloads.sparse.axes import AXES
from attnbench.workloads.sparse.case import FULL, PATTERNS, SparseCase
from attnbench.workloads.sparse.work import dense_flops, work

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as torch_dtype

    from attnbench.workloads.sparse.inputs import SparseInputs

__all__ = ["WORKLOAD", "SparseCase", "SparseWorkload"]

GIVEN, CHOSEN, DENSE = "given", "chosen", "dense"
CHOICE = "block_map"
"Name of the output of kind choice of the variant `chosen`."
COUNTED = 2**22
"Most blocks of a head that a plan counts, in a fifth of a second; a thousand times as many take gigabytes."


class SparseWorkload(Workload[SparseCase, "SparseInputs"]):
    """Softmax attention over the visible keys of some blocks.

    `given` computes with the map of the inputs.  `chosen` returns the map it used, and the oracle follows it.  `dense`
    ignores the map: the speed of a map is compared with it.
    """

    name = "sparse"
    title = "block-sparse softmax attention"
    axes = AXES
    input_kinds = ATTENTION_KINDS
    captured = True
    variants = (GIVEN, CHOSEN, DENSE)

    def outputs(self, variant: str) -> Mapping[str, OutputKind]:
        """Return out; for the variant `chosen` also the map used."""
        self._known(variant)
        return {"out": OutputKind.VALUE} | ({CHOICE: OutputKind.CHOICE} if variant == CHOSEN else {})

    def case(self, values: Mapping[str, Any]) -> SparseCase:
        """Build a case from axis values or from `SparseCase.to_dict`; missing values get the axis default.

        Raises:
            UsageError: an axis is unknown or a value is not allowed.
        """
        return SparseCase(**self.filled(values))

    def fitted(self, values: Mapping[str, Any], asked: Collection[str]) -> Mapping[str, Any]:
        """Drop a suite's density for a file or the full map, and raise one that would leave a row without blocks."""
        density = values.get("density")
        if not asked or "density" in asked or density is None:
            return values
        if "pattern" in asked and (values["pattern"] == FULL or values["pattern"] not in PATTERNS):
            return {**values, "density": None}
        columns = self.case({**values, "density": None}).blocks[1]
        return {**values, "density": max(density, 1 / columns)}

    def work(self, case: SparseCase) -> Work:
        """Return exact useful FLOPs of the map, those of the dense problem, and least bytes; see `work.py`."""
        return work(case)

    def planned_flops(self, case: SparseCase) -> int:
        """Count one head and multiply; a map too large to be made for a plan is estimated from its density."""
        if case.pattern not in PATTERNS:
            return self.work(case).flops
        if math.prod(case.blocks) > COUNTED:
            return round((case.density or 1.0) * dense_flops(case))
        one = replace(case, batch=1, nheads=1, nheads_kv=1)
        return case.batch * case.nheads * self.work(one).flops

    def work_of(self, variant: str, case: SparseCase) -> Work:
        """For the variant `dense` all blocks count: its useful work is the dense problem's."""
        self._known(variant)
        found = work(case)
        return found if variant != DENSE else replace(found, flops=dense_flops(case))

    def inputs(self, case: SparseCase, *, seed: int, kind: str, device: str | device) -> SparseInputs:
        """Return seeded inputs; see `inputs.make_inputs`."""
        from attnbench.workloads.sparse.inputs import make_inputs

        return make_inputs(case, seed=seed, kind=kind, device=device)

    def captured_axes(self, name: str) -> Mapping[str, int]:
        """Return the shape of a file's tensors.

        Raises:
            UsageError: the file cannot be used, or its values have other dims than its queries.
        """
        from attnbench.workloads.attention.captured import axes_of

        found = axes_of(name)
        dims, of_values = found["headdim"], found.pop("headdim_v")
        if of_values != dims:
            raise UsageError(refusal(self.name, "input", name, f"has v of {of_values} dims", f"{dims}, as q and k"))
        return found

    def notes_of(self, inputs: SparseInputs) -> Sequence[str]:
        """Return which rows of captured tensors are all 0."""
        return inputs.notes

    def oracle(
        self, variant: str, case: SparseCase, inputs: SparseInputs, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return out of the drawn pairs over the variant's map; without a choice `chosen` means all blocks."""
        from attnbench.workloads.sparse.oracle import evaluate

        return evaluate(case, inputs, dtype=dtype, draw=draw, blocks=self._blocks(variant, inputs))

    def expected_errors(self, variant: str, case: SparseCase, inputs: SparseInputs, *, draw: Draw) -> dict[str, Tensor]:
        """Return the standard deviation of rounding errors of each element; see `rounding.py`."""
        from attnbench.workloads.sparse.rounding import expected_errors

        return expected_errors(case, inputs, draw=draw, blocks=self._blocks(variant, inputs))

    def draw(self, case: SparseCase, *, seed: int, max_bytes: int) -> Draw:
        """Return all (sequence, KV head) pairs if the fp64 oracle fits, else the corners and a seeded draw."""
        from attnbench.workloads.attention.parts import choose

        return choose(case.dense, seed=seed, max_bytes=max_bytes)

    def select(self, case: SparseCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """Return the drawn pairs of a backend's whole outputs, in the oracle's layout."""
        from attnbench.workloads.attention.parts import select

        return select(case.dense, outputs, draw)

    def choice(self, variant: str) -> Choice[SparseCase, SparseInputs] | None:
        """Return the judge of a map chosen by a launch."""
        self._known(variant)
        if variant != CHOSEN:
            return None
        from attnbench.workloads.sparse.choice import ChosenMap

        return ChosenMap()

    def suspects(
        self, variant: str, case: SparseCase, inputs: SparseInputs, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        """A map that is ignored, transposed or of another head; a missing causal mask."""
        from attnbench.workloads.sparse.suspects import suspects

        self._known(variant)
        return suspects(case, inputs, draw=draw) if variant == GIVEN else ()

    def signs(self, case: SparseCase) -> Mapping[str, str]:
        """See softmax attention; the map does not change."""
        return {"q": "qk", "k": "qk", "v": "v", "out": "v"}

    def shrink(self, case: SparseCase, factor: float) -> SparseCase | None:
        """Return a case of fewer sequences, or for one sequence a shorter one; None if nothing smaller is left."""
        from attnbench.workloads.attention import WORKLOAD as ATTENTION

        smaller = ATTENTION.shrink(case.dense, factor)
        if smaller is None or case.pattern.endswith(case.pattern.partition("@")[2] or "\n"):
            return None
        try:
            found = replace(case, batch=smaller.batch, seqlen=smaller.seqlen, seqlen_k=smaller.seqlen_k)
        except UsageError:  # the grid or the density no longer fits
            return None
        return None if found == case else found

    def _blocks(self, variant: str, inputs: SparseInputs) -> Tensor:
        self._known(variant)
        if variant == GIVEN:
            return inputs.block_map
        import torch

        return torch.ones_like(inputs.block_map)

    def _known(self, variant: str) -> None:
        if variant not in self.variants:
            raise unknown(self.name, "variant", variant, self.variants)


WORKLOAD = SparseWorkload()
