"""Dense softmax attention: causal and windowed masks, GQA, decode, variable length, gradients.

Imports without torch; the methods that make or read tensors import what they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import Work
from attnbench.workloads.attention.axes import ACCEPTED_WINDOW, AXES, parse_window
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.work import work
from attnbench.workloads.base import ATTENTION_KINDS, Draw, OutputKind, Workload

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as torch_dtype

    from attnbench.workloads.attention.inputs import AttentionInputs

__all__ = ["WORKLOAD", "AttentionCase", "AttentionWorkload"]


class AttentionWorkload(Workload[AttentionCase, "AttentionInputs"]):
    """Softmax attention of queries over all visible keys."""

    name = "attention"
    title = "dense softmax attention"
    axes = AXES
    input_kinds = ATTENTION_KINDS
    captured = True
    variants = ("softmax",)

    def outputs(self, variant: str) -> Mapping[str, OutputKind]:
        """Return out, and in modes with a backward dq, dk and dv."""
        self._known(variant)
        return {"out": OutputKind.VALUE} | dict.fromkeys(("dq", "dk", "dv"), OutputKind.GRADIENT)

    def case(self, values: Mapping[str, Any]) -> AttentionCase:
        """Build a case from axis values or from `AttentionCase.to_dict`; missing values get the axis default.

        A window may be a tuple or list of two numbers, one number (right is then 0 if causal, else the
        same), the text of the flag, or None.

        Raises:
            UsageError: an axis is unknown or a value is not allowed.
        """
        filled = self.filled(values)
        filled["window"] = _window(filled["window"], filled["causal"])
        return AttentionCase(**filled)

    def work(self, case: AttentionCase) -> Work:
        """Return exact useful FLOPs and least bytes; `work.py` says what is counted."""
        return work(case)

    def inputs(self, case: AttentionCase, *, seed: int, kind: str, device: str | device) -> AttentionInputs:
        """Return seeded inputs; see `inputs.make_inputs`."""
        from attnbench.workloads.attention.inputs import make_inputs

        return make_inputs(case, seed=seed, kind=kind, device=device)

    def captured_axes(self, name: str) -> Mapping[str, int]:
        """Return the shape of a file's tensors."""
        from attnbench.workloads.attention.captured import axes_of

        return axes_of(name)

    def notes_of(self, inputs: AttentionInputs) -> Sequence[str]:
        """Return which rows of captured tensors are all 0."""
        return inputs.notes

    def oracle(
        self, variant: str, case: AttentionCase, inputs: AttentionInputs, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return out (and dq, dk, dv unless the mode is fwd) of the drawn pairs; `parts.py` has the layout."""
        from attnbench.workloads.attention.oracle import evaluate

        self._known(variant)
        return evaluate(case, inputs, dtype=dtype, draw=draw)

    def expected_errors(
        self, variant: str, case: AttentionCase, inputs: AttentionInputs, *, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the standard deviation of rounding errors of each element; derived in `rounding.py`."""
        from attnbench.workloads.attention.rounding import expected_errors

        self._known(variant)
        return expected_errors(case, inputs, draw=draw)

    def draw(self, case: AttentionCase, *, seed: int, max_bytes: int) -> Draw:
        """Return all (sequence, KV head) pairs if the fp64 oracle fits, else the corners and a seeded draw."""
        from attnbench.workloads.attention.parts import choose

        return choose(case, seed=seed, max_bytes=max_bytes)

    def select(self, case: AttentionCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """Return the drawn pairs of a backend's whole outputs, in the oracle's layout."""
        from attnbench.workloads.attention.parts import select

        return select(case, outputs, draw)

    def suspects(
        self, variant: str, case: AttentionCase, inputs: AttentionInputs, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        """Wrong alignment, a missing mask, window or scale, wrongly assigned KV heads: those that apply."""
        from attnbench.workloads.attention.suspects import suspects

        self._known(variant)
        return suspects(case, inputs, draw=draw)

    def signs(self, case: AttentionCase) -> Mapping[str, str]:
        """Scores keep their bits; out, like v, changes sign by dimension, and dq like q."""
        return {"q": "qk", "k": "qk", "dq": "qk", "dk": "qk", "v": "v", "dout": "v", "out": "v", "dv": "v"}

    def shrink(self, case: AttentionCase, factor: float) -> AttentionCase | None:
        """Return a case of fewer sequences, or for one sequence a shorter one; None if nothing smaller is left.

        Memory is taken as proportional to batch × seqlen, so the advice is conservative for an
        implementation that stores the scores.
        """
        if not 0 < factor < 1:
            return None
        batch = max(1, int(case.batch * factor))
        share = min(1.0, factor * case.batch / batch)
        seqlen, seqlen_k = (_shorter(length, share) for length in (case.seqlen, case.seqlen_k))
        if min(seqlen, seqlen_k) < 1:
            return None
        lengths = case.lengths
        if lengths[0].isdigit():
            kept = case.sequences[:batch]
            lengths = ":".join(f"{min(queries, seqlen)}/{min(keys, seqlen_k)}" for queries, keys in kept)
        smaller = replace(case, batch=batch, seqlen=seqlen, seqlen_k=seqlen_k, lengths=lengths)
        return None if smaller == case else smaller

    def _known(self, variant: str) -> None:
        if variant not in self.variants:
            raise unknown(self.name, "variant", variant, self.variants)


def _window(window: object, causal: object) -> object:
    if isinstance(window, str):
        try:
            window = parse_window(window)
        except ValueError:
            raise UsageError(refusal("attention", "window", window, "is not a window", ACCEPTED_WINDOW)) from None
    if type(window) is int:
        return window, 0 if causal else window
    return tuple(window) if isinstance(window, list) else window


def _shorter(length: int, share: float) -> int:
    """Scale a length down, to a multiple of 64 if large enough; a single query is kept."""
    if share >= 1 or length == 1:
        return length
    scaled = int(length * share)
    return scaled - scaled % 64 if scaled >= 64 else scaled


WORKLOAD = AttentionWorkload()
