"""Turn a request into a plan: which cases, measured by which backends, in which groups.

Groups come case by case, replicates outermost, so that a run stopped early holds whole replicates.  A group's name
depends only on its case, so a resumed run finds the groups it already has.  A backend that does not support a case
stays in the plan; its record has status `skipped` and the reason.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnbench.errors import NothingToRun, UsageError, names_nothing, parsed, refusal
from attnbench.record import PlannedGroup, Run, Settings
from attnbench.suites.choice import choose
from attnbench.suites.load import NamedCase, Suite
from attnbench.suites.settings import check_input, settle
from attnbench.workloads.base import Axis, Workload, load_workload, unknown_axis

MOST_GROUPS = 10_000
"""Limit that no useful run reaches: an accidental product of long lists is refused at once."""
STEPS, STEPPED = "FROM:TO:STEP", re.compile(r"([0-9]{1,9}):([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A suite and the user's changes to it."""

    suite: Suite
    device: str
    "cpu, cuda or cuda:N; resolved, not auto"
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    "parsed values by axis name (`parse_axis`)"
    backends: tuple[str, ...] = ()
    "selectors that replace the suite's"
    skip: tuple[str, ...] = ()
    baseline: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    "fields of `record.Settings` other than device and baseline"
    files: tuple[str, ...] = ()
    "paths of --backends files"


def build(request: Request, *, run_id: str, command: str, started: str) -> Run:
    """Build the run that `sweep.run.execute` executes.

    Args:
        request: the request.
        run_id: id of the run (`store.runfile.new_id`).
        command: command line that repeats the request.
        started: ISO 8601, UTC.

    Raises:
        UsageError: an unknown name, a value out of range, or a selection that leaves no case.
        NothingToRun: no backend of the request runs on this kind of device.
    """
    suite, workload = request.suite, load_workload(request.suite.workload)
    chosen = choose(
        suite,
        request.device.partition(":")[0],
        backends=request.backends,
        skip=request.skip,
        baseline=request.baseline,
        files=request.files,
    )
    settled = settle("attnbench", dict(suite.settings), dict(request.settings))
    asked = request.axes
    if "input" in settled:
        check_input(workload, settled["input"])
        asked = of_file(workload, settled["input"], asked)
    cases = expand(suite, workload, asked)
    workload.check_files(cases.values())
    chosen.check(cases)
    backends = {case_id: names for case_id, case in cases.items() if (names := chosen.names(case))}
    for case_id, names in backends.items():
        chosen.check_together(cases[case_id], names)
    if not backends:
        wrong = "leaves nothing of what is asked for"
        raise NothingToRun(refusal(suite.who, "--skip", ",".join(request.skip), wrong, "less of it"))
    baseline = _baseline(chosen.baseline, list(backends.values()))
    settings = Settings(device=request.device, baseline=baseline, **settled)
    if len(cases) * settings.replicates > MOST_GROUPS:
        wrong = f"times {len(cases)} cases are too many groups for one run"
        raise UsageError(refusal("attnbench", "--replicates", settings.replicates, wrong, f"at most {MOST_GROUPS}"))
    groups = [
        PlannedGroup(
            group=case_id if replicate == 0 else f"{case_id}#{replicate}",
            workload=workload.name,
            case=cases[case_id].to_dict(),
            case_id=case_id,
            backends=names,
            replicate=replicate,
        )
        for replicate in range(settings.replicates)
        for case_id, names in backends.items()
    ]
    return Run(
        id=run_id,
        suite=suite.name,
        command=command,
        started=started,
        plan=tuple(groups),
        settings=settings,
        layout=suite.layout,
        backend_files=tuple(Path(file).name for file in request.files),
    )


def of_file(workload: Workload, kind: str, asked: Mapping[str, tuple[Any, ...]]) -> Mapping[str, tuple[Any, ...]]:
    """Return the axes asked for, and the shape of captured inputs as if it was asked for.

    Raises:
        UsageError: the file cannot be read, or another shape is asked for; the message names the axis.
    """
    shape = {} if kind in workload.input_kinds else workload.captured_axes(kind)
    for name, size in shape.items():
        if name in asked and asked[name] != (size,):
            given = ",".join(map(str, asked[name]))
            flag, whole = f"--{name.replace('_', '-')}", ", ".join(f"{axis}={one}" for axis, one in shape.items())
            raise UsageError(refusal("attnbench", flag, given, f"is not that of {kind}", f"{size}; it has {whole}"))
    return {**asked, **{name: (size,) for name, size in shape.items()}}


def expand(suite: Suite, workload: Workload, asked: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Expand a suite into cases by id, each once, in the suite's order.

    In a suite of axes `asked` replaces values, and values of the suite that do not fit them are adapted if the workload
    can do so (`Workload.fitted`).  In a suite of listed cases `asked` selects among the values that cases state, and
    sets axes that a case leaves open.

    Raises:
        UsageError: an axis this workload does not have, a value the suite does not list, or a case
            that contradicts itself.
    """
    for name in asked:
        if name not in {axis.name for axis in workload.axes}:
            raise unknown_axis(suite.who, name, workload.axes)
    rows = _listed(suite, asked) if suite.cases else _crossed(suite, workload, asked)
    cases: dict[str, Any] = {}
    for number, values in enumerate(rows):
        if number == MOST_GROUPS:
            raise UsageError(
                refusal(
                    suite.who,
                    "cases",
                    f"more than {number}",
                    "are too many for one run",
                    f"at most {number}",
                    "fewer values on an axis",
                )
            )
        case = workload.case(workload.fitted(values, asked) if asked else values)
        first = cases.setdefault(case.id, case)
        if first != case:
            raise _one_name(suite, first, case)
    return cases


def _one_name(suite: Suite, first: Any, other: Any) -> UsageError:
    """Return the error for two cases that the names of rows cannot tell apart."""
    before, after = first.to_dict(), other.to_dict()
    axis = next(name for name in after if before[name] != after[name])
    wrong = f"and {after[axis]} are one case, {first.id}"
    return UsageError(refusal(suite.who, axis, before[axis], wrong, "values that differ in six digits"))


def parse_axis(who: str, axis: Axis, text: str, flag: str | None = None) -> tuple[Any, ...]:
    """Read the values of an axis from a comma-separated list.

    Args:
        who: subject of error messages.
        axis: axis of the workload.
        text: the list, in which FROM:TO:STEP stands for equally spaced whole numbers, including TO if a step ends
            there; for a boolean axis also ``both``.
        flag: how the value was given, if not by the axis' own flag.

    Raises:
        UsageError: naming the flag, the value and what is accepted.
    """
    if axis.boolean:
        choices: dict[str, tuple[Any, ...]] = {"true": (True,), "false": (False,), "both": (False, True)}
        if text in choices:
            return choices[text]
        raise UsageError(refusal(who, flag or axis.name, text, "is not known", "one of true, false, both"))
    name, parts, values = flag or "--" + axis.name.replace("_", "-"), [part.strip() for part in text.split(",")], []
    if not any(parts):
        raise names_nothing(who, name, text)
    for part in parts:
        values += parsed(who, name, part, functools.partial(_values, axis))
    return tuple(dict.fromkeys(values))


def _values(axis: Axis, text: str) -> list[Any]:
    """Return the values of one item of the list: a value of the axis (a grid has colons too), else FROM:TO:STEP.

    Raises:
        ValueError: the item is neither, or has no steps or more of them than a run may have groups.
    """
    try:
        return [axis.parse(text)]
    except ValueError as error:
        found, first = STEPPED.fullmatch(text), re.match(r"[0-9]+(?=:)", text)
        if found is None and first and _takes(axis, first[0]):
            raise ValueError(f"{error}, or {STEPS}") from None
        if found is None:
            raise
    begin, end, step = map(int, found.groups())
    if not _takes(axis, found[1]):
        return [axis.parse(found[1])]  # raises with the values that the axis accepts
    numbers = range(begin, end + 1, step) if step else range(0)
    if not 1 <= len(numbers) <= MOST_GROUPS:
        raise ValueError(f"{STEPS} of 1 to {MOST_GROUPS} numbers")
    return [axis.parse(str(number)) for number in numbers]


def _takes(axis: Axis, text: str) -> bool:
    try:
        axis.parse(text)
    except ValueError:
        return False
    return True


def with_axes(suite: Suite, axes: Mapping[str, tuple[Any, ...]]) -> Suite:
    """Return the suite with other values on some axes, if listed cases leave them open."""
    if not suite.cases:
        return replace(suite, axes={**suite.axes, **axes})
    cases = (NamedCase(name=case.name, values=values) for case in suite.cases for values in _filled(case, axes))
    return replace(suite, cases=tuple(cases))


def environment_axes(suite: Suite, environ: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """Return the axes set by environment variables, for a suite that names such variables.

    Raises:
        UsageError: naming the variable, its value and what is accepted.
    """
    axes = {axis.name: axis for axis in load_workload(suite.workload).axes}
    return {
        name: parse_axis(suite.who, axes[name], environ[variable], flag=f"environment variable {variable}")
        for name, variable in suite.env.items()
        if environ.get(variable)
    }


def _crossed(suite: Suite, workload: Workload, asked: Mapping[str, tuple[Any, ...]]) -> Iterable[dict[str, Any]]:
    axes = {**suite.axes, **asked}
    follows = "batch" not in asked and bool(suite.batch_by_seqlen or suite.batch_otherwise)
    by_length, otherwise = suite.batch_by_seqlen, suite.batch_otherwise
    if follows:
        axes.pop("batch", None)
        default = next(axis.default for axis in workload.axes if axis.name == "seqlen")
        for length in axes.setdefault("seqlen", (default,)):
            if length not in by_length and not otherwise:
                known = ", ".join(str(one) for one in by_length)
                raise UsageError(
                    refusal(
                        suite.who,
                        "seqlen",
                        length,
                        "has no batch size in its batch_by_seqlen",
                        f"one of {known}",
                        "or state the batch with --batch",
                    )
                )
    for values in itertools.product(*axes.values()):
        row = dict(zip(axes, values, strict=True))
        if not follows:
            yield row
            continue
        for batch in by_length.get(row["seqlen"], otherwise):
            yield {"batch": batch, **row}


def _listed(suite: Suite, asked: Mapping[str, tuple[Any, ...]]) -> Iterable[dict[str, Any]]:
    chosen = list(suite.cases)
    for name, values in asked.items():
        kept = [case for case in chosen if name not in case.values or case.values[name] in values]
        if not kept:
            there = dict.fromkeys(str(case.values[name]) for case in chosen)
            given = ",".join(str(value) for value in values)
            which = "" if suite.workload == "attention" else f" --workload {suite.workload}"
            todo = f"`attnbench compare{which}` takes any shape"
            raise UsageError(
                refusal(suite.who, name, given, "selects none of its cases", f"one of {', '.join(there)}", todo)
            )
        chosen = kept
    return itertools.chain.from_iterable(_filled(case, asked) for case in chosen)


def _filled(case: NamedCase, asked: Mapping[str, tuple[Any, ...]]) -> Iterable[dict[str, Any]]:
    open_axes = {name: values for name, values in asked.items() if name not in case.values}
    for values in itertools.product(*open_axes.values()):
        yield {**case.values, **dict(zip(open_axes, values, strict=True))}


def _baseline(wanted: str | None, groups: Sequence[tuple[str, ...]]) -> str:
    """Return the wanted baseline; if it is not measured, the first backend that every group has."""
    everywhere = [name for name in groups[0] if all(name in names for names in groups)]
    return wanted if wanted in everywhere else (everywhere or groups[0])[0]
