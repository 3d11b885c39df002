"""The references of a group's backends: the oracle's answers for two sets of inputs, computed once.

**Precision.**  The oracle runs in fp64 on a CPU and on cards whose fp64 rate is a half or a third of their fp32 rate
(compute capability 6.0, 7.0, 8.0, 9.0, 10.0).  Other cards have 1/32 or 1/64.  There it runs in fp32 for 16-bit cases,
whose rounding step is at least 2¹³ times that of fp32, and still in fp64 for fp32 cases, because no lower precision can
judge them.

**Size.**  Where the result in fp64 takes more than `MAX_BYTES` (or a quarter of the free memory), the
workload draws parts of the case by seed, always including the corners, and a note says how many of how many.
The second set only has to reveal stale answers: an eighth of that memory is enough for it, and its parts are
drawn from the operating system's entropy.

**Choices.**  Where a variant lets an implementation choose (`workloads.base.Choice`), and a launch returns a good
choice, its other outputs are compared with what follows from that choice.  The oracle is computed again for a choice
other than its own, and kept while the choice stays the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.check.compare import Truth, make_truth
from attnbench.check.poison import bits
from attnbench.dtypes import torch_dtype
from attnbench.errors import WorkerError, refusal
from attnbench.machine.memory import available_memory
from attnbench.workloads.base import Case, Draw, Inputs, OutputKind, Workload

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 2**31
"Upper limit of the memory of an oracle's results."

KEPT_SHARE = 8
"""Copies of inputs take at most this part of the free memory of their device; larger ones are kept in host memory.

From there every comparison has to bring them back, and a group of five backends has a hundred."""

TOGETHER = {"cuda": 2**26, "cpu": 2**16}
"""Limit of the inputs that are compared at once, in bytes: a model has dozens of weights, and on a GPU each comparison
waits for the device."""

FULL_RATE_FP64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"Compute capabilities with fast fp64 (CUDA C++ programming guide, table of arithmetic throughput)."


@dataclass(frozen=True, slots=True)
class _Followed:
    """A choice that a launch returned, its faults, and the truth that follows from it."""

    chosen: Tensor
    faults: dict[str, str]
    "messages by the name of the output"
    truth: Truth


class Reference:
    """One set of inputs with its answer, and a copy that shows whether the inputs were changed."""

    def __init__(self, workload: Workload, case: Case, inputs: Inputs, *, draw: Draw, kind: str = "normal") -> None:
        import torch

        self.workload, self.case, self.inputs, self.draw, self.kind = workload, case, inputs, draw, kind
        self._truths: dict[str, Truth] = {}
        self._followed: dict[str, _Followed] = {}
        tensors = inputs.tensors()
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        place = place_of_copies(size, next(iter(tensors.values())).device)
        self._kept = {
            name: tensor.detach().to(place, copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        self._together = list(_pieces(self._kept, tensors))
        # Aliases of the same memory: a backend that changes the form of a tensor does not change that of its alias.
        self._aliases = {name: (one.detach(), type(one), one.requires_grad) for name, one in tensors.items()}

    def truth(self, variant: str) -> Truth:
        """Return the oracle and plain evaluation of a variant, computed on first use."""
        if variant not in self._truths:
            self._truths[variant] = self._evaluated(
                variant,
                lambda dtype: self.workload.oracle(variant, self.case, self.inputs, dtype=dtype, draw=self.draw),
                lambda: self.workload.expected_errors(variant, self.case, self.inputs, draw=self.draw),
            )
        return self._truths[variant]

    def choice(self, variant: str, outputs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the choice in a launch's outputs, if the variant has one and the launch returns it."""
        name = self._choice_name(variant)
        return outputs[name].detach() if name is not None and name in outputs else None

    def _choice_name(self, variant: str) -> str | None:
        kinds = self.workload.outputs(variant)
        return next((name for name, kind in kinds.items() if kind is OutputKind.CHOICE), None)

    def follow(self, variant: str, chosen: Tensor) -> tuple[Truth, dict[str, str]]:
        """Return the truth for a choice and its faults; for a faulty choice, the truth for the oracle's own."""
        import torch

        choice, name, last = self.workload.choice(variant), self._choice_name(variant), self._followed.get(variant)
        if choice is None or name is None:  # an error of the workload, not of a backend
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
            # A copy: the launch writes its next choice to the same memory.
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
        """Return the record's note about a choice that is not the oracle's."""
        choice = self.workload.choice(variant)
        return choice.followed if choice else ""

    def measures(self, variant: str, chosen: Tensor) -> dict[str, float]:
        """Return how good a choice without faults is, by name of the measure."""
        choice = self.workload.choice(variant)
        if choice is None:
            return {}
        dtype = oracle_dtype(self.workload.result_dtype(self.case), chosen.device)
        return dict(choice.measures(self.case, self.inputs, chosen, dtype=dtype, draw=self.draw))

    def forget(self) -> None:
        """Free what was computed for choices."""
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

    def differing(self, besides: Mapping[str, Tensor] | None = None) -> list[str]:
        """Return the names of the inputs whose bits or form (class, type, strides, memory, gradient flag) have changed.

        Args:
            besides: tensors by name that are known to be unchanged: an input that is the very same one is skipped.
        """
        import torch

        known = besides or {}
        tensors = {name: one for name, one in self.inputs.tensors().items() if known.get(name) is not one}
        same = {name for name, one in tensors.items() if _form(one) == _form(*self._aliases[name])}
        apart = set(same)
        for piece in self._together:
            if same.issuperset(piece.names) and piece.holds(tensors):
                apart.difference_update(piece.names)
        for name in apart:
            if not torch.equal(bits(tensors[name]), bits(self._kept[name].to(tensors[name].device))):
                same.remove(name)
        return [name for name in tensors if name not in same]

    def changed(self, besides: Mapping[str, Tensor] | None = None) -> list[str]:
        """Return the names of changed inputs, and restore them: other backends of the group read the same tensors.

        Args:
            besides: see `differing`.
        """
        import torch

        names, tensors = self.differing(besides), self.inputs.tensors()
        with torch.no_grad():
            for name in names:
                alias, kind, requires_grad = self._aliases[name]
                alias.copy_(self._kept[name])
                tensors[name].__class__ = kind
                tensor = tensors[name] if tensors[name].is_leaf else tensors[name].detach_()
                tensor.requires_grad_(False)  # else no integers can be its data again
                tensor.data = alias.detach()
                tensor.requires_grad_(requires_grad)
        return names

    def select(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the parts of whole outputs that the oracle computed."""
        return self.workload.select(self.case, outputs, self.draw)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Inputs that are compared at once, and their bits one after another."""

    names: tuple[str, ...]
    kept: Tensor

    def holds(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the tensors of these names still have these bits."""
        import torch

        return torch.equal(torch.cat([bits(tensors[name]).flatten() for name in self.names]), self.kept)


def _pieces(kept: dict[str, Tensor], tensors: Mapping[str, Tensor]) -> Iterator[_Piece]:
    """Yield pieces of tensors on one device with elements of one width; those of `kept` become views of them.

    A tensor whose copy is on another device is in none.
    """
    import torch

    pieces: list[list[str]] = []
    last: dict[tuple[Any, int], tuple[list[str], int]] = {}
    for name, one in kept.items():
        if one.device == tensors[name].device:
            key, size = (one.device, one.element_size()), one.numel() * one.element_size()
            names, filled = last.get(key, ([], 0))
            if not names or filled + size > TOGETHER[one.device.type]:
                names, filled = [], 0
                pieces.append(names)
            names.append(name)
            last[key] = names, filled + size
    for names in pieces:
        if len(names) > 1:
            whole = torch.cat([bits(kept[name]).flatten() for name in names])
            for name, part in zip(names, whole.split([kept[name].numel() for name in names]), strict=True):
                kept[name] = part.view(kept[name].dtype).view(kept[name].shape)
            yield _Piece(tuple(names), whole)


def _form(tensor: Tensor, kind: type | None = None, requires_grad: bool | None = None) -> tuple[object, ...]:
    """Class, type, strides, memory and gradient flag; the class first, because one of a backend may lie about the rest."""
    flag = tensor.requires_grad if requires_grad is None else requires_grad
    return kind or type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.data_ptr(), flag


class References:
    """The two sets of inputs of a group.

    Sessions are opened and timed with the first.  The second is different data of the same shapes
    (normally distributed even where the first is zeros, because equal data reveals nothing).

    Args:
        workload: of the case.
        case: the problem.
        first: inputs the sessions are opened with.
        second: fresh data, of kind normal.
        kind: of the first inputs: a budget may depend on it.
        seed: of the first draw.
        max_bytes: of the first oracle's results; None for the smaller of `MAX_BYTES` and a quarter of the free memory.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        first: Inputs,
        second: Inputs,
        *,
        kind: str = "normal",
        seed: int = 0,
        max_bytes: int | None = None,
    ) -> None:
        self.case = case
        self.device = next(iter(first.tensors().values())).device
        room = min(MAX_BYTES, free_bytes(self.device) // 4) if max_bytes is None else max_bytes
        draw = workload.draw(case, seed=seed, max_bytes=room)
        self.first = Reference(workload, case, first, draw=draw, kind=kind)
        # Not derived from a known seed: a launch must not be able to compute only the parts that are checked.
        lots = int.from_bytes(os.urandom(7))
        self.second = Reference(workload, case, second, draw=workload.draw(case, seed=lots, max_bytes=room // 8))
        note = draw.note(seed)
        self.notes = [*workload.notes_of(first), *([] if note is None else [note])]
        precision = oracle_dtype(workload.result_dtype(case), self.device)
        if "64" not in str(precision):
            self.notes.append("oracle in fp32: this card's fp64 is slow")

    def kinds(self, variant: str) -> Mapping[str, OutputKind]:
        """Return the kinds of a variant's outputs, by name."""
        return self.first.workload.outputs(variant)

    def changed(self) -> list[str]:
        """Return the names of changed inputs of either set, and restore them; what both share is compared once."""
        return [*self.first.changed(), *self.second.changed(besides=self.first.inputs.tensors())]

    def forget(self) -> None:
        """Free what was computed for the choices of the launch that was examined."""
        self.first.forget()
        self.second.forget()


def oracle_dtype(result_dtype: str, device: Any) -> Any:
    """Return the oracle's precision for that of the outputs, by the rule in the module docstring."""
    import torch

    slow = device.type == "cuda" and torch.cuda.get_device_capability(device) not in FULL_RATE_FP64
    return torch.float32 if slow and result_dtype != "fp32" else torch.float64


def place_of_copies(size: int, device: Any) -> Any:
    """Return where copies of inputs are kept: on their device if that has room, else in host memory.

    Args:
        size: of the inputs, in bytes.
        device: theirs.
    """
    return device if size <= free_bytes(device) // KEPT_SHARE else "cpu"


def free_bytes(device: Any) -> int:
    """Return the memory that can still be allocated on a device, including the allocator's reserve.

    A host that does not say how much it has is taken to have enough for any oracle.
    """
    import torch

    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(reserve)
    free = available_memory()
    return 4 * MAX_BYTES if free is None else free
