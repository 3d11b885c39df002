"""HSTU ranking inference with a paged cache: a launch is one step of a whole model.

Imports without torch; the methods that make or read tensors import what they need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, unknown
from attnbench.record import Work
from attnbench.workloads.base import Draw, Workload, in_layout
from attnbench.workloads.hstu_serving.axes import AXES
from attnbench.workloads.hstu_serving.case import ServingCase
from attnbench.workloads.hstu_serving.parts import choose, select
from attnbench.workloads.hstu_serving.work import work

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as torch_dtype

    from attnbench.workloads.hstu_serving.inputs import ServingInputs

__all__ = ["WORKLOAD", "ServingCase", "ServingWorkload"]


class ServingWorkload(Workload[ServingCase, "ServingInputs"]):
    """A step of HSTU ranking: cached tokens are looked up, the rest is computed, candidates are scored."""

    name = "hstu-serving"
    title = "HSTU ranking step"
    axes = AXES
    variants = ("logits",)

    def case(self, values: Mapping[str, Any]) -> ServingCase:
        """Build a case from axis values or from `ServingCase.to_dict`; missing values get the axis default.

        Raises:
            UsageError: an axis is unknown or a value is not allowed.
        """
        return ServingCase(**self.filled(values))

    def work(self, case: ServingCase) -> Work:
        """Return exact useful FLOPs and least bytes of a step; `work.py` says what is counted."""
        return work(case)

    def table_bytes(self, case: ServingCase) -> int:
        """Those of tokens and positions."""
        return case.table_bytes

    def check_files(self, cases: Collection[ServingCase]) -> None:
        """Compare the header of each checkpoint with its model.

        Raises:
            UsageError: a file is not there, is no safetensors file, is cut short, or has another model's weights.
        """
        wanted = dict.fromkeys((case.config, case.checkpoint) for case in cases if case.checkpoint is not None)
        if wanted:
            from attnbench.workloads.hstu_serving.inputs import check_weights

            for config, checkpoint in wanted:
                check_weights(config, checkpoint)

    def inputs(self, case: ServingCase, *, seed: int, kind: str, device: str | device) -> ServingInputs:
        """Return model and requests; see `inputs.make_inputs`."""
        from attnbench.workloads.hstu_serving.inputs import make_inputs

        return make_inputs(case, seed=seed, kind=kind, device=device)

    def oracle(
        self, variant: str, case: ServingCase, inputs: ServingInputs, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the logits of a model without a cache."""
        from attnbench.workloads.hstu_serving.oracle import evaluate

        self._known(variant)
        return evaluate(inputs, dtype=dtype, draw=draw)

    def expected_errors(
        self, variant: str, case: ServingCase, inputs: ServingInputs, *, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the standard deviation of each logit; `rounding.py` describes the method."""
        from attnbench.workloads.hstu_serving.rounding import expected_errors

        self._known(variant)
        return expected_errors(inputs, draw=draw)

    def draw(self, case: ServingCase, *, seed: int, max_bytes: int) -> Draw:
        """Draw requests by time, not memory, because single requests always fit; see `parts.py`."""
        return choose(case, seed=seed)

    def select(self, case: ServingCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """Return the logits of the drawn requests, in the workload's layout."""
        requests = sum(map(len, case.steps))
        whole = in_layout(case.id, outputs, {"out": (requests * case.num_candidates, case.config.tasks)})
        return {name: select(case, out, draw) for name, out in whole.items()}

    def suspects(
        self, variant: str, case: ServingCase, inputs: ServingInputs, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        """A cache whose keys are not read: the answer of a kernel that ignores its pages."""
        import torch

        from attnbench.workloads.hstu_serving.oracle import evaluate

        if any(case.found_of(visit) for step in case.steps for visit in step):
            blind = evaluate(inputs, dtype=torch.float32, draw=draw, unseen=case.found_of)
            yield "cached tokens that are not read", blind

    def shrink(self, case: ServingCase, factor: float) -> ServingCase | None:
        """Return a case of fewer users; None if there is only one, or the pool would be too small."""
        batch = int(case.batch * factor)
        try:
            return replace(case, batch=batch) if batch else None
        except UsageError:
            return None

    def _known(self, variant: str) -> None:
        if variant not in self.variants:
            raise unknown(self.name, "variant", variant, self.variants)


WORKLOAD = ServingWorkload()
