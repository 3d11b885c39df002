"""attnbench with little to do: the smallest case of whatever a command plans, with few samples, but really carried out.

python smallest.py VERB …
"""

from __future__ import annotations

import dataclasses
import sys
from itertools import islice

import attnbench.cli.profile
import attnbench.sweep.run
import attnbench.tune.space
from attnbench.cli import main
from attnbench.cli.request import make_run
from attnbench.record import Run
from attnbench.sweep.run import execute
from attnbench.tune.space import space
from attnbench.workloads.base import load_workload

CONFIGURATIONS = 4
SECONDS, SAMPLES = 0.2, 4
FLAGS = {
    "load": ("--duration", "1", "--users", "16"),
    "tune": ("--rounds", "10", "--seconds", "1", "--jobs", "2"),
    "profile": ("--timeout", "100"),
}


def small(run: Run) -> Run:
    """The run with only its case of the least work."""
    flops = {group.case_id: _flops(group.workload, group.case) for group in run.plan}
    least = min(flops, key=flops.__getitem__)
    settings = dataclasses.replace(
        run.settings,
        max_seconds=min(run.settings.max_seconds, SECONDS),
        warmup=run.settings.warmup and min(run.settings.warmup, SAMPLES),
        iterations=run.settings.iterations and min(run.settings.iterations, SAMPLES),
    )
    plan = tuple(group for group in run.plan if group.case_id == least)
    return dataclasses.replace(run, plan=plan, settings=settings)


def _flops(name: str, case: dict) -> int:
    workload = load_workload(name)
    return workload.work(workload.case(case)).flops


attnbench.sweep.run.execute = lambda run, **more: execute(small(run), **more)
attnbench.cli.profile.make_run = lambda *args, **more: small(make_run(*args, **more))
attnbench.tune.space.space = lambda *args: dict(islice(space(*args).items(), CONFIGURATIONS))

if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb not in FLAGS or "--dry-run" in rest:
        sys.exit(main([verb, *rest]))
    given = {word for word in rest if word.startswith("--")}
    given |= {"--users"} if "--gap-s" in given else set()  # which says how many there are
    pairs = zip(FLAGS[verb][::2], FLAGS[verb][1::2], strict=True)
    sys.exit(main([verb, *rest, *(word for flag, value in pairs if flag not in given for word in (flag, value))]))
