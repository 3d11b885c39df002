"""What a group's backends are held against: the oracle on two sets of inputs, computed once.

**Precision.**  The oracle runs in fp64 wherever a card has it at half or a third of its fp32 rate
(compute capability 6.0, 7.0, 8.0, 9.0, 10.0) and on a CPU.  Other cards have 1/32 or 1/64: there it
runs in fp32 for 16-bit cases, whose rounding step is at least 2¹³ times as large as fp32's, and still
in fp64 for fp32 cases, which nothing less can judge.

**Size.**  Where the result in fp64 takes more than `MAX_BYTES` (or a quarter of the free memory), the
workload draws parts of the case by seed, corners always among them, and a note says how many of what.
The second set only has to differ from the first: an eighth of that memory is enough for it.

**Choices.**  Where a variant lets an implementation choose (`workloads.base.Choice`), a launch that
hands its choice over is held against what follows from that, if it is a good one.  The oracle is
computed again for a choice that is not its own, and kept while the choice stays the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.check.compare import Truth, make_truth
from attnbench.check.poison import bits
from attnbench.dtypes import torch_dtype
from attnbench.errors import WorkerError, refusal
from attnbench.workloads.base import Case, Draw, Inputs, OutputKind, Workload

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 2**31
"Most memory of an oracle's results."

KEPT_ON_DEVICE = 2**30
"Copies of inputs larger than this are kept in host memory."

FULL_RATE_FP64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"Compute capabilities with fast fp64 (CUDA C++ programming guide, table of arithmetic throughput)."


@dataclass(frozen=True, slots=True)
class _Followed:
    """A choice that a launch handed over, what is wrong with it, and what follows from it."""

    chosen: Tensor
    faults: dict[str, str]
    "words by the name of the output"
    truth: Truth


class Reference:
    """One set of inputs with the answer to it, and a copy that shows whether the inputs were changed."""

    def __init__(self, workload: Workload, case: Case, inputs: Inputs, *, draw: Draw) -> None:
        import torch

        self.workload, self.case, self.inputs, self.draw = workload, case, inputs, draw
        self._truths: dict[str, Truth] = {}
        self._followed: dict[str, _Followed] = {}
        tensors = inputs.tensors()
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        place = None if size <= KEPT_ON_DEVICE else "cpu"
        self._kept = {
            name: tensor.detach().to(place or tensor.device, copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }

    def truth(self, variant: str) -> Truth:
        """Oracle and plain evaluation for a variant, computed when first asked for."""
        if variant not in self._truths:
            self._truths[variant] = self._evaluated(
                variant,
                lambda dtype: self.workload.oracle(variant, self.case, self.inputs, dtype=dtype, draw=self.draw),
                lambda: self.workload.expected_errors(variant, self.case, self.inputs, draw=self.draw),
            )
        return self._truths[variant]

    def choice(self, variant: str, outputs: Mapping[str, Tensor]) -> Tensor | None:
        """The choice that a launch hands over, if there is one to make and it does."""
        name = self._choice_name(variant)
        return outputs[name].detach() if name is not None and name in outputs else None

    def _choice_name(self, variant: str) -> str | None:
        kinds = self.workload.outputs(variant)
        return next((name for name, kind in kinds.items() if kind is OutputKind.CHOICE), None)

    def follow(self, variant: str, chosen: Tensor) -> tuple[Truth, dict[str, str]]:
        """What follows from a choice of `choice`, or from the oracle's own and words for what is wrong with it."""
        import torch

        choice, name, last = self.workload.choice(variant), self._choice_name(variant), self._followed.get(variant)
        if choice is None or name is None:  # a mistake of the workload, not of a backend
            raise WorkerError(
                refusal(
                    "workload",
                    "choice",
                    variant,
                    "declares an output of kind choice and no judge",
                    "a Choice",
                    "return it from Workload.choice",
                )
            )
        if last is None or not torch.equal(last.chosen, chosen):
            # A copy: the launch writes its next choice to the same place.
            kept = chosen.clone()
            faults = choice.faults(self.case, self.inputs, kept)
            if faults or choice.is_oracles(self.case, self.inputs, kept):
                truth = self.truth(variant)
            else:
                truth = self._evaluated(
                    variant,
                    lambda dtype: choice.follow(self.case, self.inputs, kept, dtype=dtype, draw=self.draw),
                    lambda: choice.expected_errors(self.case, self.inputs, kept, draw=self.draw),
                )
            words = {name: f"{name}: {'; '.join(faults)}"} if faults else {}
            self._followed[variant] = last = _Followed(kept, words, truth)
        return last.truth, last.faults

    def followed(self, variant: str) -> str:
        """What the record says of a choice that is not the oracle's."""
        choice = self.workload.choice(variant)
        return choice.followed if choice else ""

    def measures(self, variant: str, chosen: Tensor) -> dict[str, float]:
        """How good a choice without faults is, by name."""
        choice = self.workload.choice(variant)
        if choice is None:
            return {}
        dtype = oracle_dtype(self.workload.result_dtype(self.case), chosen.device)
        return dict(choice.measures(self.case, self.inputs, chosen, dtype=dtype, draw=self.draw))

    def forget(self) -> None:
        """Free what followed from choices."""
        self._followed.clear()

    def _evaluated(
        self, variant: str, evaluate: Callable[[Any], dict[str, Tensor]], errors: Callable[[], dict[str, Tensor]]
    ) -> Truth:
        import torch

        results = self.workload.result_dtype(self.case)
        dtype = torch_dtype(results)
        device = next(iter(self.inputs.tensors().values())).device
        oracle, plain = (evaluate(precision) for precision in (oracle_dtype(results, device), dtype))
        expected = errors()
        with torch.no_grad():
            return make_truth(oracle, plain, expected, dtype, self.workload.outputs(variant))

    def differing(self) -> list[str]:
        """Names of the inputs whose bits are no longer what they were."""
        import torch

        return [
            name
            for name, tensor in self.inputs.tensors().items()
            if not torch.equal(bits(tensor), bits(self._kept[name].to(tensor.device)))
        ]

    def changed(self) -> list[str]:
        """Names of these, and put them back: other backends of the group read the same tensors."""
        import torch

        names, tensors = self.differing(), self.inputs.tensors()
        with torch.no_grad():
            for name in names:
                tensors[name].detach().copy_(self._kept[name])
        return names

    def select(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of whole outputs that the oracle computed."""
        return self.workload.select(self.case, outputs, self.draw)

    def release(self) -> None:
        """Free the oracle's memory; `truth` computes it again."""
        self._truths.clear()
        self.forget()


class References:
    """The two sets of inputs of a group.

    Sessions are opened and timed with the first.  The second is different data of the same shapes
    (normal values even where the first are zeros: equal data catches nothing).

    Args:
        workload: of the case.
        case: the problem.
        first: inputs the sessions are opened with.
        second: fresh data.
        seed: of the draw.
        max_bytes: of the first oracle's results; None for `MAX_BYTES` or a quarter of what is free.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        first: Inputs,
        second: Inputs,
        *,
        seed: int = 0,
        max_bytes: int | None = None,
    ) -> None:
        self.case = case
        self.device = next(iter(first.tensors().values())).device
        room = min(MAX_BYTES, free_bytes(self.device) // 4) if max_bytes is None else max_bytes
        draw = workload.draw(case, seed=seed, max_bytes=room)
        self.first = Reference(workload, case, first, draw=draw)
        self.second = Reference(workload, case, second, draw=workload.draw(case, seed=seed, max_bytes=room // 8))
        note = draw.note(seed)
        self.notes = [] if note is None else [note]
        precision = oracle_dtype(workload.result_dtype(case), self.device)
        if "64" not in str(precision):
            self.notes.append("oracle in fp32: this card's fp64 is slow")

    def kinds(self, variant: str) -> Mapping[str, OutputKind]:
        """Kinds of a variant's outputs, by name."""
        return self.first.workload.outputs(variant)

    def forget(self) -> None:
        """Free what followed from the choices of the launch that was examined."""
        self.first.forget()
        self.second.forget()

    def release(self) -> None:
        """Free the memory of both oracles, before memory is measured; they are computed again when needed."""
        self.first.release()
        self.second.release()


def oracle_dtype(result_dtype: str, device: Any) -> Any:
    """Precision of the oracle, by that of the outputs; the module says the rule."""
    import torch

    slow = device.type == "cuda" and torch.cuda.get_device_capability(device) not in FULL_RATE_FP64
    return torch.float32 if slow and result_dtype != "fp32" else torch.float64


def free_bytes(device: Any) -> int:
    """Memory that can still be had on a device, what the allocator holds in reserve included."""
    import torch

    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(reserve)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
