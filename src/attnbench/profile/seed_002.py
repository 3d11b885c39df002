"""Captures of a serving step named as in seed 002: one file per operator, captures and logs in separate folders.

    profiles/benchmark_bs8_nc1024.nsys-rep                                    p-logs/benchmark_bs8_nc1024.log
    profiles-cu/benchmark_bs8_nc1024_{embedding,tc,hstu_fwd}.ncu-rep          pcu-logs/… .log

An operator is selected by the range in which it runs, whatever its kernels are called on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnbench.errors import UsageError, refusal
from attnbench.profile.job import Job
from attnbench.profile.take import Options

NAME, WORKLOAD = "seed-002", "hstu-serving"
OPERATORS = {"embedding": "embedding", "projection": "tc", "attention": "hstu_fwd"}
"The seed's name of an operator, by the range of a step."
PLACES = {"nsys": ("profiles", "p-logs"), "ncu": ("profiles-cu", "pcu-logs")}
"Folders of captures and of logs, by tool."


@dataclass(frozen=True, slots=True)
class Shot:
    """One capture to take."""

    job: Job
    name: str
    "name of its file in its folder, without suffix"
    options: Options


def shots(tool: str, jobs: Sequence[Job], options: Options) -> list[Shot]:
    """Return the captures of the first row of a single case.

    Raises:
        UsageError: the seed has no names for the tool, the workload or the cases.
    """
    who = "attnbench profile"
    if tool not in PLACES:
        raise UsageError(refusal(who, "--layout", NAME, f"has no names for captures of {tool}", " or ".join(PLACES)))
    first = jobs[0]
    if first.workload != WORKLOAD or len({job.case_id for job in jobs}) > 1:
        cases = len({job.case_id for job in jobs})
        words = f"is of one step of {WORKLOAD}, not of {cases} of {first.workload}"
        raise UsageError(refusal(who, "--layout", NAME, words, f"`{who} {tool} {WORKLOAD}`, one case"))
    for flag, value in (("--range", options.range), ("--kernel", options.kernel)):
        if value is not None and tool == "ncu":
            raise UsageError(refusal(who, flag, value, f"does not go with --layout {NAME}", "one of the two"))
    stem = f"benchmark_bs{first.case['batch']}_nc{first.case['num_candidates']}"
    if tool == "nsys":
        return [Shot(first, stem, options)]
    return [Shot(first, f"{stem}_{word}", replace(options, range=name)) for name, word in OPERATORS.items()]


def place(folder: Path, tool: str) -> Path:
    """Return the folder of a tool's captures, created."""
    found = folder / PLACES[tool][0]
    found.mkdir(parents=True, exist_ok=True)
    return found


def put_log(folder: Path, tool: str, name: str) -> None:
    """Move a tool's log from beside its capture to the folder of logs."""
    captures, logs = (folder / one for one in PLACES[tool])
    log = captures / f"{name}.log"
    if log.is_file():
        logs.mkdir(exist_ok=True)
        log.replace(logs / log.name)
