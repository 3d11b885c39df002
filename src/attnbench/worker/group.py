"""One group carried out in the worker: open every backend alone, check it, then sample them in turn."""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Launch, Machine
from attnbench.backends.registry import resolve
from attnbench.check.examine import Outcome, examine, recheck
from attnbench.check.reference import References
from attnbench.errors import Unavailable, Unsupported
from attnbench.measure.memory import peak
from attnbench.measure.sampling import Plan, Timing, sample
from attnbench.measure.stage import synchronize
from attnbench.measure.subject import Subject
from attnbench.measure.times import to_time
from attnbench.record import Memory, PlannedGroup, PowerSeries, Record, Settings, Status
from attnbench.worker.blame import HARNESS, BlamePage
from attnbench.worker.outcome import RecordBuilder, out_of_memory, reason_of
from attnbench.workloads.base import load_workload

if TYPE_CHECKING:
    from attnbench.workloads.base import Workload

MIB = 2**20


class ContextLost(Exception):
    """The GPU context answers nothing any more; the process must end."""

    def __init__(self, index: int, phase: str, reason: str) -> None:
        super().__init__(reason)
        self.index, self.phase = index, phase


@dataclass(slots=True, kw_only=True)
class Entry:
    """One backend of the group and what is known of it so far."""

    index: int
    "in the request; what the blame page says"
    backend: Backend
    builder: RecordBuilder
    launch: Launch | None = None
    closing: ExitStack = field(default_factory=ExitStack)
    setup_ms: float = 0.0
    first_call_ms: float = 0.0
    session_bytes: int = 0
    "what the session holds on the device between calls: its own inputs, workspaces, plans"


class GroupRun:
    """Carries out one request."""

    def __init__(
        self,
        group: PlannedGroup,
        settings: Settings,
        *,
        files: Sequence[str],
        device: str,
        machine: Machine,
        page: BlamePage,
        on_record: Callable[[Record], None],
    ) -> None:
        self.group, self.settings, self.files = group, settings, files
        self.device, self.machine, self.page, self.on_record = device, machine, page, on_record
        self.workload: Workload = load_workload(group.workload)
        self.case = self.workload.case(group.case)
        self.sampling_s = 0.0

    def carry_out(self) -> float:
        """Measure the group; every backend ends as a record.  Returns the seconds spent sampling.

        Raises:
            ContextLost: a backend left the GPU unusable.
        """
        entries = [entry for index, name in enumerate(self.group.backends) if (entry := self._probe(index, name))]
        # The sampler compares with its first.
        entries.sort(key=lambda entry: entry.builder.name != self.settings.baseline)
        if entries:
            self.page.say(HARNESS, "inputs")
            self.inputs = self.workload.inputs(
                self.case, seed=self.settings.seed, kind=self.settings.input, device=self.device
            )
            if self.settings.check:
                self._prepare_check(entries)
            for part in self._open_parts(entries):
                with ExitStack() as closing:
                    for entry in part:
                        closing.callback(entry.closing.close)
                    self._measure(part)
        self._clean()
        return self.sampling_s

    # ── which backends can run at all ──────────────────────────────────────────────────────────────

    def _probe(self, index: int, name: str) -> Entry | None:
        """The backend, or None after its `skipped` record."""
        self.page.say(index, "probe")
        backend = resolve(name, self.case, files=self.files)
        entry = Entry(index=index, backend=backend, builder=self._builder(name, backend))
        try:
            if self.machine.device not in backend.devices:
                wanted = " and ".join(backend.devices)
                raise Unsupported(f"{name}: device={self.machine.device} is not supported; {wanted}")
            backend.probe()
            backend.check(self.case, self.machine)
        except (Unavailable, Unsupported) as why:
            self.on_record(entry.builder.failed(Status.SKIPPED, str(why)))
            return None
        return entry

    def _builder(self, name: str, backend: Backend) -> RecordBuilder:
        return RecordBuilder(self.group, self.settings, name, backend, self.workload, self.case, self.device)

    def _prepare_check(self, entries: Sequence[Entry]) -> None:
        """Compute the oracles first: their time is not a backend's, nor is their memory."""
        self.page.say(HARNESS, "oracle")
        fresh = self.workload.inputs(self.case, seed=self.settings.seed + 1, kind="normal", device=self.device)
        self.references = References(self.workload, self.case, self.inputs, fresh, seed=self.settings.seed)
        for variant in {entry.backend.variant for entry in entries}:
            for reference in (self.references.first, self.references.second):
                reference.truth(variant)

    # ── each alone: session, first call, check, memory ─────────────────────────────────────────────

    def _open_parts(self, entries: Sequence[Entry]) -> Iterator[list[Entry]]:
        """Open backends one by one and yield them in parts whose sessions fit in memory together.

        A backend that runs out of memory beside others is opened once more alone; the baseline
        stands in every part.
        """
        open_entries: list[Entry] = []
        waiting = list(entries)
        while waiting:
            entry = waiting.pop(0)
            outcome = self._open(entry, alone=not open_entries)
            if outcome == "open":
                open_entries.append(entry)
            elif outcome == "full":
                yield open_entries
                self._clean()
                baseline = next((e for e in open_entries if e.builder.name == self.settings.baseline), None)
                open_entries = []
                waiting.insert(0, entry)
                if baseline is not None:
                    again = dataclasses.replace(baseline, launch=None, closing=ExitStack())
                    again.builder.repeated = True
                    if self._open(entry, alone=True) == "open":
                        waiting.pop(0)
                        open_entries.append(entry)
                        if self._open(again, alone=False) == "open":
                            open_entries.append(again)
                    else:
                        waiting.pop(0)
        if open_entries:
            yield open_entries

    def _open(self, entry: Entry, *, alone: bool) -> str:
        """Open one backend and see it through everything that is done alone: open, full, or ended."""
        builder = entry.builder
        try:
            with self._globals_kept(builder):
                self._first_call(entry)
                if self.settings.check and not self._examine(entry):
                    entry.closing.close()
                    return "ended"
                self._memory(entry)
        except (Unsupported, Unavailable) as why:
            record = builder.failed(Status.SKIPPED, str(why))
        except Exception as error:  # the edge: whatever a backend raises becomes its record
            phase = self.page.read().phase
            if out_of_memory(error):
                del error
                self._abandon(entry)
                if not alone:
                    return "full"
                record = builder.oom(self.machine.memory_bytes)
            else:
                record = builder.failed(Status.FAILED, reason_of(error, phase))
                self._raise_if_lost(entry.index, phase, record.reason or "")
        else:
            return "open"
        self._abandon(entry)
        self.on_record(record)
        return "ended"

    def _first_call(self, entry: Entry) -> None:
        self.page.say(entry.index, "set-up")
        held = self._allocated()
        started = time.perf_counter()
        entry.launch = entry.closing.enter_context(entry.backend.session(self.case, self.inputs))
        self._synchronize()
        entry.setup_ms = 1e3 * (time.perf_counter() - started)
        entry.session_bytes = self._allocated() - held
        self.page.say(entry.index, "first call")
        started = time.perf_counter()
        self._run_once(entry.launch)
        self._synchronize()
        entry.first_call_ms = 1e3 * (time.perf_counter() - started)

    def _run_once(self, launch: Launch) -> None:
        """Forward, and backward where the case asks for it."""
        if launch.reset:
            launch.reset()
        launch.forward()
        if self.case.mode != "fwd":
            launch.call("bwd")()

    def _examine(self, entry: Entry) -> bool:
        self.page.say(entry.index, "check")
        outcome = self._checked(examine, entry)
        entry.builder.errors = outcome.errors
        return outcome.ok

    def _checked(self, procedure: Callable[..., Outcome], entry: Entry) -> Outcome:
        """Examine a launch; what is wrong becomes the record."""
        outcome = procedure(
            entry.launch, self.references, variant=entry.backend.variant, budget=entry.backend.budget(self.case),
            announce=lambda phase: self.page.say(entry.index, phase),
        )
        self._synchronize()
        entry.builder.notes += [note for note in outcome.notes if note not in entry.builder.notes]
        if not outcome.ok:
            entry.builder.errors = outcome.errors
            self.on_record(entry.builder.failed(Status.INCORRECT, outcome.reason or "incorrect"))
        return outcome

    def _memory(self, entry: Entry) -> None:
        self.page.say(entry.index, "memory")
        launch = entry.launch
        assert launch is not None
        found = peak(lambda: self._run_once(launch), self.device)
        inputs = sum(t.numel() * t.element_size() for t in self.inputs.tensors().values())
        reserved = None if found.reserved is None else found.reserved / MIB
        entry.builder.memory = Memory(
            peak_allocated_mb=(max(inputs, entry.session_bytes) + found.allocated) / MIB, peak_reserved_mb=reserved
        )

    # ── together: samples, then one more look at the outputs ───────────────────────────────────────

    def _measure(self, part: list[Entry]) -> None:
        if not self.settings.measure:
            for entry in part:
                self.on_record(entry.builder.passed_check())
            return
        while part:
            try:
                group = self._sample(part)
                break
            except Unavailable as why:
                # A timer that cannot do one of them cannot compare them.
                for entry in part:
                    self.on_record(entry.builder.failed(Status.FAILED, str(why)))
                return
            except Exception as error:  # the edge: a call that raises while it is sampled
                word = self.page.read()
                reason = reason_of(error, word.phase)
                self._raise_if_lost(word.index, word.phase, reason)
                guilty = next(entry for entry in part if entry.index == word.index)
                status = Status.OOM if out_of_memory(error) else Status.FAILED
                self.on_record(guilty.builder.failed(status, reason))
                part = [entry for entry in part if entry is not guilty]
                self._abandon(guilty)
        for position, entry in enumerate(part):
            times = {name: timings[position] for name, timings in group.by_timer.items()}
            self._finish(entry, group.timings[position], times, group.power)

    def _sample(self, part: Sequence[Entry]) -> Any:
        settings = self.settings
        subjects = [self._subject(entry) for entry in part]
        plan = Plan(
            timer=settings.timer, l2=settings.l2, regime=settings.regime, warmup=settings.warmup,
            iterations=settings.iterations, rel_ci=settings.rel_ci, max_seconds=settings.max_seconds,
            seed=settings.seed,
        )
        indices = [entry.index for entry in part]
        group = sample(subjects, device=self.device, plan=plan,
                       announce=lambda index, phase: self.page.say(indices[index], phase))
        self.sampling_s += group.sampling_s
        return group

    def _subject(self, entry: Entry) -> Subject:
        launch = entry.launch
        assert launch is not None
        if self.case.mode != "fwd":
            launch.forward()  # a backward alone uses the last forward
        return Subject(name=entry.builder.name, call=launch.call(self.case.mode), reset=launch.reset,
                       reported_ms=launch.reported_ms, capturable=launch.capturable)

    def _finish(
        self, entry: Entry, timing: Timing, times: dict[str, Timing], power: PowerSeries | None
    ) -> None:
        """Look at the outputs once more, time the phases, and write the record."""
        if entry.builder.repeated:
            return
        launch, builder = entry.launch, entry.builder
        assert launch is not None
        try:
            if self.settings.check and not self._checked(recheck, entry).ok:
                return
            phases = self._phases(entry)
        except Exception as error:  # the edge: see _open
            word = self.page.read()
            reason = reason_of(error, word.phase)
            self._raise_if_lost(entry.index, word.phase, reason)
            self.on_record(builder.failed(Status.FAILED, reason))
            return
        builder.executed_flops = launch.executed_flops
        own = {name: to_time(one, entry.setup_ms, entry.first_call_ms) for name, one in times.items()}
        self.on_record(builder.passed(to_time(timing, entry.setup_ms, entry.first_call_ms), timing,
                                      timers=own, phases=phases, power=power))

    def _phases(self, entry: Entry) -> dict[str, Any]:
        launch, settings = entry.launch, self.settings
        if launch is None or not launch.phases:
            return {}
        subjects = [Subject(name=name, call=call, reset=launch.reset) for name, call in launch.phases.items()]
        for subject in subjects:
            self.page.say(entry.index, f"phase {subject.name}")
            subject.call()
        self._synchronize()
        plan = Plan(timer="wall" if settings.timer in ("auto", "all") else settings.timer, l2=settings.l2,
                    warmup=settings.warmup, iterations=settings.iterations, rel_ci=settings.rel_ci,
                    max_seconds=settings.max_seconds / 4, seed=settings.seed)
        group = sample(subjects, device=self.device, plan=plan,
                       announce=lambda index, phase: self.page.say(entry.index, phase))
        self._run_once(launch)
        return {timing.name: to_time(timing) for timing in group.timings}

    # ── putting things back ────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _globals_kept(self, builder: RecordBuilder) -> Iterator[None]:
        from attnbench.check.globals import GlobalState

        before = GlobalState.capture()
        try:
            yield
        finally:
            builder.notes += before.restore()

    def _abandon(self, entry: Entry) -> None:
        """Close a session that failed; what its closing raises no longer matters."""
        entry.launch = None
        try:
            entry.closing.close()
        except Exception as error:  # the edge: its record is written already
            entry.builder.notes.append(f"closing it raised {type(error).__name__}")
        gc.collect()
        self._empty_cache()

    def _synchronize(self) -> None:
        synchronize(self.device)

    def _raise_if_lost(self, index: int, phase: str, reason: str) -> None:
        """A CUDA error that sticks makes every later call fail: only a new process helps."""
        try:
            self._synchronize()
        except RuntimeError:
            raise ContextLost(index, phase, reason) from None

    def _allocated(self) -> int:
        if self.machine.device != "cuda":
            return 0
        import torch

        return int(torch.cuda.memory_allocated(self.device))

    def _empty_cache(self) -> None:
        if self.machine.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def _clean(self) -> None:
        gc.collect()
        if "torch._dynamo" in sys.modules:
            # Each case compiles anew: without this the recompile limit turns later cases eager.
            sys.modules["torch._dynamo"].reset()
        self._empty_cache()
