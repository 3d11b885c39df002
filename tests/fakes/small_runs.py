"""Runs of small attention cases with the backends of misbehaving.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnbench.record import PlannedGroup, Record, Run, Settings
from attnbench.workloads.base import load_workload

FAKES = Path(__file__).parent
MISBEHAVING = str(FAKES / "misbehaving.py")
LEAVING = str(FAKES / "leaving.py")
UNTIDY = str(FAKES / "untidy.py")
HARMFUL = str(FAKES / "harmful.py")

CASES = (
    {"batch": 1, "seqlen": 15, "seqlen_k": 33, "nheads": 2, "headdim": 16, "causal": True, "dtype": "fp32"},
    {"batch": 2, "seqlen": 17, "seqlen_k": 17, "nheads": 1, "headdim": 8, "causal": True, "dtype": "fp32"},
)
"""Causal, with more keys than queries first: alignment shows."""


def small_run(*groups: Sequence[str], replicates: int = 1, **settings: Any) -> Run:
    """A run of a group for each list of backends, of the cases in turn; `honest` is the baseline."""
    workload = load_workload("attention")
    plan = []
    for replicate in range(replicates):
        for number, backends in enumerate(groups):
            case = workload.case({**CASES[number % len(CASES)], "batch": 1 + number})
            name = case.id if not replicate else f"{case.id}#{replicate}"
            plan.append(
                PlannedGroup(
                    group=name,
                    workload="attention",
                    case=case.to_dict(),
                    case_id=case.id,
                    backends=tuple(backends),
                    replicate=replicate,
                )
            )
    values = {"device": "cpu", "baseline": "honest", "warmup": 1, "iterations": 10, "timeout": 600.0}
    return Run(
        id="0badcafe",
        suite="small",
        command="attnbench run small",
        started="2026-11-20T12:34:56Z",
        plan=tuple(plan),
        settings=Settings(**(values | settings | {"replicates": replicates})),
        backend_files=(Path(MISBEHAVING).name,),
    )


def by_name(run: Run, group: int = 0) -> dict[str, Record]:
    """Records of a group of the plan."""
    return {record.backend: record for record in run.records if record.group == run.plan[group].group}
