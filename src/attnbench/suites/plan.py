"""From a request to a plan: which cases, measured by which backends, in which groups.

Groups come case by case, replicates outermost, so that a run stopped early holds whole replicates.
A group's name follows from its case alone: a resumed run finds the groups it already has.  A backend
that cannot take a case stays in the plan; its record says `skipped` and why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnbench.backends.base import Backend
from attnbench.backends.describe import Described
from attnbench.backends.registry import parse_selector, select, split_selectors
from attnbench.errors import NothingToRun, Unavailable, UsageError, refusal, unknown
from attnbench.record import PlannedGroup, Run, Settings
from attnbench.suites.load import NamedCase, Suite
from attnbench.suites.settings import settle
from attnbench.suites.user_backends import known_backends, user_backends
from attnbench.workloads.base import Axis, Workload, load_workload

MOST_GROUPS = 10_000
"""Above any run that ends: lists whose product slipped are refused at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A suite and what the user wants otherwise."""

    suite: Suite
    device: str
    "cpu, cuda or cuda:N: decided, not auto"
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    "parsed values by axis name (`parse_axis`)"
    backends: tuple[str, ...] = ()
    "selectors in place of the suite's"
    skip: tuple[str, ...] = ()
    baseline: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    "fields of `record.Settings` other than device and baseline"
    files: tuple[str, ...] = ()
    "paths of --backends files"


def build(request: Request, *, run_id: str, command: str, started: str) -> Run:
    """Build the run that `sweep.run.execute` carries out.

    Args:
        request: what is wanted.
        run_id: name of the run (`store.runfile.new_id`).
        command: the line that asks for the same again.
        started: ISO 8601, UTC.

    Raises:
        UsageError: an unknown name, a value out of range, or a selection that leaves no case.
        NothingToRun: no backend of the request runs on this kind of device.
    """
    suite, workload = request.suite, load_workload(request.suite.workload)
    backends, baseline = _backends(request)
    settings = Settings(device=request.device, baseline=baseline,
                        **settle("attnbench", dict(suite.settings), dict(request.settings)))
    cases = expand(suite, workload, request.axes)
    _check_configs(backends, known_backends(request.files), cases)
    if len(cases) * settings.replicates > MOST_GROUPS:
        wrong = f"times {len(cases)} cases are too many groups for one run"
        raise UsageError(refusal("attnbench", "--replicates", settings.replicates, wrong, f"at most {MOST_GROUPS}"))
    groups = [PlannedGroup(group=case_id if replicate == 0 else f"{case_id}#{replicate}", workload=workload.name,
                           case=case.to_dict(), case_id=case_id, backends=backends, replicate=replicate)
              for replicate in range(settings.replicates) for case_id, case in cases.items()]
    return Run(id=run_id, suite=suite.name, command=command, started=started, plan=tuple(groups), settings=settings,
               layout=suite.layout, backend_files=tuple(Path(file).name for file in request.files))


def expand(suite: Suite, workload: Workload, asked: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Expand a suite into cases by id, each once, in the suite's order.

    On a suite of axes `asked` replaces them.  On a suite of listed cases it selects among the values
    the cases state, and sets what a case leaves open.

    Raises:
        UsageError: an axis this workload does not have, a value the suite does not list, or a case
            that contradicts itself.
    """
    for name in asked:
        if name not in {axis.name for axis in workload.axes}:
            raise unknown(suite.who, "axis", name, [axis.name for axis in workload.axes])
    rows = _listed(suite, asked) if suite.cases else _crossed(suite, workload, asked)
    cases: dict[str, Any] = {}
    for number, values in enumerate(rows):
        if number == MOST_GROUPS:
            raise UsageError(refusal(suite.who, "cases", f"more than {number}", "are too many for one run",
                                     f"at most {number}", "fewer values on an axis"))
        case = workload.case(values)
        cases.setdefault(case.id, case)
    return cases


def parse_axis(who: str, axis: Axis, text: str, flag: str | None = None) -> tuple[Any, ...]:
    """Read the values of an axis from a comma list.

    Args:
        who: for the message.
        axis: of the workload.
        text: comma list; for a boolean axis also ``both``.
        flag: how the value was given, if not by the axis' own flag.

    Raises:
        UsageError: naming the flag, the value and what is accepted.
    """
    if axis.boolean:
        choices: dict[str, tuple[Any, ...]] = {"true": (True,), "false": (False,), "both": (False, True)}
        if text in choices:
            return choices[text]
        raise UsageError(refusal(who, flag or axis.name, text, "cannot be used", "one of true, false, both"))
    values = []
    for part in text.split(","):
        try:
            values.append(axis.parse(part.strip()))
        except ValueError as error:
            name = flag or "--" + axis.name.replace("_", "-")
            raise UsageError(refusal(who, name, part.strip() or "''", "cannot be used", str(error))) from None
    return tuple(dict.fromkeys(values))


def with_axes(suite: Suite, axes: Mapping[str, tuple[Any, ...]]) -> Suite:
    """The suite with other values on some axes, where listed cases leave them open."""
    if not suite.cases:
        return replace(suite, axes={**suite.axes, **axes})
    cases = (NamedCase(name=case.name, values=values) for case in suite.cases for values in _filled(case, axes))
    return replace(suite, cases=tuple(cases))


def environment_axes(suite: Suite, environ: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """Axes that environment variables set, for a suite that names such variables.

    Raises:
        UsageError: naming the variable, its value and what is accepted.
    """
    axes = {axis.name: axis for axis in load_workload(suite.workload).axes}
    return {name: parse_axis(suite.who, axes[name], environ[variable], flag=f"environment variable {variable}")
            for name, variable in suite.env.items() if environ.get(variable)}


def _crossed(
    suite: Suite, workload: Workload, asked: Mapping[str, tuple[Any, ...]]
) -> Iterable[dict[str, Any]]:
    axes = {**suite.axes, **asked}
    follows = "batch" not in asked and bool(suite.batch_by_seqlen or suite.batch_otherwise)
    by_length, otherwise = suite.batch_by_seqlen, suite.batch_otherwise
    if follows:
        axes.pop("batch", None)
        default = next(axis.default for axis in workload.axes if axis.name == "seqlen")
        for length in axes.setdefault("seqlen", (default,)):
            if length not in by_length and not otherwise:
                known = ", ".join(str(one) for one in by_length)
                raise UsageError(refusal(suite.who, "seqlen", length, "has no batch size in its batch_by_seqlen",
                                         f"one of {known}", "or state the batch with --batch"))
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
            raise UsageError(refusal(suite.who, name, given, "selects none of its cases", f"one of {', '.join(there)}",
                                     todo))
        chosen = kept
    return itertools.chain.from_iterable(_filled(case, asked) for case in chosen)


def _filled(case: NamedCase, asked: Mapping[str, tuple[Any, ...]]) -> Iterable[dict[str, Any]]:
    open_axes = {name: values for name, values in asked.items() if name not in case.values}
    for values in itertools.product(*open_axes.values()):
        yield {**case.values, **dict(zip(open_axes, values, strict=True))}


def _backends(request: Request) -> tuple[tuple[str, ...], str]:
    """The backends of every group, and the baseline among them.

    Backends of a file join whatever else is measured; so does a baseline asked for.  A suite's
    baseline that is not measured gives way to the first backend.
    """
    suite, kind = request.suite, request.device.partition(":")[0]
    known = known_backends(request.files)
    asked = split_selectors(",".join(request.backends or suite.backends))
    names: list[str] = [] if request.baseline is None else [_one(request, request.baseline, known, kind)]
    for selector in [*asked, *user_backends(request.files)]:
        wild = selector == "all" or "*" in selector or "?" in selector
        meant = select([first_usable(selector, known, kind)], workload=suite.workload, backends=known)
        names += [name for name in meant if not wild or kind in known[name].devices]
    dropped = set(select(request.skip, backends=known)) if request.skip else set()
    kept = [name for name in dict.fromkeys(names) if not {name, parse_selector(name)[0]} & dropped]
    if not kept:
        wrong = f"leaves nothing to run on {kind}"
        raise NothingToRun(refusal(suite.who, "backends", ",".join(asked), wrong, "see `attnbench list backends`"))
    baseline = names[0] if request.baseline else _one(request, suite.baseline or kept[0], known, kind)
    return tuple(kept), baseline if baseline in kept else kept[0]


def _check_configs(backends: Iterable[str], known: Mapping[str, Backend], cases: Mapping[str, Any]) -> None:
    """Refuse ``name[short]`` where no case has that configuration; of a user's file only its worker knows.

    Raises:
        UsageError: naming it and what there is.
    """
    for selector in backends:
        name, short = parse_selector(selector)
        if short is None or isinstance(known[name], Described):
            continue
        refused: UsageError | None = None
        for case in cases.values():
            try:
                known[name].config_of(short, case)
                break
            except UsageError as why:
                refused = refused or why
        else:
            if refused is not None:
                raise refused


def _one(request: Request, selector: str, known: Mapping[str, Backend], kind: str) -> str:
    """The one backend a baseline means."""
    meant = select([first_usable(selector, known, kind)], workload=request.suite.workload, backends=known)
    if len(meant) != 1:
        wrong = f"means {len(meant)} backends"
        raise UsageError(refusal(request.suite.who, "baseline", selector, wrong, "one backend"))
    return meant[0]


def first_usable(selector: str, known: Mapping[str, Backend], kind: str) -> str:
    """Of alternatives ``a|b`` the first that runs on this kind of device and is installed, else the first.

    Raises:
        UsageError: an alternative is not a backend.
    """
    alternatives = selector.split("|")
    if len(alternatives) == 1:
        return selector
    for one in alternatives:
        name = parse_selector(one)[0]
        if name not in known:
            raise unknown("backends", "name", name, known)
        if kind in known[name].devices and _installed(known[name]):
            return one
    return alternatives[0]


def _installed(backend: Backend) -> bool:
    try:
        backend.probe()
    except Unavailable:
        return False
    return True
