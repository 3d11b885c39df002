"""Shards put together: one run again, in the order of the plan that was cut."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from attnbench.errors import UsageError, refusal
from attnbench.record import Environment, Record, Run, Shard
from attnbench.store.derive import derive

WHO = "attnbench merge"


def merge(runs: Sequence[tuple[str, Run]], *, run_id: str) -> Run:
    """The run that shards are of.

    Args:
        runs: all shards, each with its name for messages.
        run_id: of the result.

    Raises:
        UsageError: one is no shard, is of another plan or there twice; or one is missing.
    """
    first_name, first = runs[0]
    seen: dict[int, str] = {}
    for name, run in runs:
        shard, whole = _shard(name, run), _shard(first_name, first)
        differs = _difference(run, first, shard, whole)
        if differs:
            wrong = f"is no shard of the same run as {first_name}: another {differs}"
            raise UsageError(refusal(WHO, "RUN", name, wrong, f"the {whole.count} shards of one suite"))
        if shard.index in seen:
            wrong = f"is shard {shard.index}/{shard.count}, as {seen[shard.index]} is"
            raise UsageError(refusal(WHO, "RUN", name, wrong, "each shard once"))
        seen[shard.index] = name
    missing = [str(index) for index in range(1, whole.count + 1) if index not in seen]
    if missing:
        accepted = f"all {whole.count} shards"
        raise UsageError(refusal(WHO, "shards", ", ".join(missing), f"of {whole.count} are missing", accepted))
    return _merged([run for _, run in runs], whole, run_id)


def _shard(name: str, run: Run) -> Shard:
    if run.shard is None:
        raise UsageError(refusal(WHO, "RUN", name, "is no shard", "runs of `attnbench run --shard I/N`"))
    return run.shard


def _difference(run: Run, first: Run, shard: Shard, whole: Shard) -> str | None:
    """What two shards that belong together have in common, and these have not."""
    for name, one, other in (
        ("suite", run.suite, first.suite),
        ("number of shards", shard.count, whole.count),
        ("plan", shard.groups, whole.groups),
        ("setting", _settings(run), _settings(first)),
    ):
        if one != other:
            return name
    return None


def _settings(run: Run) -> object:
    """All but the device: which GPU of its machine a shard took is its own affair."""
    return dataclasses.replace(run.settings, device="")


def _merged(runs: Sequence[Run], whole: Shard, run_id: str) -> Run:
    order = {group: number for number, group in enumerate(whole.groups)}
    environments: list[Environment] = []
    records: list[Record] = []
    for run in runs:
        for one in run.environments:
            if one not in environments:
                environments.append(one)
        numbers = [environments.index(one) for one in run.environments]
        records += [
            one if one.environment is None else dataclasses.replace(one, environment=numbers[one.environment])
            for one in run.records
        ]
    first = min(runs, key=lambda run: run.started)
    plan = sorted((group for run in runs for group in run.plan), key=lambda group: order[group.group])
    return derive(
        dataclasses.replace(
            first,
            id=run_id,
            command=re.sub(r" --shard[ =]\S+", "", first.command),
            shard=None,
            plan=tuple(plan),
            environments=tuple(environments),
            records=tuple(sorted(records, key=lambda one: order[one.group])),
        )
    )
