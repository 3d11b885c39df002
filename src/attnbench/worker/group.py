"""Measures one group in the worker: opens and checks every backend alone, then samples them in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Machine
from attnbench.check.examine import Outcome, examine, recheck
from attnbench.check.functions import CLOCKS, OWN
from attnbench.check.globals import ON_IMPORT, GlobalState
from attnbench.check.inspection import Inspection
from attnbench.check.reference import References
from attnbench.errors import Unavailable, Unsupported, out_of_memory, unknown
from attnbench.machine.ceilings import ceilings
from attnbench.machine.device import Device
from attnbench.measure.memory import peak
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import GroupTiming, Interrupted, sample
from attnbench.measure.stage import synchronize
from attnbench.measure.subject import Misleading, Subject
from attnbench.measure.times import to_time
from attnbench.measure.yardstick import measured, yardsticks
from attnbench.record import Memory, PlannedGroup, Record, Settings, Status, Time
from attnbench.worker.activity import HARNESS, ActivityPage
from attnbench.worker.device import allocated, raise_if_lost, release, tidy
from attnbench.worker.ending import GroupEnds
from attnbench.worker.entry import (
    Entry,
    backend_for,
    counters,
    executed_flops,
    globals_kept,
    guilty_of,
    log_watched,
    notes_of,
)
from attnbench.worker.outcome import RecordBuilder, reason_of, status_of
from attnbench.worker.parts import joined, moved, rounds_taken
from attnbench.worker.phases import carried_out_whole, timed_phases
from attnbench.workloads.base import load_workload

if TYPE_CHECKING:
    from attnbench.workloads.base import Workload

MIB = 2**20


class GroupRun(GroupEnds):
    """Carries out one request."""

    def __init__(
        self,
        group: PlannedGroup,
        settings: Settings,
        *,
        files: Sequence[str],
        device: Device,
        machine: Machine,
        page: ActivityPage,
        on_record: Callable[[Record], None],
    ) -> None:
        self.group, self.settings, self.files = group, settings, files
        self.device, self.machine, self.page, self.on_record = device, machine, page, on_record
        self.workload: Workload = load_workload(group.workload)
        self.case = self.workload.case(group.case)
        self.sampling_s = 0.0
        self.baseline: tuple[Entry, Record] | None = None
        "once it is measured; it is measured again in every later part"
        self.rounds = 0
        "taken in earlier parts"
        self.began_s: float | None = None

    def carry_out(self) -> float:
        """Measure the group; every backend gets a record, and of two records of one backend the later counts.

        If the page asks for an end, backends without enough samples by then get no record.

        Returns:
            Seconds spent sampling.

        Raises:
            ContextLost: a backend left the GPU unusable.
        """
        entries = [entry for index, name in enumerate(self.group.backends) if (entry := self._probe(index, name))]
        state = GlobalState.capture()
        # The sampler compares the others with its first subject.
        entries.sort(key=lambda entry: entry.builder.name != self.settings.baseline)
        waiting = entries if entries and self._prepared(entries) else []
        while waiting and not self.page.asked_to_end():
            part, waiting = self._open_part(waiting)
            waiting += self._measure(part)
            for entry in part:
                self._close(entry)
            release(self.device)
        state.restore()
        tidy(self.device)
        return self.sampling_s

    # ── which backends can run at all, and what they all need ──────────────────────────────────────

    def _probe(self, index: int, name: str) -> Entry | None:
        """Return an entry for the backend, or None after writing its record."""
        self._turn(index, "probe")
        builder = RecordBuilder(
            self.group, self.settings, name, self.workload, self.case, device=self.device, files=self.files
        )
        entry: Entry | None = None
        try:
            with globals_kept([builder], but=ON_IMPORT):
                entry = Entry(index=index, backend=self._found(name, builder), builder=builder)
                entry.prestart(self.case, self.device)
        except (Unavailable, Unsupported) as why:
            self.on_record(builder.failed(Status.SKIPPED, str(why)))
        except Exception as error:  # catches everything: whatever a backend raises becomes its record
            self.on_record(builder.failed(Status.FAILED, reason_of(error, "probe")))
        self._fit_for_others(index, "probe", builder)
        return entry

    def _found(self, name: str, builder: RecordBuilder) -> Backend:
        """Return the backend of that name, after checking that it supports the case."""
        backend = backend_for(name, self.case, self.files)
        builder.of(backend)
        if self.machine.device not in backend.devices:
            wanted = " and ".join(backend.devices)
            raise Unsupported(f"{name}: device={self.machine.device} is not supported; {wanted}")
        backend.probe()
        backend.check(self.case, self.machine)
        if (variant := backend.variant_of(self.case)) not in self.workload.variants:
            # Otherwise the missing oracle would be noticed later and make the whole group fail.
            raise unknown(name, "variant", variant, self.workload.variants)
        return backend

    def _prepared(self, entries: Sequence[Entry]) -> bool:
        """Make inputs and oracles, whose time counts for no backend; if that fails, every record gets the reason."""
        settings, oom = self.settings, False
        try:
            if settings.measure and self.device.on_gpu:
                self.page.announce(HARNESS, "ceilings")
                found = ceilings(self.device, self.case.dtype)
                for entry in entries:
                    entry.builder.ceilings = found
            self.page.announce(HARNESS, "inputs")
            place, kind, seed = str(self.device), settings.input, settings.seed
            self.inputs = self.workload.inputs(self.case, seed=seed, kind=kind, device=place)
            self.yardsticks = yardsticks(self.device) if settings.measure else ()
            if settings.check:
                self.page.announce(HARNESS, "oracle")
                fresh = self.workload.inputs(self.case, seed=seed + 1, kind="normal", device=place)
                self.references = References(self.workload, self.case, self.inputs, fresh, kind=kind, seed=seed)
                for variant in {entry.backend.variant_of(self.case) for entry in entries}:
                    for reference in (self.references.first, self.references.second):
                        reference.truth(variant)
            return True
        except Exception as error:  # catches everything: a case too large for this machine, or an error of the workload
            phase = self.page.read().phase
            reason, oom = reason_of(error, phase), out_of_memory(error) and phase == "inputs"
            # A MemoryError says how much was requested; the message of the device's allocator is too long.
            size = f" ({' '.join(str(error).split())})" if isinstance(error, MemoryError) and str(error) else ""
            raise_if_lost(self.device, HARNESS, phase, reason)
        for entry in entries:
            self._end(entry, Status.OOM if oom else Status.FAILED, reason, f"for the inputs{size}")
        return False

    # ── each backend alone: session, first call, check, memory ─────────────────────────────────────

    def _open_part(self, waiting: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Open sessions one after another while they fit in memory together; return them and the rest.

        The first one is opened alone: a backend that runs out of memory then is never in the rest.  In a later part
        the baseline is opened before the second one.
        """
        part: list[Entry] = []
        rest: list[Entry] = []
        self.page.say_enough(False)
        for entry in waiting:
            if part and (entry.by_itself or part[0].by_itself):
                rest.append(entry)
                continue
            outcome = self._open(entry, alone=not part)
            self._fit_for_others(entry.index, "set-up", entry.builder)
            if outcome == "open":
                part = [*part, entry] if part else [*self._baseline_beside(entry), entry]
            elif outcome == "full":
                rest.append(entry)
        return part, rest

    def _baseline_beside(self, entry: Entry) -> list[Entry]:
        """Open the baseline again for a later part; empty if there is none or it does not fit."""
        if self.baseline is None:
            return []
        again = self.baseline[0].again(repeated=True)
        return [again] if not entry.by_itself and self._open(again, alone=False) == "open" else []

    def _open(self, entry: Entry, *, alone: bool) -> str:
        """Open one backend and do everything that is done alone; return "open", "full" or "ended"."""
        builder = entry.builder
        try:
            with globals_kept([builder]) as before, log_watched(self.page, [builder]):
                self._first_call(entry)
                outcome = self._examined(examine, entry, "check")
                if outcome.ok:
                    self._memory(entry)
                    outcome = self._inputs_kept("while its memory was measured")
                if outcome.ok and (names := before.replaced(*OWN)):
                    outcome = Outcome(False, f"replaces functions of the harness that examines it: {', '.join(names)}")
                if outcome.ok:
                    return "open"
            status, reason = Status.INCORRECT, outcome.reason
        except (Unsupported, Unavailable) as why:
            status, reason = Status.SKIPPED, str(why)
        except Exception as error:  # catches everything: see _probe
            phase = self.page.read().phase
            status, reason = status_of(error), reason_of(error, phase)
            if status is Status.FAILED:
                raise_if_lost(self.device, entry.index, phase, reason)
        # Not in the handler: the exception holds the backend's frames, and they hold its memory.
        self._abandon(entry)
        if self.settings.check and (names := self.references.first.changed()):
            entry.builder.note(f"changed inputs: {', '.join(names)} (put back)")
        if status is Status.OOM and not alone:
            return "full"
        self._end(entry, status, reason)
        return "ended"

    def _first_call(self, entry: Entry) -> None:
        builder, detail = entry.builder, ": compiling" if entry.backend.compiles else ""
        self._turn(entry.index, f"set-up{detail}")
        entry.held_bytes = allocated(self.device)
        started = time.perf_counter()
        entry.launch = entry.closing.enter_context(entry.backend.session(self.case, self.inputs))
        synchronize(self.device)
        entry.setup_ms = 1e3 * (time.perf_counter() - started)
        entry.session_bytes = allocated(self.device) - entry.held_bytes
        builder.note(*notes_of(builder.name, entry.launch))
        self.page.announce(entry.index, f"first call{detail}")
        started = time.perf_counter()
        entry.run_once(self.case.mode)
        synchronize(self.device)
        entry.first_call_ms = 1e3 * (time.perf_counter() - started)

    def _examined(self, procedure: Callable[..., Outcome], entry: Entry, phase: str) -> Outcome:
        """Run an examination and store its results in the builder."""
        if not self.settings.check:
            return Outcome(True)
        self.page.announce(entry.index, phase)
        builder = entry.builder
        outcome = procedure(entry.launch, self.references, **self._terms(entry))
        synchronize(self.device)
        builder.note(*outcome.notes)
        if outcome.errors:
            builder.errors = outcome.errors
        builder.counters = {**builder.counters, **outcome.counters}
        return outcome

    def _terms(self, entry: Entry) -> dict[str, Any]:
        return {
            "variant": entry.backend.variant_of(self.case),
            "budget": entry.backend.budget(self.case),
            "announce": lambda phase: self.page.announce(entry.index, phase),
        }

    def _memory(self, entry: Entry) -> None:
        self.page.announce(entry.index, "memory")
        # Results of the last call: if a call frees them first, allocating new ones does not raise the peak.
        results = max(0, allocated(self.device) - entry.held_bytes - entry.session_bytes)
        found = peak(lambda: entry.run_once(self.case.mode), self.device)
        inputs = sum(t.numel() * t.element_size() for t in self.inputs.tensors().values())
        own = max(inputs, entry.session_bytes) + results
        entry.builder.memory = Memory(
            peak_allocated_mb=(own + found.allocated) / MIB,
            peak_reserved_mb=None if found.reserved is None else (own + found.reserved) / MIB,
        )

    # ── together: samples, then the outputs are checked again ──────────────────────────────────────

    def _measure(self, part: Sequence[Entry]) -> list[Entry]:
        """Sample the sessions of a part; return those that must be measured again, each by itself."""
        if not self.settings.measure:
            for entry in part:
                self._keep(entry, entry.builder.passed_check())
            return []
        started = time.perf_counter()
        self.began_s = started if self.began_s is None else self.began_s
        left, group, apart = self._sampled(part)
        self._fit_for_others(HARNESS, "sampling", *(entry.builder for entry in part))
        if self.settings.check and len(left) > 1 and self.references.first.changed():
            # It is unknown which backend did it.
            return apart + [entry.again(by_itself=True) for entry in left if not entry.repeated]
        if self.settings.baseline and self.settings.baseline not in (entry.builder.name for entry in left):
            for entry in left:
                entry.builder.note("no speed-up: measured without the baseline")
        records = [self._finish(entry, position, group, started - self.began_s) for position, entry in enumerate(left)]
        self.rounds = max(self.rounds, *(rounds_taken(record) for record in records if record), 0)
        return apart

    def _sampled(self, part: Sequence[Entry]) -> tuple[list[Entry], Any, list[Entry]]:
        """Sample until no backend fails; return the entries left, their times, and those that ran out of memory."""
        left = list(part)
        apart: list[Entry] = []
        while left:
            try:
                return left, self._sample(left), apart
            except Interrupted:
                return [], None, apart
            except Exception as error:  # catches everything: a call that raises while it is sampled
                activity = self.page.read()
                reason, full = reason_of(error, activity.phase), out_of_memory(error)
                raise_if_lost(self.device, activity.index, activity.phase, reason)
                status = Status.INCORRECT if isinstance(error, Misleading) else status_of(error)
                guilty = guilty_of(error, activity, left)
            if guilty is None and len(left) > 1:  # the harness, or a backend that cannot be identified
                return [], None, apart + [entry.again(by_itself=True) for entry in left if not entry.repeated]
            if guilty is None:
                for entry in left:
                    self._end(entry, Status.FAILED, reason)
                return [], None, apart
            left.remove(guilty)
            self._abandon(guilty)
            if self.settings.check:
                self.references.second.changed()  # the failure may have interrupted an inspection
            if full and left and not guilty.repeated:
                apart.append(guilty.again(by_itself=True))
            else:
                self._end(guilty, status, reason)
        return [], None, apart

    def _sample(self, part: Sequence[Entry]) -> GroupTiming:
        settings = self.settings
        plan = Plan(
            timer=settings.timer,
            l2=settings.l2,
            regime=settings.regime,
            warmup=settings.warmup,
            iterations=settings.iterations,
            rel_ci=settings.rel_ci,
            max_seconds=settings.max_seconds,
            seed=settings.seed,
        )
        indices = [entry.index for entry in part]
        builders, words = [entry.builder for entry in part], "while the group was sampled: "
        with globals_kept(builders, words) as before, log_watched(self.page, builders, words):
            subjects = [self._subject(entry) for entry in part]
            self._turn(HARNESS, "sampling")
            try:
                group = sample(
                    subjects,
                    device=self.device,
                    plan=plan,
                    announce=lambda index, phase: self.page.announce(indices[index], phase),
                    yardsticks=[one.subject for one in self.yardsticks],
                    ending=self._ending,
                )
            except Misleading:
                _raise_if_replaced(before)
                raise
            _raise_if_replaced(before)
        self.sampling_s += group.sampling_s
        return group

    def _ending(self, enough: bool) -> bool:
        self.page.say_enough(enough)
        return self.page.asked_to_end()

    def _subject(self, entry: Entry) -> Subject:
        launch = entry.launch
        assert launch is not None
        if self.case.mode != "fwd":
            self.page.announce(entry.index, "set-up: forward")
            launch.forward()  # a backward on its own uses the last forward
            synchronize(self.device)
        looker = Inspection(launch, self.references, **self._terms(entry)) if self.settings.check else None
        return Subject(
            name=entry.builder.name,
            call=launch.call(self.case.mode),
            reset=launch.reset,
            reported_ms=launch.reported_ms,
            capturable=launch.capturable,
            inspector=looker,
        )

    def _besides(
        self, entry: Entry, announce: Callable[[str], None]
    ) -> tuple[Mapping[str, Time], dict[str, float | None]]:
        """Take the measurements besides samples: once each, and not if the run is to end."""
        if entry.repeated:
            return {}, {}
        if self.page.asked_to_end():
            if entry.launch is not None and (entry.launch.phases or entry.launch.whole):
                entry.builder.note("interrupted: what is measured besides the samples is missing")
            return {}, {}
        phases = timed_phases(entry, self.case.mode, self.settings, self.device, announce)
        return phases, carried_out_whole(entry, announce, self.device)

    def _finish(self, entry: Entry, position: int, group: GroupTiming, seconds: float) -> Record | None:
        """Check the outputs again, time the phases, and write the record."""
        launch, builder = entry.launch, entry.builder
        assert launch is not None
        announce = partial(self.page.announce, entry.index)
        try:
            outcome = self._examined(recheck, entry, "check: after timing")
            if not outcome.ok:
                self._end(entry, Status.INCORRECT, outcome.reason)
                return None
            with globals_kept([builder], "by its phases: "):
                phases, whole = self._besides(entry, announce)
            outcome = self._inputs_kept("by its phases")
            if not outcome.ok:
                self._end(entry, Status.INCORRECT, outcome.reason)
                return None
            builder.executed_flops = executed_flops(builder.name, launch)
            builder.devices = launch.devices
            builder.counters |= {**counters(builder.name, launch.counters), **whole}
            timing = group.timings[position]
            times = [timing, *(timings[position] for timings in group.by_timer.values())]
            headline, *own = (to_time(one, entry.setup_ms, entry.first_call_ms) for one in times)
            record = builder.passed(
                headline,
                timing,
                timers=dict(zip(group.by_timer, own, strict=True)),
                phases=phases,
                power=group.power,
                yardsticks=measured(self.yardsticks, group.yardsticks),
            )
        except Exception as error:  # catches everything: see _open
            activity = self.page.read()
            reason = reason_of(error, activity.phase)
            raise_if_lost(self.device, entry.index, activity.phase, reason)
            self._end(entry, Status.FAILED, reason)
            return None
        record = moved(record, rounds=self.rounds, seconds=seconds)
        if self.baseline and entry.repeated:
            record = joined(self.baseline[1], record)
        if builder.name == self.settings.baseline:
            self.baseline = entry, record
        self._keep(entry, record)
        self._fit_for_others(entry.index, "phase", builder)
        return record


def _raise_if_replaced(before: GlobalState) -> None:
    """Refuse samples if functions of the harness were replaced: neither the times nor the checks can be trusted.

    Raises:
        Unavailable: it is unknown which backend did it, so each is measured by itself.
    """
    if names := before.replaced(*OWN, *CLOCKS):
        raise Unavailable(f"while it was sampled functions of the harness were replaced: {', '.join(names)}")
