"""One look at a sample of a launch: was the work done, all of it, and inside the sample?

A launch is right in every check and still misleading where its answer comes from elsewhere: computed by
`outputs`, `reload` or `reset`, which are not timed; kept from a call on the same data; left to a thread.
So a drawn sample is taken on data that the launch has never seen (`variation`), over spoiled outputs, and
held against the ordinary samples:

    outputs spoiled, new data loaded, the call timed      right? as fast as on data it knows, and as a few in a row?
    `outputs` twice                                       does the first one wait, or compute?
    time of `reload`, `reset`, `outputs`                  no more than copies?
    torch operators in them                               no products of matrices?

Limits are wide, and a loaded machine must convict nobody.  Each limit compares two series, taken in turn, by
their smallest values (`stats.ranks`): pauses lengthen both and hide neither.  Few looks raise a suspicion;
looks go on until a chance of one in a million is left that the limit is kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
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

LEAST = 3
"""Looks on a CPU at a call shorter than `SHORT_MS`: a pause of the machine in one of them lets nobody off."""
SHORT_MS = 10.0
FEW = 12
"""Looks before an order that could well be chance lets a launch off."""
MOST_LOOKS = 100
"""Looks after which a launch is let off, if nothing is certain by then."""
CHANCE = 1e-6
"""Of calling a launch misleading by a limit that it keeps."""
SLOWER = {"cpu": 1.5, "cuda": 1.25}
"""Times an ordinary sample that a call on new data may take; honest kernels of an H200 took 0.93 to 1.03."""
COPIES = 10.0
"""Times a plain copy of the tensors concerned that `reload`, `reset` and `outputs` may take: layouts differ."""
AHEAD_CYCLES = 10_000_000
"""How long a GPU's stream is held, in cycles of its clock (some 5 ms), while a call and its outputs are queued."""
THREAD_S = 1e-3
"""Given to a thread that `reload` has started to queue its work on a GPU."""
LEFT_SLACK_MS = 0.1
"""Always allowed of that work: two waits for a device that has nothing to do."""
CACHES = 4.0
"""Times such a copy that a call may take longer where its tensors have left the caches."""
SHARE = 0.5
"""Share of a sample on new data that they may take in any case, and that outputs may come late."""
BACKWARD = 0.2
"""Least time of a backward as a share of its forward: it has at least as many products."""
SLACK_MS = {"cpu": 0.03, "cuda": 0.01}
"""Always allowed of a call: a cold instruction cache, the tick of a timer."""
HOST_SLACK_MS = {"cpu": 0.1, "cuda": 0.5}
"""Always allowed of what is not timed: Python, and on a GPU the first launches after a synchronisation."""


@dataclass(slots=True, kw_only=True)
class _Look:
    """Times of one look, ms."""

    repeated: float
    "a call, mean of the last two of a few in a row"
    ordinary: float
    "a call with caches as before the next"
    new: float
    "the sample on new data"
    untimed: dict[str, float] = field(default_factory=dict)
    "of reload, reset, outputs, and in mode bwd of the forward"
    first: float = 0.0
    "of outputs right after the call; `untimed` has that of a second time"
    whole: float = 0.0
    "from where the call could begin until its outputs were there, less what they take a second time"
    copies: float = 0.0
    "of all inputs and outputs"
    left: tuple[float, float] | None = None
    "on a GPU, what it had still to do once a reload, and copies of all inputs and outputs, had returned"
    spent: tuple[float, float] | None = None
    """CPU time of all threads, on a CPU: from loading new data until its outputs were there, and for a call on known
    data and loading it, each until it returned"""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    words: str
    certain: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """A limit: that `above` is not larger than `below`, look by look."""

    above: list[float]
    below: list[float]
    words: str


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
        self,
        launch: Launch,
        references: References,
        *,
        variant: str,
        budget: Budget,
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
        self._released: _Moment | None = None
        "when the last call could begin"
        self._ordinary: _Moment | None = None
        "from then to the next call's preparation, for the last ordinary call"
        self._loading = _Moment(0.0, 0.0)
        "when the new data began to be loaded"

    def disturb(self) -> None:
        """Touch as much memory as `prepare` does, and leave the launch as it is."""
        self.variation.apply()
        self._copy(self.launch.outputs())
        self.variation.undo()
        if self.mode == "bwd":
            self.launch.forward()
        if self.launch.reset is not None:
            self.launch.reset()
        self._released = _Moment.now()

    def prepare(self) -> None:
        """Spoil the outputs, load data never seen, reset; in mode bwd run the forward.

        Nothing comes between loading and the call: a thread that `reload` starts has no time to compute the answer.
        """
        launch, mode = self.launch, self.mode
        self._ordinary = self._released and _Moment.now() - self._released
        old = launch.outputs()
        if mode == "bwd":
            # The backward may read the output and the choice of the forward.
            old = {name: tensor for name, tensor in old.items() if self.examination.is_gradient(name)}
        poison_outputs(old, self.examination.inputs())
        self.variation.apply()
        self._spans = {}
        self._loading = _Moment.now()
        with self._span("reload"):
            launch.reload(self.references.second.inputs)
        if mode == "bwd":
            with self._span("forward"):
                launch.forward()
        if launch.reset is not None:
            with self._span("reset"):
                launch.reset()
        self._released = _Moment.now()

    def finish(self, repeated_ms: float, ordinary_ms: float, new_ms: float) -> str | None:
        """Look at what the sample left, load the first data again and call once.

        Args:
            repeated_ms: mean of two samples, the last of a few in a row as they are recorded.
            ordinary_ms: a sample after `disturb`.
            new_ms: the sample on new data.

        Returns:
            Words for what is wrong; None where nothing is, or more looks are needed (`undecided`).
        """
        look = _Look(repeated=repeated_ms, ordinary=ordinary_ms, new=new_ms)
        outputs = self._outputs(look)
        self.announce("inspection")
        fault = self._wrong(outputs) or self._computes_untimed(look, outputs)
        look.untimed |= {name: span.ms() for name, span in self._spans.items()}
        look.copies = self._copies_ms(outputs)
        self._looks.append(look)
        suspicion = None if fault else self._suspicion()
        least = 1 if fault or self.cuda or new_ms >= SHORT_MS else LEAST
        if (suspicion is None and len(self._looks) >= least) or len(self._looks) >= MOST_LOOKS:
            self._looks.clear()
        return fault or (suspicion.words if suspicion and suspicion.certain else None)

    @property
    def undecided(self) -> bool:
        """Whether more looks are needed: there are few so far, or they raise a suspicion."""
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
            if not self.cuda and self._released and len(times) == 1:
                # By the host's clock, until the outputs are there: a thread may do the work while this one is held up.
                look.whole = (_Moment.now() - self._released).wall_ms
                if self._ordinary:
                    look.spent = (_Moment.now() - self._loading).cpu_ms, self._ordinary.cpu_ms
        look.first, look.untimed["outputs"] = times
        look.whole -= times[1]
        look.ordinary = look.ordinary if self.cuda or self._ordinary is None else self._ordinary.wall_ms
        self._released = None
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

    def _computes_untimed(self, look: _Look, outputs: Mapping[str, Tensor]) -> str | None:
        """Load the first data and call once, with an eye on the operators of what is not timed."""
        launch = self.launch
        calls: dict[str, Callable[[], object]] = {
            "outputs": launch.outputs,
            "reload": lambda: launch.reload(self.references.first.inputs),
        }
        if launch.reset is not None:
            calls["reset"] = launch.reset
        found = {}
        began = _Moment.now()
        for name, call in calls.items():
            with products() as names:
                call()
            found[name] = names
        if self.cuda:
            look.left = self._left_to_do(calls["reload"]), self._left_to_do(lambda: self._copy(outputs))
            if launch.reset is not None:
                launch.reset()
        if self.mode == "bwd":
            launch.forward()
        if look.spent:
            look.spent = look.spent[0], look.spent[1] + (_Moment.now() - began).cpu_ms
        call = launch.call(self.mode)
        if self.cuda:
            self._queued(call, look)
        else:
            call()
        words = (f"{name} computes: it calls {', '.join(sorted(names))}" for name, names in found.items() if names)
        return next((f"{one}, and is not timed" for one in words), None)

    def _left_to_do(self, call: Callable[[], object]) -> float:
        """On a GPU: how long it works once a call has returned, on whatever stream, for whatever thread; ms."""
        self._synchronise()
        call()
        spent = 0.0
        for pause_s in (0.0, THREAD_S):
            time.sleep(pause_s)
            started = time.perf_counter()
            self._synchronise()
            spent += 1e3 * (time.perf_counter() - started)
        return spent

    def _queued(self, call: Callable[[], object], look: _Look) -> None:
        """On a GPU: what does the stream get to do after the call has returned, until its outputs are there?

        The stream is held meanwhile, so that only what is queued counts, not how long the host takes: a thread
        that launches kernels after the call has returned puts them behind its end.  Where that thread is quick, or
        this one is held up, they come before the end is recorded; they are part of the whole in any case.
        """
        import torch

        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self._synchronise()
        torch.cuda._sleep(AHEAD_CYCLES)
        marks[0].record()
        call()
        marks[1].record()
        for mark in marks[2:]:
            self.launch.outputs()
            mark.record()
        self._synchronise()
        inside, look.first, look.untimed["outputs"] = (float(a.elapsed_time(b)) for a, b in pairwise(marks))
        look.whole = inside + look.first - look.untimed["outputs"]

    def _suspicion(self) -> _Suspicion | None:
        """What the looks so far agree on."""
        found = [suspicion for rule in self._rules() if (suspicion := self._judged(rule))]
        return next((one for one in found if one.certain), found[0] if found else None)

    def _rules(self) -> Iterator[_Rule]:
        looks, kind = self._looks, "cuda" if self.cuda else "cpu"
        slack, host_slack = SLACK_MS[kind], HOST_SLACK_MS[kind]
        new, copies = [look.new for look in looks], [look.copies for look in looks]
        call, first = min(new), statistics.median(look.first for look in looks)
        late = f"unfinished work: a call returns after {_said(call)}, its outputs are there {_said(first)} later"
        if self.cuda:
            yield _Rule(
                [look.first - SHARE * call - slack for look in looks], [look.untimed["outputs"] for look in looks], late
            )
            yield _Rule([(look.whole - slack) / SLOWER[kind] for look in looks], new, late)
        if "forward" in looks[0].untimed:
            forward = [look.untimed["forward"] for look in looks]
            yield _Rule(
                [BACKWARD * spent - host_slack for spent in forward],
                new,
                f"a backward takes {_said(call)}, its forward {_said(min(forward))}: the work is done in the forward",
            )
        for name in looks[0].untimed.keys() - {"forward"}:
            spent = [look.untimed[name] for look in looks]
            yield _Rule(
                [(one - SHARE * call - host_slack) / COPIES for one in spent],
                copies,
                f"{name} takes {_said(min(spent))}, a copy of all inputs and outputs {_said(min(copies))}, a "
                f"call {_said(call)}: work is done outside the sample",
            )
        if left := [look.left for look in looks if look.left]:
            reloaded, copied = ([times[side] for times in left] for side in (0, 1))
            yield _Rule(
                [(one - SHARE * call - LEFT_SLACK_MS) / COPIES for one in reloaded],
                copied,
                f"what reload leaves to the device takes {_said(min(reloaded))}, copies of all inputs and outputs "
                f"{_said(min(copied))}, a call {_said(call)}: work is done outside the sample",
            )
        whole = [((look.new if self.cuda else look.whole) - slack) / SLOWER[kind] for look in looks]
        # A launch may also tell by a pause, or by who asks for its outputs, that it is looked at; between samples that
        # follow one another as they are recorded nobody asks. Their caches are warm: less what copies take.
        cold = CACHES * min(copies) / SLOWER[kind]
        repeated, ordinary = [look.repeated for look in looks], [look.ordinary for look in looks]
        for above, below in ((whole, ordinary), ([one - cold for one in whole], repeated)):
            words = (
                f"a call on data it has not seen takes {_said(call)}, on data it has "
                f"{_said(statistics.median(below))}: its samples are not the time of its work"
            )
            yield _Rule(above, below, late if first > call and not self.cuda else words)
        if cpu_ms := [look.spent for look in looks if look.spent]:
            unseen, seen = ([times[side] for times in cpu_ms] for side in (0, 1))
            yield _Rule(
                [(one - slack) / SLOWER[kind] - cold for one in unseen],
                seen,
                f"until a call on data it has not seen is done, all threads compute for {_said(min(unseen))}, for one "
                f"on data it has {_said(min(seen))}: its samples are not the time of its work",
            )

    def _judged(self, rule: _Rule) -> _Suspicion | None:
        count, chance = len(self._looks), chance_of_lead(rule.above, rule.below)
        if chance == 1.0 or (count > FEW and chance > 1 / count):
            return None
        return _Suspicion(rule.words, chance < CHANCE)

    def _copies_ms(self, outputs: Mapping[str, Tensor]) -> float:
        """What plain copies of inputs and outputs take."""
        self._synchronise()
        started = time.perf_counter()
        self._copy(outputs)
        self._synchronise()
        return 1e3 * (time.perf_counter() - started)

    def _copy(self, outputs: Mapping[str, Tensor]) -> None:
        for tensor in (*self.references.second.inputs.tensors().values(), *outputs.values()):
            tensor.detach().clone()

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


@dataclass(frozen=True, slots=True)
class _Moment:
    """The host's clock and the CPU time of all threads of this process; or what lies between two of these."""

    wall_ms: float
    cpu_ms: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(1e3 * time.perf_counter(), 1e3 * time.process_time())

    def __sub__(self, before: _Moment) -> _Moment:
        return _Moment(self.wall_ms - before.wall_ms, self.cpu_ms - before.cpu_ms)


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
