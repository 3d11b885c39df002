"""Tune one case: compile in advance, check, race; written after every step and resumed where it stopped.

Every step is an ordinary group of the sweep, created when the step before it is done, so the worker's blame, time
limits and memory rules apply as anywhere.  A heat is a group of a few rounds with the leader as its baseline.  Outputs
are checked before the race and, for the finalists, again before and after their times.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.errors import NothingToRun
from attnbench.record import PlannedGroup, Record, Status
from attnbench.stats.race_data import Heat
from attnbench.sweep.run import Execution
from attnbench.tune.ahead import compile_ahead
from attnbench.tune.race_file import Failure, RaceFile, Reference
from attnbench.tune.race_file import write as write_file

CHECKED_TOGETHER = 16
"""Sessions open at once for the check: they share one evaluation of the oracle."""

SAME_REASON = 60
"""Length of the beginning of a reason by which failures are counted together."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a race, for a progress bar."""

    step: str
    "compile, check, stage 1 … or final"
    done: int
    total: int
    word: str = ""
    "current activity of the worker"


@dataclass(slots=True, kw_only=True)
class Tuning:
    """Runs one race to its end.

    Args:
        kept: results known so far.
        path: file that is written after every step; None writes nothing.
        execution: execution with the worker that checks and measures.
        files: paths of --backends files.
        jobs: processes that compile in advance; with 0 the measuring process compiles at the first call.
        compilers: processes that compile before these, without a GPU; None: one per core.
        references: other backends, sampled alternately with the pick after the race.
        on_progress: called with each progress.
    """

    kept: RaceFile
    path: Path | None
    execution: Execution
    files: tuple[str, ...] = ()
    jobs: int = 0
    compilers: int | None = None
    references: tuple[str, ...] = ()
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None)

    def carry_out(self) -> RaceFile:
        """Compile, check, race.

        Raises:
            NothingToRun: no configuration runs and is correct, or no worker could be started.
        """
        if self.kept.outcome() is None:
            self.prepare()
            self._race()
            if self.kept.outcome() is None:
                raise NothingToRun(nobody_ran(self.kept))
        self._refer()
        return self.kept

    def prepare(self) -> None:
        """Compile in advance and check what is not done yet.

        Raises:
            NothingToRun: no configuration runs and is correct, or no worker could be started.
        """
        if self.jobs:
            self._compile()
        self._check()
        if not self.kept.checked:
            raise NothingToRun(nobody_ran(self.kept))

    # ── before the race ────────────────────────────────────────────────────────────────────────────

    def _compile(self) -> None:
        names = [name for name in self._left() if name not in self.kept.compiled]
        if not names:
            return
        done = len(self.kept.configs) - len(names)
        self._report("compile", done)

        def ended(record: Record) -> None:
            nonlocal done
            done += 1
            if record.status is Status.PASSED:
                self._keep(compiled=(*self.kept.compiled, record.backend))
            elif record.status is not Status.OOM:  # other processes may have used the memory
                self._fail([record], "compile")
            self._report("compile", done, word=record.backend)

        began = time.perf_counter()
        try:
            compile_ahead(
                self.execution.run,
                self.group("compile", names),
                self.kept.settings,
                self.files,
                jobs=self.jobs,
                on_record=ended,
                compilers=self.compilers,
                on_text=lambda text: self._report("compile", done, word=text),
            )
        finally:
            self._keep(spent={"compile": time.perf_counter() - began})

    def _check(self) -> None:
        names = [name for name in self._left() if name not in self.kept.checked]
        settings = dataclasses.replace(self.kept.settings, check=True, measure=False, baseline=None)
        for first in range(0, len(names), CHECKED_TOGETHER):
            part = names[first : first + CHECKED_TOGETHER]
            self._report("check", len(self.kept.configs) - len(names) + first)
            began = time.perf_counter()
            records = self.execution.one(self.group("check", part), settings)
            right = [record for record in records if record.status is Status.PASSED]
            flops = next((record.work.flops for record in right if record.work), self.kept.flops)
            self._fail([record for record in records if record.status is not Status.PASSED], "check", write=False)
            self._keep(
                checked=(*self.kept.checked, *(record.backend for record in right)),
                flops=flops,
                spent={"check": time.perf_counter() - began},
            )

    # ── the race ───────────────────────────────────────────────────────────────────────────────────

    def _race(self) -> None:
        race = self.kept.race()
        assert race is not None
        stage, heats, taken = 0, 0, 0
        while (heat := race.heat) is not None:
            if heat.stage != stage or heat.final:
                stage, heats, taken = heat.stage, race.heats_left, 0
            self._report("final" if heat.final else f"stage {stage}", taken, heats, f"{len(race.running)} running")
            found = self._heat(heat)
            race.tick_ms = self.kept.tick_ms
            race.take({name: {int(index): ms for index, ms in own.items()} for name, own in found.items()})
            taken += 1

    def _heat(self, heat: Heat) -> Mapping[str, Mapping[str, float]]:
        """Sample a heat and store it."""
        kept, step = self.kept, "final" if heat.final else f"stage {heat.stage}"
        settings = dataclasses.replace(
            kept.settings,
            check=heat.final,
            measure=True,
            iterations=heat.rounds,
            warmup=int(kept.rules["warmup"]),
            baseline=heat.anchor,
        )
        # The sampler balances orders over places; the assignment to places is drawn anew for every heat.
        names = random.Random(heat.seed).sample(heat.names, len(heat.names))
        began, sampled = time.perf_counter(), self.execution.sampling_s
        records = self.execution.one(self.group(f"heat {len(kept.heats) + 1}", names), settings)
        timed = [record for record in records if record.time is not None]
        self._fail([record for record in records if record.time is None], step, write=False)
        times = {
            record.backend: dict(zip(map(str, record.time.rounds), record.time.samples_ms, strict=True))
            for record in timed
            if record.time is not None
        }
        first = next((record.time for record in timed), None)
        if first is not None:
            self._keep(write=False, tick_ms=first.tick_ms or 0.0, timer=first.timer, l2=first.l2)
        self._keep(
            heats=(*self.kept.heats, times),
            spent={"race": time.perf_counter() - began, "sampling": self.execution.sampling_s - sampled},
        )
        return times

    def _refer(self) -> None:
        """Sample the unknown references alternately with the pick."""
        kept = self.kept
        names = [name for name in self.references if name not in kept.references]
        outcome = kept.outcome()
        if not names or outcome is None:
            return
        self._report("references", 0, len(names))
        rules = kept.race_rules()
        settings = dataclasses.replace(
            kept.settings,
            check=True,
            measure=True,
            iterations=rules.final_rounds,
            warmup=rules.warmup,
            baseline=outcome.pick,
        )
        records = self.execution.one(self.group("references", [outcome.pick, *names]), settings)
        found = {record.backend: _reference(record, kept.backend) for record in records if record.backend in names}
        self._keep(references={**kept.references, **found})

    # ── keeping and telling ────────────────────────────────────────────────────────────────────────

    def _left(self) -> list[str]:
        return [name for name in self.kept.configs if name not in self.kept.failures]

    def group(self, step: str, names: Iterable[str]) -> PlannedGroup:
        """Return some of the configurations as a group of the sweep."""
        kept = self.kept
        return PlannedGroup(
            group=f"{kept.case_id} {step}",
            workload=kept.workload,
            case=kept.case,
            case_id=kept.case_id,
            backends=tuple(names),
        )

    def _fail(self, records: Iterable[Record], step: str, *, write: bool = True) -> None:
        lost = {
            record.backend: Failure(status=record.status.value, reason=record.reason or "", step=step)
            for record in records
        }
        if lost:
            self._keep(write=write, failures={**self.kept.failures, **lost})

    def _keep(self, *, write: bool = True, **fields: object) -> None:
        self.kept = self.kept.with_(**fields)
        if write and self.path is not None:
            write_file(self.kept, self.path)

    def _report(self, step: str, done: int, total: int | None = None, word: str = "") -> None:
        self.on_progress(Progress(step, done, len(self.kept.configs) if total is None else total, word))


def nobody_ran(kept: RaceFile) -> str:
    """Return one line with the number of configurations that did not run, by reason."""
    counted: dict[str, int] = {}
    for name, failure in kept.failures.items():
        reason = f"{failure.status}: {failure.reason.removeprefix(f'{name}: ').removeprefix(f'{kept.backend}: ')}"
        alike = next((one for one in counted if one[:SAME_REASON] == reason[:SAME_REASON]), reason)
        counted[alike] = counted.get(alike, 0) + 1
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items(), key=lambda one: -one[1])[:4])
    return f"{kept.backend}: case={kept.case_id} is run by none of {len(kept.configs)} configurations; {reasons}"


def _reference(record: Record, backend: str) -> Reference:
    if record.time is None:
        return Reference(reason=f"{record.status.value}: {(record.reason or '').removeprefix(f'{record.backend}: ')}")
    speedup = record.speedup
    if speedup is None:
        return Reference(
            median_ms=record.time.median_ms,
            rounds=len(record.time.rounds),
            reason=f"not sampled in turn with {backend}",
        )
    low, high = speedup.ci_low, speedup.ci_high
    return Reference(
        median_ms=record.time.median_ms,
        rounds=len(record.time.rounds),
        ratio=1 / speedup.ratio,
        ci_low=1 / high if high else None,
        ci_high=1 / low if low else None,
    )
