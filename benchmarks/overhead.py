"""How much of a run's wall time is sampling, and where the rest goes: suite `overhead`, worker start included.

python benchmarks/overhead.py --out benchmarks/results/overhead-h200.json [--groups N]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from attnbench.machine.devices import resolve
from attnbench.record import Status, to_dict
from attnbench.store.runfile import new_id, now
from attnbench.suites.load import load_suite
from attnbench.suites.plan import Request, build
from attnbench.sweep.run import Event, execute


class Stages:
    """Wall time by what the worker was doing, as its parent sees it: the parent looks ten times a second.

    A short stage is seen in proportion to its length, so shares are right over many cases and not in one.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._since, self._stage = time.perf_counter(), "start"

    def begin(self, phase: str) -> None:
        """Count the time since the last call for the stage named there."""
        now = time.perf_counter()
        self.seconds[self._stage] += now - self._since
        self._since, self._stage = now, phase.partition(":")[0].partition(" (")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=None, help="only so many cases, evenly drawn")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = resolve("auto")
    suite = load_suite("overhead", device.kind)
    run = build(
        Request(suite=suite, device=str(device)), run_id=new_id(), command="benchmarks/overhead.py", started=now()
    )
    if args.groups:
        count = len(run.plan)
        run = dataclasses.replace(run, plan=tuple(run.plan[n * count // args.groups] for n in range(args.groups)))
    marks: list[tuple[float, float]] = []
    stages = Stages()
    started = time.perf_counter()

    def heard(event: Event) -> None:
        if event.kind == "activity":
            stages.begin(event.text)
        if event.kind == "group":
            stages.begin("between cases")
            marks.append((time.perf_counter() - started, event.sampling_s))

    run = execute(run, on_event=heard)
    wall = time.perf_counter() - started
    passed = [record for record in run.records if record.status is Status.PASSED and record.time]
    halves = [
        (t.ci_high_ms - t.ci_low_ms) / 2 / t.median_ms
        for r in passed
        if (t := r.time) and t.ci_low_ms is not None and t.ci_high_ms is not None and t.median_ms
    ]
    result = {
        "environment": to_dict(run.environments[0]),
        "settings": to_dict(run.settings),
        "groups": len(run.plan),
        "records": len(run.records),
        "passed": len(passed),
        "wall_s": wall,
        "sampling_s": marks[-1][1],
        "share": marks[-1][1] / wall,
        "first_group_s": marks[0][0],
        "stages_s": dict(stages.seconds.most_common()),
        "seconds_per_group": statistics.median(b[0] - a[0] for a, b in pairwise(marks)),
        "median_us": statistics.quantiles((1e3 * r.time.median_ms for r in passed), n=10),
        "samples": statistics.quantiles((r.time.num_samples for r in passed), n=10),
        "relative_half_width": statistics.quantiles(halves, n=10),
        "stopped_by": {word: sum(r.time.stopped_by == word for r in passed) for word in ("rel-ci", "max-seconds")},
        "marks": marks,
        "not_passed": [[r.case_id, r.backend, r.status, r.reason] for r in run.records if r not in passed],
    }
    args.out.write_text(json.dumps(result, indent=1))
    print(
        json.dumps(
            {key: value for key, value in result.items() if key not in ("marks", "environment", "settings")}, indent=1
        )
    )


if __name__ == "__main__":
    main()
