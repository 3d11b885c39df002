"""Merge the shards of a run, in the order of the plan."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence

from attnbench.errors import UsageError, refusal
from attnbench.record import Environment, Record, Run, Shard
from attnbench.store.derive import derive

WHO = "attnbench merge"
MOST_NAMED = 10
"Missing shards named in a message."


def merge(runs: Sequence[tuple[str, Run]], *, run_id: str) -> Run:
    """Return the run of which the given runs are the shards.

    Args:
        runs: all shards, each with its name for messages.
        run_id: id of the result.

    Raises:
        UsageError: a run is not a shard, is damaged, or comes from another plan or twice; or a shard is missing, or the
            shards were not cut from one plan.
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
    missing = [f"{index}/{whole.count}" for index in range(1, whole.count + 1) if index not in seen]
    if missing:
        accepted, left = f"all {whole.count} shards", len(missing) - MOST_NAMED
        some = ", ".join(missing[:MOST_NAMED]) + f" and {left} more" * (left > 0)
        raise UsageError(refusal(WHO, "shards", some, "are not among them", accepted))
    _check_cut(runs, whole)
    return _merged([run for _, run in runs], whole, run_id)


def _shard(name: str, run: Run) -> Shard:
    if run.shard is None:
        raise UsageError(refusal(WHO, "RUN", name, "is no shard", "runs of `attnbench run --shard I/N`"))
    shard, own = run.shard, {group.group: set(group.backends) for group in run.plan}
    rows = [(record.group, record.backend) for record in run.records]
    numbers = [record.environment for record in run.records if record.environment is not None]
    sound = (
        1 <= shard.index <= shard.count <= len(set(shard.groups)) == len(shard.groups)
        and len(set(rows)) == len(rows)
        and all(backend in own.get(group, ()) for group, backend in rows)
        and all(0 <= number < len(run.environments) for number in numbers)
    )
    if not sound:
        raise UsageError(
            refusal(WHO, "RUN", name, "is damaged: its rows are not those of its plan", "a shard as written")
        )
    return shard


def _check_cut(runs: Sequence[tuple[str, Run]], whole: Shard) -> None:
    """Refuse shards that do not make up the plan: another version of attnbench may cut it differently."""
    homes: dict[str, str] = {}
    for name, run in runs:
        for group in (one.group for one in run.plan):
            if group in homes or group not in whole.groups:
                wrong = f"in {name} is " + (f"also in {homes[group]}" if group in homes else "not of the plan")
                raise UsageError(refusal(WHO, "group", group, wrong, "shards that were cut alike"))
            homes[group] = name
    for group in whole.groups:
        if group not in homes:
            raise UsageError(refusal(WHO, "group", group, "is in none of the shards", "shards that were cut alike"))


def _difference(run: Run, first: Run, shard: Shard, whole: Shard) -> str | None:
    """Return a property that all shards of a run share and these two do not; None if there is none."""
    for name, one, other in (
        ("suite", run.suite, first.suite),
        ("number of shards", shard.count, whole.count),
        ("plan", shard.groups, whole.groups),
        *_settings(run, first),
        ("layout", run.layout, first.layout),
        ("list of --backends files", run.backend_files, first.backend_files),
        ("--backends", _asked(run, "--backends"), _asked(first, "--backends")),
        ("--skip", _asked(run, "--skip"), _asked(first, "--skip")),
    ):
        if one != other:
            return name
    return None


def _asked(run: Run, flag: str) -> list[str]:
    """The values of a flag of the run's command, in any order.

    Rows that a plan has for one request may differ with what is installed, so plans do not say whether it was the same.
    """
    try:
        words = shlex.split(run.command)
    except ValueError:  # of a file changed by hand: a quote without an end
        words = run.command.split()
    return sorted(one for name, text in itertools.pairwise(words) if name == flag for one in text.split(","))


def _settings(run: Run, first: Run) -> Iterator[tuple[str, object, object]]:
    """Yield each setting with both values; of the device not its number: each shard may use another GPU of its machine."""
    for field in dataclasses.fields(run.settings):
        one, other = (getattr(of.settings, field.name) for of in (run, first))
        if field.name == "device":
            one, other = (device.partition(":")[0] for device in (one, other))
        yield f"setting, {field.name}={one} and not {other}", one, other


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
