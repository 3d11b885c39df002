"""Take the captures of `attnbench profile`: what to launch, with which tool, into which folder."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.cli import flags
from attnbench.cli.output import Output
from attnbench.errors import NothingToRun, Unavailable, refusal
from attnbench.machine.device import Device
from attnbench.machine.gpu_lock import holding
from attnbench.profile import seed_002
from attnbench.profile.seed_002 import Shot
from attnbench.workloads.base import load_workload

if TYPE_CHECKING:
    from attnbench.profile.capture import Capture
    from attnbench.profile.categories import Categories
    from attnbench.profile.everything import Request
    from attnbench.profile.job import Job
    from attnbench.profile.roofline import Point
    from attnbench.profile.take import Options
    from attnbench.record import PlannedGroup, Run

WHO = "attnbench profile"
INSTEAD_OF_NSYS = (
    "torch.profiler takes its place, as in `attnbench profile torch`: the same tables of kernels, categories, copies, "
    "ranges, CUDA API and idle time, and a trace that ui.perfetto.dev opens; without other processes and a .nsys-rep"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The captures to take."""

    args: argparse.Namespace
    run: Run
    "cases and backends"
    suite: str
    "as the user typed it"
    options: Options
    launches: int | None
    "None is the tool's default"
    warmup: int
    whole: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths of --backends files, valid in the profiled process."""
        return tuple(str(Path(file).absolute()) for file in flags.backend_words(self.args.backends)[1])

    def holding(self) -> AbstractContextManager[None]:
        """While open, other runs are kept off the GPU."""
        device = Device.parse(self.run.settings.device)
        return holding([device], Output().note, wait=not self.args.no_wait)

    def job(self, group: PlannedGroup, backends: Sequence[str], tool: str) -> Job:
        """Return the job of one process."""
        from attnbench.profile.everything import LAUNCHES
        from attnbench.profile.job import Job

        settings = self.run.settings
        return Job(
            workload=group.workload,
            case=group.case,
            case_id=group.case_id,
            backends=tuple(backends),
            files=self.files,
            device=settings.device,
            input=settings.input,
            seed=settings.seed,
            warmup=self.warmup,
            launches=self.launches or (1 if self.whole else LAUNCHES[tool]),
            whole=self.whole,
            marks="torch" if tool == "torch" else "nvtx",
        )

    def jobs(self, tool: str) -> Iterator[Job]:
        """Yield one job per case and backend."""
        for group in self.run.plan:
            for backend in group.backends:
                yield self.job(group, [backend], tool)

    def shots(self, tool: str) -> list[Shot]:
        """Return the captures to take: one per job, or those that a layout names.

        Raises:
            UsageError: the layout has no names for them.
        """
        jobs = list(self.jobs(tool))
        if self.args.layout == seed_002.NAME:
            return seed_002.shots(tool, jobs, self.options)
        return [Shot(job, name, self.options) for job, name in zip(jobs, _names(jobs), strict=True)]

    def missing(self) -> dict[str, str]:
        """Backends that are not installed, with the reason: no process is started for them.

        Raises:
            NothingToRun: one has its kernels where no profiler of ours looks.
        """
        from attnbench.backends.registry import parse_selector
        from attnbench.machine.advice import install_line
        from attnbench.suites.user_backends import known_backends

        known = known_backends(flags.backend_words(self.args.backends)[1])
        found = {}
        for name in dict.fromkeys(name for group in self.run.plan for name in group.backends):
            backend = known[parse_selector(name)[0]]
            if backend.in_ranks:
                wrong = "runs its kernels in processes of ranks, which a profiler here does not see"
                accepted = "phases of a call are timed by `attnbench run`"
                raise NothingToRun(refusal(WHO, "backend", name, wrong, accepted))
            try:
                backend.probe()
            except Unavailable as why:
                found[name] = install_line(str(why))
        return found

    def points(self, captures: Sequence[Capture], launches: int) -> list[Point]:
        """Return points on the roofline, of the cases of the plan; none by ranges, which do unknown parts of the work."""
        if self.options.range is not None or self.args.layout == seed_002.NAME:
            return []
        from attnbench.dtypes import DTYPES
        from attnbench.machine.peaks import peak
        from attnbench.profile.roofline import points

        workload = load_workload(self.run.plan[0].workload)
        cases = {group.case_id: workload.case(group.case) for group in self.run.plan}
        card = next((capture.device for capture in captures if capture.device), None)
        peaks = {
            name: peak(card, case.dtype) if card and case.dtype in DTYPES else None for name, case in cases.items()
        }
        return points(captures, {name: workload.work(case) for name, case in cases.items()}, peaks, launches)


@dataclass(frozen=True, slots=True)
class Captures:
    """The captures taken."""

    captures: list[Capture]
    points: list[Point]
    losses: list[str]
    place: Path


def one_tool(plan: Plan, rules: Categories) -> Captures | None:
    """Take a capture of every case and backend; return None if the command lines were only printed.

    Raises:
        Unavailable: the tool cannot work here, or took no capture.
        NothingToRun: no backend is installed.
    """
    from attnbench.profile.folder import keep, open_folder
    from attnbench.profile.take import probe, take

    tool, by_seed = plan.args.tool, plan.args.layout == seed_002.NAME
    missing = plan.missing()
    shots = plan.shots(tool)
    if plan.args.dry_run:
        _show_commands(plan, tool, shots)
        return None
    try:
        program = probe(tool, plan.run.settings.device)
    except Unavailable as why:
        if tool != "nsys" or by_seed or not Device.parse(plan.run.settings.device).on_gpu:
            raise
        Output().note(f"{why}; {INSTEAD_OF_NSYS}")
        tool = "torch"
        shots, program = plan.shots(tool), probe(tool, plan.run.settings.device)
    if all(shot.job.backends[0] in missing for shot in shots):
        raise NothingToRun(f"{WHO}: nothing can be launched; {next(iter(missing.values()))}")
    folder = open_folder(plan.args.out, force=plan.args.force)
    captures: list[Capture] = []
    losses = list(missing.values())
    for shot in shots:
        job, name = shot.job, shot.name
        if job.backends[0] in missing:
            continue
        Output().note(f"{tool}: {job.title}" + (f", {name}" if by_seed else ""))
        place = seed_002.place(folder, tool) if by_seed else folder
        with plan.holding():
            taken = take(tool, program, job, place, dataclasses.replace(shot.options, file=name), rules)
        if by_seed:
            seed_002.put_log(folder, tool, name)
        if taken.capture is None:
            losses.append(f"{job.backends[0]}: {(taken.reason or '').removeprefix(f'{job.backends[0]}: ')}")
            continue
        captures.append(dataclasses.replace(taken.capture, name=name.removeprefix("profile_")))
        keep(folder, captures)  # after each, so that Ctrl-C keeps the captures taken
    if not captures:
        raise Unavailable(f"{WHO} {tool}: no capture; {losses[-1]}; {folder} has what {tool} printed")
    return Captures(captures, plan.points(captures, shots[0].job.launches), losses, folder)


def everything(plan: Plan, rules: Categories) -> Captures | None:
    """Run `profile all`; return None if the command lines were only printed.

    Raises:
        Unavailable: no tool took a capture.
        NothingToRun: no backend is installed.
    """
    from attnbench.profile.everything import LAUNCHES, profile_all, tools_of
    from attnbench.profile.folder import open_folder

    request = _request(plan)
    if plan.args.dry_run:
        for words in (("doctor",), request.run_words, request.compare_words):
            Output().line(shlex.join(["attnbench", *words]))
        for tool in tools_of(plan.run.settings.device):
            jobs = [dataclasses.replace(request.job, launches=request.launches or LAUNCHES[tool])]
            name = "flash_attn_ncu_full" if tool == "ncu" else f"flash_attn_{tool}"
            options = dataclasses.replace(plan.options, set="full")
            _show_commands(plan, tool, [seed_002.Shot(job, name, options) for job in jobs])
        return None
    folder = open_folder(plan.args.out, force=plan.args.force)
    done = profile_all(
        request,
        folder,
        rules,
        on_step=lambda file: Output().note(f"profile all: {file}"),
        points=plan.points,
        holding=plan.holding,
    )
    failed = [f"{step.title}: {step.reason}" for step in done.steps if step.reason is not None]
    if not done.captures:
        raise Unavailable(f"{WHO} all: no capture; {failed[-1]}; {folder / 'SUMMARY.md'} has the other reasons")
    points = plan.points(done.captures, request.launches or LAUNCHES["ncu"])
    return Captures(done.captures, points, failed, folder / "SUMMARY.md")


def _request(plan: Plan) -> Request:
    from attnbench.profile.everything import Request

    first, missing = plan.run.plan[0], plan.missing()
    backends = [name for name in first.backends if name not in missing]
    if not backends:
        raise NothingToRun(f"{WHO}: nothing can be launched; {next(iter(missing.values()))}")
    cases = len({group.case_id for group in plan.run.plan})
    aside = [f"Not installed: {why}." for why in missing.values()]
    if cases > 1:
        aside.append(
            f"The captures are of the first of {cases} cases; "
            f"`attnbench profile nsys {Path(plan.suite).name}` takes one of each."
        )
    words = [*_suite_words(plan), *(["--no-wait"] if plan.args.no_wait else [])]
    chosen = [word for value in plan.args.backends or () for word in ("--backends", value)]
    compare = ("run", *words, *([] if chosen else ["--backends", "all"]), "--no-save")
    if first.workload == "attention":
        case = load_workload(first.workload).case(first.case)
        chosen += [word for value in plan.args.skip or () for word in ("--skip", value)]
        chosen += [
            word
            for flag in ("device", "input", "seed")
            if (value := getattr(plan.args, flag, None)) is not None
            for word in (f"--{flag}", value)
        ]
        chosen += ["--no-wait"] if plan.args.no_wait else []
        compare = ("compare", *load_workload(first.workload).flags(case), *chosen, "--no-save")
    return Request(
        job=plan.job(first, backends, "ncu"),
        run_words=("run", *words, "--no-save"),
        compare_words=compare,
        left_aside=tuple(aside),
        options=plan.options,
        launches=plan.launches,
    )


def _suite_words(plan: Plan) -> list[str]:
    """Return suite and flags as the user typed them, with file paths: the run's own command names no folder."""
    paths = {Path(file).name: file for file in plan.files}
    if plan.suite.endswith(".toml"):
        paths[Path(plan.suite).name] = plan.suite
    words = shlex.split(plan.run.command)[2:]
    return [",".join(paths.get(part, part) for part in word.split(",")) for word in words]


def _names(jobs: Sequence[Job]) -> list[str]:
    """Return the file names of captures; selectors that differ only in characters not allowed in files get numbers."""
    from attnbench.profile.job import file_name

    several = len({job.case_id for job in jobs}) > 1
    names: list[str] = []
    for job in jobs:
        name = file_name(job.backends, job.case_id if several else None)
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names


def _show_commands(plan: Plan, tool: str, shots: Sequence[Shot]) -> None:
    from attnbench.profile.take import commands

    target = ["python", "-m", "attnbench.profile.target", "JOB", "ANSWER", "TRACE"]
    place = Path(plan.args.out, *seed_002.PLACES[tool][:1] if plan.args.layout else ())
    for shot in shots:
        job = shot.job
        Output().line(f"{job.title}: {job.warmup} launches before the window, {job.launches} in it")
        for line in commands(tool, tool, target, place / shot.name, shot.options):
            Output().line(f"  {shlex.join(line)}")
