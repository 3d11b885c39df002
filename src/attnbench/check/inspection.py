"""One inspection ("look") of a timed sample: was all the work done, and inside the sample?

A launch can pass every check and still have misleading times if its answer is computed elsewhere: in `outputs`,
`reload` or `reset`, which are not timed; in an earlier call on the same data; or in another thread.  So at random
moments a sample is taken on data that the launch has never seen (`variation`), over overwritten outputs, and compared
with ordinary samples:

    outputs of the last recorded sample                   right?
    outputs of a few calls in a row on known data         right?
    outputs overwritten, new data loaded, call timed      right? as fast as on known data, as a few calls in a row, and
                                                          as the last recorded samples?
    `outputs` read twice                                  does the first read wait, or compute?
    time of `reload`, `reset`, `outputs`                  no more than copies?
    torch operators in them                               no matrix products?

The limits are in `looks`.  Where launches compute in other processes (`Workload.in_ranks`), only calls are timed: outputs
and new data pass through host memory there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from attnbench.check.examine import Examination, Wrong, check_form
from attnbench.check.looks import SHARE, Look, suspicion
from attnbench.check.poison import poison_outputs
from attnbench.check.products import products
from attnbench.check.reference import References
from attnbench.check.variation import Variation

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.backends.base import Budget, Launch

LEAST = 3
"""Least number of looks on a CPU at a call shorter than `SHORT_MS`: one look may fall into a pause of the machine."""
SHORT_MS = 10.0
MOST_LOOKS = 100
"""Number of looks after which a launch is cleared, if nothing is certain by then."""
AHEAD_CYCLES = 10_000_000
"""How long a GPU's stream is blocked, in cycles of its clock (some 5 ms), while outputs are queued behind a call."""
CYCLES_PER_S = 2e9
"""Cycles a second of the highest clock, about: how long it is also blocked while the call is queued."""
THREAD_S = 1e-3
"""Time for a thread started by `reload` to queue its work on a GPU."""


class Inspection:
    """Inspects the samples of one launch; an `Inspector` of `measure.subject`.

    The launch must have the first inputs loaded and have been called; each look leaves it in that state.

    Args:
        launch: of the open session.
        references: of the group.
        variant: the function the backend computes.
        budget: of the backend for this case.
        announce: called with the phase that begins, so that a crash can be attributed to it.
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
        self.in_ranks = second.workload.in_ranks
        self._spans: dict[str, _Span] = {}
        self._looks: list[Look] = []
        self._shortest_ms = math.inf
        "over all calls that were inspected, and the samples recorded before them"
        self._known: Mapping[str, Tensor] | None = None
        "copies of the outputs of calls on known data, since the last look"
        self._released: float | None = None
        "when the last call could start, ms of the wall clock"
        self._ordinary: float | None = None
        "from then to the preparation of the next call, for the last ordinary call, ms"
        self._loading = 0.0
        "when loading of the new data started, ms of the wall clock"

    def begin(self) -> str | None:
        """Check the outputs that the last recorded sample has left, which no call of this look has seen yet."""
        # Not kept until `finish`: the launch may have left no memory for one more copy.
        return self._wrong_on_known(_taken(self.launch), "in a recorded sample: ")

    def disturb(self) -> None:
        """Touch as much memory as `prepare` does, and leave the launch unchanged."""
        self._known = _taken(self.launch)
        self.variation.apply()
        _copy(self._inputs())
        self.variation.undo()
        if self.mode == "bwd":
            self.launch.forward()
        if self.launch.reset is not None:
            self.launch.reset()
        self._released = _now_ms()

    def prepare(self) -> None:
        """Overwrite the outputs, load new data and reset; in mode bwd also run the forward.

        The call follows directly after loading: a thread started by `reload` has no time to compute the answer.
        """
        launch, mode = self.launch, self.mode
        self._ordinary = self._released and _now_ms() - self._released
        if self._known is None:
            self._known = _taken(launch)
        old = dict(launch.outputs().items())
        if mode == "bwd":
            # The backward may read the output and the choice of the forward.
            old = {name: tensor for name, tensor in old.items() if self.examination.is_gradient(name)}
        poison_outputs(old, self.examination.inputs())
        self.variation.apply()
        self._spans = {}
        self._loading = _now_ms()
        with self._span("reload"):
            launch.reload(self.references.second.inputs)
        if mode == "bwd":
            with self._span("forward"):
                launch.forward()
        if launch.reset is not None:
            with self._span("reset"):
                launch.reset()
        self._released = _now_ms()

    def finish(
        self, recorded_ms: float | None, repeated_ms: float, ordinary_ms: float, new_ms: float, lead_s: float
    ) -> str | None:
        """Evaluate the sample, then load the first data again and call once.

        Args:
            recorded_ms: mean of the last two samples before this look; None if they have another timer.
            repeated_ms: mean of the last two of a few samples taken in a row, as recorded ones are.
            ordinary_ms: a sample after `disturb`.
            new_ms: the sample on new data.
            lead_s: head start that the host had before each of these samples, s.

        Returns:
            What is wrong; None where nothing is, or more looks are needed (`undecided`).
        """
        look = Look(recorded=recorded_ms, repeated=repeated_ms, ordinary=ordinary_ms, new=new_ms)
        outputs = self._outputs(look)
        self.announce("inspection")
        fault = self._wrong(outputs) or self._computes_untimed(look, outputs, lead_s)
        if not self.in_ranks:
            look.untimed |= (spans := {name: span.ms() for name, span in self._spans.items()})
            if look.left:
                look.total = max(sum(spans.values()) + look.new + look.first, look.left[0] + look.whole)
        look.output_copies = self._copies_ms(outputs.values())
        look.copies = self._copies_ms([*self._inputs(), *outputs.values()])
        self._looks.append(look)
        suspected = None if fault else suspicion(self._looks, "cuda" if self.cuda else "cpu")
        # A loaded machine may preempt several calls of one look, so the shortest call of all looks counts.
        self._shortest_ms = min(self._shortest_ms, recorded_ms or repeated_ms, repeated_ms, ordinary_ms, new_ms)
        least = 1 if fault or self.cuda or self._shortest_ms >= SHORT_MS else LEAST
        if (suspected is None and len(self._looks) >= least) or len(self._looks) >= MOST_LOOKS:
            self._looks.clear()
        return fault or (suspected.words if suspected and suspected.certain else None)

    @property
    def undecided(self) -> bool:
        """Return whether more looks are needed: there are few so far, or they raise a suspicion."""
        return bool(self._looks)

    # ── steps of a look ────────────────────────────────────────────────────────────────────────────

    def _outputs(self, look: Look) -> dict[str, Tensor]:
        """Copy the outputs as soon as the call has returned, and note how long that took."""
        if self.in_ranks:
            look.whole, look.untimed["outputs"] = look.new, 0.0
            return _taken(self.launch)
        times, found = [], []
        for _ in range(2):
            started = time.perf_counter()
            found.append(_taken(self.launch))
            self._synchronise()
            times.append(1e3 * (time.perf_counter() - started))
            if not self.cuda and self._released and len(times) == 1:
                # Wall time until the outputs are readable: another thread may do the work while this one is preempted.
                now = _now_ms()
                look.whole, look.total = now - self._released, now - self._loading
        look.first, look.untimed["outputs"] = times
        look.ordinary = look.ordinary if self.cuda or self._ordinary is None else self._ordinary
        self._released = None
        return found[0]

    def _wrong(self, outputs: Mapping[str, Tensor]) -> str | None:
        """Compare outputs on new data with their known answer, and the earlier ones on known data with theirs."""
        second = self.references.second
        self.variation.undo()
        found = self.variation.unsigned(outputs)
        self.variation.renew()
        known, self._known = self._known, None
        try:
            check_form(outputs, second.truth(self.examination.variant), "")
            self.examination.hold(found, second)
        except Wrong as wrong:
            return f"in a timed call on new data: {wrong}"
        return self._wrong_on_known(known, "in a timed call on known data: ") if known is not None else None

    def _wrong_on_known(self, outputs: Mapping[str, Tensor], words: str) -> str | None:
        """Compare outputs on the first data with their answer."""
        # Another backend may have changed the first data; the check after timing reports that.
        if self.references.first.differing():
            return None
        try:
            self.examination.hold(outputs, self.references.first)
        except Wrong as wrong:
            return f"{words}{wrong}"
        return None

    def _computes_untimed(self, look: Look, outputs: Mapping[str, Tensor], lead_s: float) -> str | None:
        """Load the first data and call once, recording the operators that untimed functions dispatch."""
        launch = self.launch
        calls: dict[str, Callable[[], object]] = {
            "outputs": lambda: dict(launch.outputs().items()),
            "reload": lambda: launch.reload(self.references.first.inputs),
        }
        if launch.reset is not None:
            calls["reset"] = launch.reset
        found = {}
        for name, call in calls.items():
            with products() as names:
                call()
            found[name] = names
        if self.cuda and not self.in_ranks:
            tensors = [*self._inputs(), *outputs.values()]
            look.left = self._left_to_do(calls["reload"]), self._left_to_do(lambda: _copy(tensors))
            if launch.reset is not None:
                launch.reset()
        if self.mode == "bwd":
            launch.forward()
        call = launch.call(self.mode)
        if self.cuda and not self.in_ranks:
            self._queued(call, look, lead_s)
        else:
            call()
        words = (f"{name} computes: it calls {', '.join(sorted(names))}" for name, names in found.items() if names)
        return next((f"{one}, and is not timed" for one in words), None)

    def _left_to_do(self, call: Callable[[], object]) -> float:
        """On a GPU: measure how long it keeps working after a call has returned, on any stream, from any thread; ms."""
        self._synchronise()
        call()
        spent = 0.0
        for pause_s in (0.0, THREAD_S):
            time.sleep(pause_s)
            started = time.perf_counter()
            self._synchronise()
            spent += 1e3 * (time.perf_counter() - started)
        return spent

    def _queued(self, call: Callable[[], object], look: Look, lead_s: float) -> None:
        """On a GPU: measure the work on the stream after the call has returned, until its outputs are readable.

        The stream is blocked meanwhile, so that only queued work counts, not the host's time.  A thread that launches
        kernels after the call has returned puts them behind its end event.  If that thread is quick, or this one is
        preempted, they precede that event; they count towards the whole in either case.
        """
        import torch

        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self._synchronise()
        torch.cuda._sleep(AHEAD_CYCLES + int(lead_s * CYCLES_PER_S))
        marks[0].record()
        call()
        marks[1].record()
        held = []
        for mark in marks[2:]:
            held.append(_taken(self.launch))
            mark.record()
        self._synchronise()
        inside, look.first, look.untimed["outputs"] = (float(a.elapsed_time(b)) for a, b in pairwise(marks))
        look.whole = inside + look.first

    def _inputs(self) -> Iterable[Tensor]:
        return self.references.second.inputs.tensors().values()

    def _copies_ms(self, tensors: Iterable[Tensor]) -> float:
        """Measure plain copies of the tensors."""
        self._synchronise()
        started = time.perf_counter()
        _copy(tensors)
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


def _taken(launch: Launch) -> dict[str, Tensor]:
    """Copy a launch's outputs: a launch that computes only what is read has to compute it now."""
    return {name: tensor.detach().clone() for name, tensor in launch.outputs().items()}


def _copy(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        tensor.detach().clone()


def _now_ms() -> float:
    return 1e3 * time.perf_counter()


class _Span:
    """Time of untimed calls: host time on a CPU, device time on a GPU, provided that the host is ahead."""

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
        """Milliseconds, after a synchronisation; 0 if the device may have waited for the host in between."""
        if not self._events:
            return self._host_ms
        spent = float(self._events[0].elapsed_time(self._events[1]))
        return spent if self._host_ms < SHARE * spent else 0.0
