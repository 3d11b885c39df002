"""`attnbench profile all`: the steps of seed 004's auto_profile.sh, writing the same files.

A step that fails is recorded, and the next one runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from attnbench.errors import Unavailable
from attnbench.machine import child
from attnbench.machine.device import Device
from attnbench.profile import seed_003, tables
from attnbench.profile.capture import Capture
from attnbench.profile.categories import ATTENTION, Categories
from attnbench.profile.folder import keep
from attnbench.profile.job import Job
from attnbench.profile.roofline import Point
from attnbench.profile.running import reason, run
from attnbench.profile.sums import category_ms
from attnbench.profile.table import Table
from attnbench.profile.take import SUFFIX, Options, Taken, probe, take
from attnbench.store.files import write_text

COMMAND_S = 3600.0
"""Time limit of one attnbench command, which has its own time limits for steps that may hang."""

LAUNCHES = {"ncu": 1, "nsys": 10, "torch": 10}
FILES = {"nsys": "flash_attn_nsys", "ncu": "flash_attn_ncu_full", "torch": "flash_attn_torch"}
TEXTS = {"nsys": ("nsys_stats.txt",), "ncu": ("ncu_memory_metrics.txt", "ncu_compute_metrics.txt"), "torch": ()}
TIMES = "comparison.md"
"""The comparison of times as `attnbench compare --md` writes it; SUMMARY.md opens with it."""
MEMORY = (
    "duration_ms",
    "dram_gbps",
    "dram_percent",
    "dram_bytes",
    "memory_percent",
    "l1_hit_percent",
    "l2_hit_percent",
    "dram_mhz",
)
COMPUTE = (
    "duration_ms",
    "cycles",
    "sm_mhz",
    "sm_percent",
    "tensor_percent",
    "registers",
    "shared_bytes",
    "theoretical_occupancy_percent",
    "achieved_occupancy_percent",
    "instructions_per_cycle",
    "eligible_warps",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step and its outcome."""

    title: str
    file: str
    reason: str | None = None
    "why it failed; None if it did not"
    command: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The work of one `profile all`."""

    job: Job
    "the launches to capture; marks and counts are set for each tool"
    run_words: tuple[str, ...]
    "arguments of `attnbench` for baseline_benchmark.txt"
    compare_words: tuple[str, ...]
    "arguments of `attnbench` for comparison_results.txt"
    left_aside: tuple[str, ...] = ()
    "the parts of the suite that are not captured, as sentences"
    options: Options
    launches: int | None = None
    "None takes each tool's default"


@dataclass(slots=True)
class Everything:
    """The outcome of `profile all`."""

    steps: list[Step]
    captures: list[Capture]


def profile_all(
    request: Request,
    folder: Path,
    rules: Categories,
    *,
    on_step: Callable[[str], None],
    points: Callable[[Sequence[Capture], int], Sequence[Point]],
    holding: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Everything:
    """Run every step, and rewrite SUMMARY.md after each.

    Args:
        request: the work.
        folder: folder for the files.
        rules: categories.
        on_step: called with the file of each step before the step begins.
        points: places captures under the roofline; the second argument is the launches of each.
        holding: keeps other runs off the GPU while a capture is taken; the commands do that themselves.
    """
    done = Everything([], [])
    (folder / TIMES).unlink(missing_ok=True)  # with --force, an earlier one may exist
    plan: list[tuple[str, Callable[[], Step]]] = [
        ("gpu_info.txt", lambda: _command("the machine", ("doctor",), folder / "gpu_info.txt")),
        ("baseline_benchmark.txt", lambda: _command("baseline", request.run_words, folder / "baseline_benchmark.txt")),
        (
            "comparison_results.txt",
            lambda: _command(
                "comparison",
                (*request.compare_words, "--md", str(folder / TIMES)),
                folder / "comparison_results.txt",
                shown=request.compare_words,
            ),
        ),
        *(
            (
                FILES[tool] + SUFFIX[tool],
                lambda tool=tool: _capture(tool, request, folder, rules, done.captures, holding),
            )
            for tool in tools_of(request.job.device)
        ),
    ]
    for file, step in plan:
        on_step(file)
        done.steps.append(step())
        times = folder / TIMES
        opening = times.read_text(encoding="utf-8") if times.is_file() else ""
        summary = _summary(request, done, opening, points(done.captures, request.launches or LAUNCHES["ncu"]))
        write_text(folder / "SUMMARY.md", summary)
        if done.captures:
            keep(folder, done.captures)
    return done


def tools_of(device: str) -> tuple[str, ...]:
    """Return the profilers that record something on a device; on a CPU that is torch.profiler alone."""
    return ("nsys", "ncu", "torch") if Device.parse(device).on_gpu else ("torch",)


def _command(title: str, words: Sequence[str], file: Path, shown: Sequence[str] | None = None) -> Step:
    """Run an attnbench command and write its output to a file; `shown` is the command line for the summary."""
    file.unlink(missing_ok=True)
    finished = run(child.command("attnbench", *words), timeout_s=COMMAND_S, log=file)
    command = " ".join(["attnbench", *(words if shown is None else shown)])
    # Exit code 1 is a result too: an output was wrong, and the file names it.
    why = None if finished.code in (0, 1) else reason(f"attnbench {words[0]}", finished, COMMAND_S)
    return Step(title, file.name, why, command)


def _capture(
    tool: str,
    request: Request,
    folder: Path,
    rules: Categories,
    captures: list[Capture],
    holding: Callable[[], AbstractContextManager[None]],
) -> Step:
    title = {"nsys": "Nsight Systems", "ncu": "Nsight Compute", "torch": "torch.profiler"}[tool]
    file = FILES[tool]
    options = dataclasses.replace(request.options, file=file, set="full")
    job = dataclasses.replace(
        request.job, marks="torch" if tool == "torch" else "nvtx", launches=request.launches or LAUNCHES[tool]
    )
    for name in TEXTS[tool]:  # with --force, files of an earlier capture would lie beside this failure
        (folder / name).unlink(missing_ok=True)
    try:
        with holding():
            taken = take(tool, probe(tool, job.device), job, folder, options, rules)
    except Unavailable as why:
        taken = Taken(None, str(why))
    if taken.capture is None:
        return Step(title, file + SUFFIX[tool], taken.reason)
    capture = dataclasses.replace(
        taken.capture, name=tool, notes=(*taken.capture.notes, *(f"left out: {one}" for one in taken.left_out))
    )
    captures.append(capture)
    _texts(tool, capture, folder)
    return Step(title, file + SUFFIX[tool], None, capture.command)


def _texts(tool: str, capture: Capture, folder: Path) -> None:
    """Write the text files of a tool."""
    if tool == "nsys":
        printed = folder / f"{FILES[tool]}_stats.txt"
        if printed.is_file():
            printed.replace(folder / TEXTS[tool][0])
    if tool == "ncu":
        for name, wanted in zip(TEXTS[tool], (MEMORY, COMPUTE), strict=True):
            write_text(folder / name, tables.metrics(capture, name.split("_")[1], wanted).plain())


def _summary(request: Request, done: Everything, times: str, points: Sequence[Point]) -> str:
    failed = [step for step in done.steps if step.reason is not None]
    steps = Table(
        title="",
        heads=("step", "file", "outcome"),
        rows=tuple((step.title, step.file, "done" if step.reason is None else "failed") for step in done.steps),
    )
    parts = ["# Profile\n", f"Launched: {request.job.title}.\n"]
    cards = {capture.device for capture in done.captures if capture.device}
    parts += [f"On {', '.join(sorted(cards))}.\n"] if cards else []
    parts += [f"{one}\n" for one in request.left_aside]
    if times:  # without its heading, the suite's name
        parts += ["## Times\n", times.partition("\n")[2].strip() + "\n"]
    parts += ["## Steps\n", steps.markdown()]
    if failed:
        parts += ["## What failed\n", "\n".join(f"- {step.title}: {step.reason}" for step in failed) + "\n"]
    for table in tables.chosen("all", done.captures, points):
        parts += [f"## {table.title[0].upper()}{table.title[1:]}\n", table.markdown()]
    timed = [capture for capture in done.captures if capture.tool != "ncu"]
    # Of plain products and a softmax no kernel counts as attention: a share of 0 % would say that there is none.
    if any(category_ms(capture, ATTENTION) for capture in timed):
        parts += ["## Shares\n", seed_003.table(timed).markdown()]
    commands = [f"- {step.title}: `{step.command}`" for step in done.steps if step.command]
    if commands:
        parts += ["## Commands\n", "\n".join(commands) + "\n"]
    return "\n".join(parts)
