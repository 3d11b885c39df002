"""Cut a plan into shards for independent machines: the cut is the same on every machine.

Cases are assigned by their exact work, largest first, each to the shard with the least work so far; the replicates of a
case stay together.
"""

from __future__ import annotations

import dataclasses
import re

from attnbench.errors import UsageError, refusal
from attnbench.record import PlannedGroup, Run, Shard
from attnbench.workloads.base import load_workload

ACCEPTED = "I/N, such as 2/5: the second of five"


def parse_shard(who: str, text: str) -> tuple[int, int]:
    """Return the number of the shard and the count of shards.

    Raises:
        UsageError: the text is malformed, or there is no such shard.
    """
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(refusal(who, "--shard", text, "is no shard", ACCEPTED))
    return index, count


def shard_of(who: str, run: Run, text: str) -> Run:
    """Return the run with the groups of one shard of its plan.

    Raises:
        UsageError: there is no such shard, or no case for it.
    """
    index, count = parse_shard(who, text)
    work: dict[str, int] = {}
    for group in run.plan:
        work[group.case_id] = work.get(group.case_id, 0) + _work(group)
    if count > len(work):
        cases = f"{len(work)} case{'s' * (len(work) != 1)}"
        raise UsageError(
            refusal(who, "--shard", text, f"is one of more shards than cases ({cases})", "as many at most")
        )
    load, homes = [0] * count, dict[str, int]()
    for case in sorted(work, key=lambda one: -work[one]):  # stable: cases of equal work keep the plan's order
        homes[case] = load.index(min(load))
        load[homes[case]] += work[case]
    mine = tuple(group for group in run.plan if homes[group.case_id] == index - 1)
    whole = tuple(group.group for group in run.plan)
    return dataclasses.replace(run, plan=mine, shard=Shard(index=index, count=count, groups=whole))


def _work(group: PlannedGroup) -> int:
    """Return the FLOPs of a group's case, at least 1, so that groups without FLOPs are spread too.

    The number of backends is ignored: it depends on what is installed and must not change the cut.
    """
    workload = load_workload(group.workload)
    return 1 + workload.planned_flops(workload.case(group.case))
