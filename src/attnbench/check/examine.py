"""Checks of one open launch: before it is timed, and again afterwards.

    launch on the first data          outputs right? inputs unchanged? finished when its stream is?
    reload fresh data, launch         outputs right, or still those of the first data? inputs unchanged?
    poison the outputs, launch        every element written? right a second time, with nothing reloaded?
        and overwrite the inputs      are the inputs no longer read once the call has returned?
    behind queued work (GPU):         ordered with its stream at both ends?
        reload the first data, launch
    reload the first data, launch     the state in which timing starts
    … timing …
    read, poison, launch              right as timing left it, and right once more?

Where the launch returns a choice (`workloads.base.Choice`), right means that the choice is a good one and that
the other outputs follow from it.

In mode bwd or fwd-bwd a launch is the forward and then the backward.  Exceptions of the backend propagate: the
worker knows which backend raised them.  Settings that a launch leaves changed are restored and noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnbench.check.compare import Comparison, Truth, accepts_zeros, compare, matches
from attnbench.check.globals import GlobalState
from attnbench.check.poison import bits, poison_free_memory, poison_outputs, unusable
from attnbench.check.reference import Reference, References
from attnbench.check.variation import Variation
from attnbench.errors import AttnbenchError
from attnbench.record import Error
from attnbench.workloads.base import OutputKind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.backends.base import Budget, Launch

HELD_CYCLES = 40_000_000
"How long a GPU's stream is blocked, in cycles of its clock (some 20 ms), while a launch is queued behind."

SETTLE_S = 0.03
"Wait in which work on another CPU thread becomes visible; a GPU is synchronised instead."


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an examination."""

    ok: bool
    reason: str | None = None
    "what is wrong; None where nothing is"
    errors: Mapping[str, Error] = field(default_factory=dict)
    "of each output that could be compared"
    notes: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    "how good the launch's choice is (`workloads.base.Choice.measures`)"


class Wrong(Exception):
    """Ends an examination with its reason."""

    def __init__(self, reason: str, errors: Mapping[str, Error] | None = None) -> None:
        super().__init__(reason)
        self.errors = errors or {}


def examine(
    launch: Launch,
    references: References,
    *,
    variant: str,
    budget: Budget,
    announce: Callable[[str], None] = lambda phase: None,
) -> Outcome:
    """Examine a launch whose session was opened with the first inputs, before it is timed.

    Leaves it with the first inputs loaded and one launch done.

    Args:
        launch: of the open session.
        references: of the group.
        variant: the function the backend computes.
        budget: of the backend for this case.
        announce: called with the phase that begins, so that a crash can be attributed to it.
    """
    return Examination(launch, references, variant, budget, announce).run(Examination.before)


def recheck(
    launch: Launch,
    references: References,
    *,
    variant: str,
    budget: Budget,
    announce: Callable[[str], None] = lambda phase: None,
) -> Outcome:
    """Examine a launch again after it was timed; the first inputs are still loaded."""
    return Examination(launch, references, variant, budget, announce).run(Examination.after)


@dataclass(slots=True)
class Examination:
    """Procedures and state shared by the examinations of one launch."""

    launch: Launch
    references: References
    variant: str
    budget: Budget
    announce: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    state: GlobalState = field(init=False)

    def run(self, procedure: Callable[[Examination], Mapping[str, Error]]) -> Outcome:
        """Run a procedure and turn what it returns or raises into an outcome."""
        self.notes += self.references.notes
        # The oracle comes first, so that its memory and time are not attributed to the launch.
        for reference in (self.references.first, self.references.second):
            self.notes += [note for note in reference.truth(self.variant).notes if note not in self.notes]
        self.state = GlobalState.capture()
        reason, errors = None, None
        try:
            errors = procedure(self)
        except Wrong as wrong:
            reason, errors = str(wrong), wrong.errors
        finally:
            self._put_back()
            # This memory belongs to the harness; if kept, it would be counted as the launch's.
            self.references.forget()
        return Outcome(reason is None, reason, errors, tuple(self.notes), self.counters)

    def _put_back(self) -> None:
        self.notes += [note for note in self.state.restore() if note not in self.notes]

    def before(self) -> Mapping[str, Error]:
        """Check the launch before timing."""
        first, second = self.references.first, self.references.second
        self._budget_is_one(second.truth(self.variant))
        self.announce("check: first data")
        poison_free_memory(first.inputs.tensors().values(), self.references.device)
        outputs = self._finished(settle=True)
        errors = self._right(outputs, first)
        self._untouched()
        if (chosen := first.choice(self.variant, outputs)) is not None:
            self.counters = first.measures(self.variant, chosen)

        self.announce("check: fresh data")
        self.launch.reload(second.inputs)
        self._untouched("by reload: the session is to keep the new tensors, not to write into the old ones")
        outputs = self._finished()
        self._fresh(outputs)
        self._untouched()  # a second call may undo what one has changed

        self.announce("check: poisoned outputs")
        self._again(outputs)
        self._untouched()
        self._queued()

        self.announce("check: first data again")
        self.launch.reload(first.inputs)
        self._launch()
        self._synchronise()
        return errors

    def _budget_is_one(self, truth: Truth) -> None:
        """Raise if the backend's own budget accepts zeros where the default budget does not."""
        own, usual = self.budget, type(self.budget)()
        if own != usual and (names := accepts_zeros(truth, own) - accepts_zeros(truth, usual)):
            wide = f"factor={own.factor:g}, relative={own.relative:g}"
            raise Wrong(f"budget: {wide} accepts zeros for {', '.join(sorted(names))}: it holds them to nothing")

    def after(self) -> Mapping[str, Error]:
        """Check the outputs as timing left them."""
        first = self.references.first
        self.announce("check: after timing")
        self._synchronise()
        self._untouched("while the group was timed")
        words = "right before and wrong after timing: "
        outputs = self.launch.outputs()
        errors = self._right(outputs, first, words)
        self._right(self._poisoned(outputs), first, words)
        return errors

    def _again(self, outputs: Mapping[str, Tensor]) -> None:
        """Check a second call over poisoned outputs, whose inputs are overwritten once the call has returned."""
        second = self.references.second
        try:
            variation = Variation(second.workload, second.case, second.inputs)
            found = self._finished(settle=True, poisoned=outputs, overwritten=variation)
            self._right(found, second, "with its inputs overwritten after the call: ")
        except Wrong:
            # If it is also wrong without overwriting, the cause is another one and has its own message.
            self._right(self._poisoned(outputs), second, "wrong on a second call with the same inputs: ")
            raise

    def _queued(self) -> None:
        """On a GPU: check that the launch is ordered with its stream, before and after.

        Everything is queued while the stream is blocked.  A launch that works on another stream without waiting
        for this one reads old data.  If this stream does not wait for it, its outputs are not written yet, or it
        reads data that is loaded later.
        """
        device = self.references.device
        if device.type != "cuda":
            return
        import torch

        first, second = self.references.first, self.references.second
        self.announce("check: behind other work")
        torch.cuda.synchronize(device)
        torch.cuda._sleep(HELD_CYCLES)
        self.launch.reload(first.inputs)
        self._launch()
        found = {name: tensor.detach().clone() for name, tensor in self.launch.outputs().items()}
        self.launch.reload(second.inputs)
        torch.cuda.synchronize(device)
        self._right(found, first, "out of order with its stream: queued behind other work, ")

    def _launch(self, *, poisoned: Mapping[str, Tensor] | None = None) -> None:
        if self.launch.reset is not None:
            self.launch.reset()
        if poisoned is not None:
            # Poison after the untimed reset: the outputs have to be the work of the call.
            poison_outputs(poisoned if self.launch.reset is None else self.launch.outputs(), self.inputs())
            poison_free_memory(poisoned.values(), self.references.device)
        self.launch.call("fwd" if self.references.case.mode == "fwd" else "fwd-bwd")()

    def _synchronise(self) -> None:
        import torch

        if self.references.device.type == "cuda":
            torch.cuda.synchronize(self.references.device)

    def _poisoned(self, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._finished(settle=True, poisoned=outputs)

    def inputs(self) -> list[Tensor]:
        """Every tensor of both sets of inputs."""
        sets = (self.references.first.inputs, self.references.second.inputs)
        return [tensor for inputs in sets for tensor in inputs.tensors().values()]

    def _finished(
        self,
        *,
        settle: bool = False,
        poisoned: Mapping[str, Tensor] | None = None,
        overwritten: Variation | None = None,
    ) -> Mapping[str, Tensor]:
        """Launch, and compare the outputs when its own stream is done with the final ones."""
        import torch

        self._synchronise()
        self._launch(poisoned=poisoned)
        if overwritten is not None:
            overwritten.apply()
        try:
            # On the launch's stream: after its work, but not after work that it started elsewhere.
            outputs = self.launch.outputs()
            check_place(outputs, self.references.device)
            seen = {name: bits(tensor).clone() for name, tensor in outputs.items()}
            self._synchronise()
            if settle and self.references.device.type == "cpu":
                time.sleep(SETTLE_S)
            outputs = self.launch.outputs()
        finally:
            if overwritten is not None:
                overwritten.undo()
        for name, before in seen.items():
            if not torch.equal(before, bits(outputs[name])):
                count = int((before != bits(outputs[name])).sum())
                raise Wrong(
                    f"{name}: unfinished work: {count} of {before.numel()} elements changed after the "
                    "launch's stream was done; it does not wait for another stream or thread"
                )
        return outputs

    def _untouched(self, words: str = "") -> None:
        if names := self.references.changed():
            unique = ", ".join(dict.fromkeys(names))
            raise Wrong(f"changed inputs: {unique}{f' ({words})' if words else ''}")

    def _right(self, outputs: Mapping[str, Tensor], reference: Reference, words: str = "") -> Mapping[str, Error]:
        found, truth, result = self._compare(outputs, reference, words)
        if result.ok:
            return result.errors
        # Before poisoning, which overwrites these outputs.
        suspect = self._suspect(found, result, reference, truth)
        # An unwritten part that holds harmless values is only visible after poisoning.
        if not words:
            check_form(self._poisoned(outputs), truth, words)
        raise Wrong(words + "; ".join(result.faults.values()) + suspect, result.errors)

    def _fresh(self, outputs: Mapping[str, Tensor]) -> None:
        """Check the outputs for the second data; if wrong, check whether they are the answer to the first."""
        first, second = self.references.first, self.references.second
        _, truth, result = self._compare(outputs, second, "on fresh data: ")
        if result.ok:
            return
        # With a wrong choice the values prove nothing: all of them may be old.
        wrong = [name for name in result.faults if name in truth.oracle] or list(truth.oracle)
        old = first.select(dict(outputs)), self._truth(outputs, first)[0].oracle
        if matches(*old, truth, self.budget, wrong):
            raise Wrong(
                f"cached answer: after new inputs the outputs are still those of the old ones: {', '.join(wrong)}",
                result.errors,
            )
        raise Wrong("on fresh data: " + "; ".join(result.faults.values()), result.errors)

    def _compare(
        self, outputs: Mapping[str, Tensor], reference: Reference, words: str
    ) -> tuple[dict[str, Tensor], Truth, Comparison]:
        """Return the drawn parts of the outputs, the truth they are compared with, and the result."""
        import torch

        check_form(outputs, reference.truth(self.variant), words)
        truth, faults = self._truth(outputs, reference)
        budget = self.budget.on(reference.kind)
        with torch.no_grad():
            try:
                found = reference.select({name: outputs[name].detach() for name in truth.oracle})
            except AttnbenchError as wrong:
                raise Wrong(f"{words}{wrong}") from None
            return found, truth, Comparison({}, faults) if faults else compare(found, truth, budget)

    def _truth(self, outputs: Mapping[str, Tensor], reference: Reference) -> tuple[Truth, dict[str, str]]:
        """Return the truth for these outputs, and messages for a choice from which no truth follows."""
        chosen = reference.choice(self.variant, outputs)
        if chosen is None:
            return reference.truth(self.variant), {}
        # The outputs that follow from a choice are evaluated now; restore settings the launch may have left changed.
        self._put_back()
        self.announce("check: what follows from its choice")
        truth, faults = reference.follow(self.variant, chosen)
        if not faults and truth is not reference.truth(self.variant):
            said = reference.followed(self.variant)
            self.notes += [said] * (said not in self.notes)
        return truth, faults

    def hold(self, outputs: Mapping[str, Tensor], reference: Reference) -> None:
        """Check outputs against a reference, at any time.

        Raises:
            Wrong: they are wrong.
        """
        if reference.choice(self.variant, outputs) is not None:
            self.state = GlobalState.capture()  # restored before what follows from the choice is evaluated
        _, _, result = self._compare(outputs, reference, "")
        self.references.forget()
        if not result.ok:
            raise Wrong("; ".join(result.faults.values()), result.errors)

    def is_gradient(self, name: str) -> bool:
        """Return whether an output is a gradient."""
        return self.references.kinds(self.variant).get(name) is OutputKind.GRADIENT

    def _suspect(self, found: dict[str, Tensor], result: Comparison, reference: Reference, truth: Truth) -> str:
        workload, case = reference.workload, reference.case
        for words, answer in workload.suspects(self.variant, case, reference.inputs, draw=reference.draw):
            if matches(found, answer, truth, self.budget, result.faults):
                return f"; matches {words}"
        return ""


def check_place(outputs: Mapping[str, Tensor], device: torch.device) -> None:
    """Refuse what is no mapping of names to tensors in memory of the case's device: nothing could be read of it."""
    import torch

    if not isinstance(outputs, Mapping):
        raise Wrong(f"outputs: type={type(outputs).__name__} is wrong; a dict of tensors by their names")
    for name, found in outputs.items():
        if not isinstance(name, str):
            raise Wrong(f"outputs: name={repr(name)[:40]} is wrong; a text")
        if not isinstance(found, torch.Tensor):
            raise Wrong(f"{name}: type={type(found).__name__} is wrong; torch.Tensor")
        if found.device.type != device.type:
            raise Wrong(f"{name}: device={found.device} is wrong; {device.type}")
        if found.layout is not torch.strided:
            raise Wrong(f"{name}: layout={found.layout} is wrong; {torch.strided}")


def check_form(outputs: Mapping[str, Tensor], truth: Truth, words: str) -> None:
    """Refuse outputs that are missing, of another class or dtype, unwritten or not finite."""
    import torch

    for name in truth.oracle:
        if name not in outputs:
            raise Wrong(f"{words}{name}: missing from the outputs ({', '.join(outputs)})")
        if type(outputs[name]) not in (torch.Tensor, torch.nn.Parameter):
            raise Wrong(
                f"{words}{name}: type={type(outputs[name]).__name__} is wrong; torch.Tensor: a class of its own may "
                "compute when it is read"
            )
        if outputs[name].dtype != truth.dtype:
            raise Wrong(f"{words}{name}: dtype={outputs[name].dtype} is wrong; {truth.dtype}")
    faults = [fault for name in truth.oracle if (fault := unusable(name, outputs[name].detach()))]
    if faults:
        raise Wrong(words + "; ".join(faults))
