"""One look at a sample of a launch: was the work done, all of it, and inside the sample?

A launch is right in every check and still misleading where its answer comes from elsewhere: computed by
`outputs`, `reload` or `reset`, which are not timed; kept from a call on the same data; left to a thread.
So a drawn sample is taken on data that the launch has never seen (`variation`), over spoiled outputs, and
held against the ordinary samples:

    new data loaded, outputs spoiled, the call timed      right? as fast as on data it knows?
    `outputs` twice                                       does the first one wait, or compute?
    time of `reload`, `reset`, `outputs`                  no more than copies?
    torch operators in them                               no products of matrices?

Limits are wide, and a loaded machine must convict nobody.  Calls on new data and on known data are taken in
turn and compared by their smallest (`stats.ranks`), until a chance of one in a million is left that they are alike;
the other limits must be passed by the *fastest* of several looks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnbench.check.examine import Examination, Wrong, check_form
from attnbench.check.poison import poison_outputs
from attnbench.check.products import products
from attnbench.check.reference import References
from attnbench.check.variation import Variation
from attnbench.stats.ranks import chance_of_lead

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.backends.base import Budget, Launch

LOOKS = 9
"""Looks whose fastest must pass a limit before a launch is called misleading."""
FEW = 4
"""Looks before an order that could well be chance lets a launch off."""
MOST_LOOKS = 24
"""Looks after which a launch is not, if it is still not certain."""
CHANCE = 1e-6
"""Of calling a launch slower on new data that is as fast."""
SLOWER = {"cpu": 1.5, "cuda": 1.25}
"""Times an ordinary sample that a call on new data may take; honest kernels of an H200 took 0.93 to 1.03."""
COPIES = 10.0
"""Times a plain copy of the tensors concerned that `reload`, `reset` and `outputs` may take: layouts differ."""
SHARE = 0.5
"""Share of a sample on new data that they may take in any case, and that outputs may come late."""
BACKWARD = 0.2
"""Least time of a backward as a share of its forward: it has at least as many products."""
SLACK_MS = {"cpu": 0.02, "cuda": 0.01}
"""Always allowed of a call: a cold instruction cache, the tick of a timer."""
HOST_SLACK_MS = {"cpu": 0.1, "cuda": 0.5}
"""Always allowed of what is not timed: Python, and on a GPU the first launches after a synchronisation."""


@dataclass(slots=True, kw_only=True)
class _Look:
    """Times of one look, ms."""

    ordinary: float
    quick: float
    "the smaller of that and the quickest of the recorded samples"
    new: float
    "the sample on new data"
    untimed: dict[str, float] = field(default_factory=dict)
    "of reload, reset, outputs, and in mode bwd of the forward"
    late: float = 0.0
    "how much longer outputs took right after the call than once more"
    copies: float = 0.0
    "of all inputs and outputs"


@dataclass(frozen=True, slots=True)
class _Suspicion:
    words: str
    certain: bool


class Inspection:
    """Looks at the samples of one launch; an `Inspector` of `measure.subject`.

    The launch has the first inputs loaded and was called; so it has after each look.

    Args:
        launch: of the open session.
        references: of the group.
        variant: the function the backend computes.
        budget: of the backend for this case.
        announce: told what is about to be done, for the worker's blame.
    """

    def __init__(
        self, launch: Launch, references: References, *, variant: str, budget: Budget,
        announce: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self.launch, self.references, self.announce = launch, references, announce
        self.examination = Examination(launch, references, variant, budget, announce)
        case, second = references.case, references.second
        self.mode: str = case.mode
        self.variation = Variation(second.workload, case, second.inputs)
        self.cuda = references.device.type == "cuda"
        self._spans: dict[str, _Span] = {}
        self._looks: list[_Look] = []

    def disturb(self) -> None:
        """Touch as much memory as `prepare` does, and leave the launch as it is."""
        self.variation.apply()
        for tensor in (*self.references.second.inputs.tensors().values(), *self.launch.outputs().values()):
            tensor.detach().clone()
        self.variation.undo()
        if self.mode == "bwd":
            self.launch.forward()
        if self.launch.reset is not None:
            self.launch.reset()

    def prepare(self) -> None:
        """Load data never seen, reset, spoil the outputs; in mode bwd run the forward."""
        launch, mode = self.launch, self.mode
        old = launch.outputs()
        self.variation.apply()
        self._spans = {}
        with self._span("reload"):
            launch.reload(self.references.second.inputs)
        if mode == "bwd":
            with self._span("forward"):
                launch.forward()
            # The backward may read the output and the choice of the forward.
            old = {name: tensor for name, tensor in old.items() if self.examination.is_gradient(name)}
        if launch.reset is not None:
            with self._span("reset"):
                launch.reset()
        poison_outputs(old, self.examination.inputs())

    def finish(self, ordinary_ms: float, new_ms: float, quick_ms: float) -> str | None:
        """Look at what the sample left, load the first data again and call once.

        Args:
            ordinary_ms: an ordinary sample taken just before.
            new_ms: the sample on new data.
            quick_ms: what the quickest of the recorded samples took.

        Returns:
            Words for what is wrong; None where nothing is, or more looks are needed (`undecided`).
        """
        look = _Look(ordinary=ordinary_ms, new=new_ms, quick=min(ordinary_ms, quick_ms))
        self.announce("inspection")
        outputs = self._outputs(look)
        fault = self._wrong(outputs) or self._computes_untimed()
        look.untimed |= {name: span.ms() for name, span in self._spans.items()}
        look.copies = self._copies_ms(outputs)
        self._looks.append(look)
        suspicion = None if fault else self._suspicion()
        if suspicion is None or len(self._looks) >= MOST_LOOKS:
            self._looks.clear()
        return fault or (suspicion.words if suspicion and suspicion.certain else None)

    @property
    def undecided(self) -> bool:
        """Whether the looks so far raise a suspicion that more of them must confirm."""
        return bool(self._looks)

    # ── what is looked at ──────────────────────────────────────────────────────────────────────────

    def _outputs(self, look: _Look) -> Mapping[str, Tensor]:
        """The outputs, as soon as the call has returned, and how long they took to come."""
        times = []
        for _ in range(2):
            started = time.perf_counter()
            outputs = self.launch.outputs()
            self._synchronise()
            times.append(1e3 * (time.perf_counter() - started))
        look.late, look.untimed["outputs"] = times[0] - times[1], times[1]
        return outputs

    def _wrong(self, outputs: Mapping[str, Tensor]) -> str | None:
        """Hold outputs on new data against the answer that is known for it."""
        second = self.references.second
        self.variation.undo()
        found = self.variation.unsigned(outputs)
        self.variation.renew()
        try:
            check_form(outputs, second.truth(self.examination.variant), "")
            self.examination.hold(found, second)
        except Wrong as wrong:
            return f"in a timed call on new data: {wrong}"
        return None

    def _computes_untimed(self) -> str | None:
        """Load the first data and call once, with an eye on the operators of what is not timed."""
        launch = self.launch
        calls: dict[str, Callable[[], object]] = {
            "outputs": launch.outputs, "reload": lambda: launch.reload(self.references.first.inputs)}
        if launch.reset is not None:
            calls["reset"] = launch.reset
        found = {}
        for name, call in calls.items():
            with products() as names:
                call()
            found[name] = names
        launch.call("fwd" if self.mode == "fwd" else "fwd-bwd")()
        self._synchronise()
        return next((f"{name} computes: it calls {', '.join(sorted(names))}, and is not timed"
                     for name, names in found.items() if names), None)

    def _suspicion(self) -> _Suspicion | None:
        """What the looks so far agree on."""
        looks, kind = self._looks, "cuda" if self.cuda else "cpu"
        slack, host_slack = SLACK_MS[kind], HOST_SLACK_MS[kind]
        enough = len(looks) >= LOOKS
        ordinary, copies = (statistics.median(getattr(look, name) for look in looks) for name in ("ordinary", "copies"))
        new, late = (min(getattr(look, name) for look in looks) for name in ("new", "late"))
        if late > SHARE * new + host_slack / 2:
            return _Suspicion(f"unfinished work: a call returns after {_said(new)}, its outputs are there "
                              f"{_said(late)} later", enough)
        untimed = {name: min(look.untimed[name] for look in looks) for name in looks[0].untimed}
        forward = untimed.pop("forward", 0.0)
        if new < BACKWARD * forward - host_slack:
            return _Suspicion(f"a backward takes {_said(new)}, its forward {_said(forward)}: the work is done in the "
                              "forward", enough)
        for name, spent in untimed.items():
            if spent > COPIES * copies + SHARE * new + host_slack:
                return _Suspicion(f"{name} takes {_said(spent)}, a copy of all inputs and outputs {_said(copies)}, a "
                                  f"call {_said(new)}: work is done outside the sample", enough)
        limits = [(look.new - slack) / SLOWER[kind] for look in looks]
        chance = chance_of_lead(limits, [look.ordinary for look in looks])
        # One pause in an ordinary call lets nobody off: a first look is compared with the quickest calls too.
        suspect = limits[0] > looks[0].quick if len(looks) == 1 else chance < 1.0
        if suspect and (len(looks) <= FEW or chance <= 1 / len(looks)):
            return _Suspicion(f"a call on data it has not seen takes {_said(new)}, on data it has {_said(ordinary)}: "
                              "its samples are not the time of its work", chance < CHANCE)
        return None

    def _copies_ms(self, outputs: Mapping[str, Tensor]) -> float:
        """What plain copies of inputs and outputs take."""
        tensors = [*self.references.second.inputs.tensors().values(), *outputs.values()]
        self._synchronise()
        started = time.perf_counter()
        for tensor in tensors:
            tensor.detach().clone()
        self._synchronise()
        return 1e3 * (time.perf_counter() - started)

    def _synchronise(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize(self.references.device)

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        span = self._spans[name] = _Span(cuda=self.cuda)
        span.begin()
        yield
        span.end()


class _Span:
    """Time of untimed calls: the host's on a CPU, the device's on a GPU, where the host is ahead."""

    def __init__(self, *, cuda: bool) -> None:
        self._events = None
        if cuda:
            import torch

            self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._host_ms = 0.0

    def begin(self) -> None:
        if self._events:
            self._events[0].record()
        self._host_ms = -1e3 * time.perf_counter()

    def end(self) -> None:
        self._host_ms += 1e3 * time.perf_counter()
        if self._events:
            self._events[1].record()

    def ms(self) -> float:
        """Milliseconds, after a synchronisation; 0 where the device may have waited for the host in between."""
        if not self._events:
            return self._host_ms
        spent = float(self._events[0].elapsed_time(self._events[1]))
        return spent if self._host_ms < SHARE * spent else 0.0


def _said(ms: float) -> str:
    return f"{ms:.3g} ms" if ms >= 1 else f"{1e3 * ms:.3g} µs"
