"""Build a run from parsed flags, and the command line that repeats it."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench.backends.checkouts import name_checkouts
from attnbench.cli.executors import planned_device
from attnbench.cli.flags import AXIS, FIRST, backend_words, selector_words
from attnbench.errors import UsageError, refusal
from attnbench.record import Run
from attnbench.suites.load import Suite, load_suite, with_cases_of
from attnbench.suites.plan import Request, build, environment_axes, parse_axis, with_axes
from attnbench.suites.settings import SETTINGS, parse_setting
from attnbench.suites.shards import shard_of
from attnbench.text import spelled
from attnbench.workloads.base import load_workload, unknown_axis


def make_run(
    args: argparse.Namespace,
    verb: str,
    *,
    suite: str,
    fixed: Mapping[str, Any] | None = None,
    axes: Mapping[str, tuple[Any, ...]] | None = None,
    shape_of: str | None = None,
) -> Run:
    """Plan the run that the flags of a verb request.

    Args:
        args: parsed flags.
        verb: the command.
        suite: name or path.
        fixed: fields of `record.Settings` that the verb sets.
        axes: values of the verb that replace a suite's, unless a flag gives some, if the workload has such an axis.
        shape_of: the workload of the suite, if the user named no suite.

    Raises:
        AttnbenchError: the request cannot be executed.
    """
    from attnbench.formats.layouts import check_layout
    from attnbench.store.runfile import new_id, now
    from attnbench.sweep.settings import check_settings

    who = f"attnbench {verb}"
    name_checkouts(args.path or (), who)
    settings = _settings(args, who)
    asked_axes = axis_words(args, who)
    _suite(args, suite, "cpu", who)  # report its mistakes before importing torch, which takes seconds
    device = planned_device(args, who, settings.pop("device", None))
    found = _suite(args, suite, device.kind, who)
    known = {axis.name: axis for axis in load_workload(found.workload).axes}
    found = with_axes(
        found, {name: values for name, values in (axes or {}).items() if name in known and name not in asked_axes}
    )
    for name in asked_axes:
        if name not in known:
            raise unknown_axis(who, name, known.values())
    given = {name: parse_axis(who, known[name], text) for name, text in asked_axes.items()}
    surroundings = {name: values for name, values in environment_axes(found, os.environ).items() if name not in given}
    selectors, files = backend_words(args.backends)
    request = Request(
        suite=found,
        device=str(device),
        axes={**surroundings, **given},
        backends=selectors,
        skip=tuple(selector_words("--skip", args.skip)),
        baseline=args.baseline,
        settings={**settings, **(fixed or {})},
        files=files,
    )
    asked_axes |= {name: ",".join(map(str, values)) for name, values in surroundings.items()}
    command = _command(args, verb, None if shape_of else suite, asked_axes, shape_of)
    run = build(request, run_id=new_id(), command=command, started=now())
    check_settings(run.settings)
    check_layout(run)
    return run if args.shard is None else shard_of(who, run, args.shard)


def resumed(args: argparse.Namespace, verb: str) -> tuple[Run, Path]:
    """Return the run that --resume names, without records ended by an outside signal, and its file.

    Raises:
        UsageError: it cannot be found or read, or flags contradict it.
    """
    from attnbench.store.runfile import read
    from attnbench.store.saved import find_run
    from attnbench.sweep.run import without_interrupted

    who = f"attnbench {verb}"
    name_checkouts(args.path or (), who)
    selectors, files = backend_words(args.backends)
    extra = [f"--{name.replace('_', '-')}" for name in axis_words(args, who)]
    extra += [one.flag for one in SETTINGS if getattr(args, one.name, None) is not None]
    extra += [
        flag
        for flag, value in (
            ("SUITE", getattr(args, "suite", None)),
            ("--cases", getattr(args, "cases", None)),
            ("--backends", selectors),
            ("--skip", args.skip),
            ("--baseline", args.baseline),
            ("--shard", args.shard),
        )
        if value
    ]
    if extra:
        raise UsageError(
            refusal(
                who,
                "--resume",
                args.resume,
                f"takes the plan of that run, not {extra[0]}",
                "output flags, and the --backends files it was begun with",
                f"leave out {extra[0]}",
            )
        )
    path = find_run(args.resume, args.out, who)
    run = read(path)
    if not run.plan:
        raise UsageError(
            refusal(who, "--resume", args.resume, "has no plan to finish", "a run that run, compare or check began")
        )
    missing = [name for name in run.backend_files if name not in {spelled(Path(file).name) for file in files}]
    if missing:
        raise UsageError(
            refusal(
                who,
                "--resume",
                args.resume,
                f"was begun with the backends of {missing[0]}",
                f"--backends {missing[0]}",
                "give the file again",
            )
        )
    return without_interrupted(run), path


def _suite(args: argparse.Namespace, name: str, kind: str, who: str) -> Suite:
    found = load_suite(name, kind)
    cases = getattr(args, "cases", None)
    return found if cases is None else with_cases_of(found, cases, kind, who)


def _settings(args: argparse.Namespace, who: str) -> dict[str, Any]:
    given = {one.name: getattr(args, one.name, None) for one in SETTINGS}
    return {name: parse_setting(who, name, text) for name, text in given.items() if text is not None}


def axis_words(args: argparse.Namespace, who: str) -> dict[str, str]:
    """Return the shape flags as the user typed them; --no-grad is another form of --mode fwd."""
    words = {
        name.removeprefix(AXIS): text for name, text in vars(args).items() if name.startswith(AXIS) and text is not None
    }
    if getattr(args, "no_grad", False):
        if words.get("mode", "fwd") != "fwd":
            raise UsageError(refusal(who, "--mode", words["mode"], "contradicts --no-grad", "one of the two"))
        words["mode"] = "fwd"
    return words


def _command(
    args: argparse.Namespace, verb: str, suite: str | None, axes: Mapping[str, str], shape_of: str | None
) -> str:
    """Return the command that repeats the run, without paths of this machine and without output flags."""
    words = ["attnbench", verb]
    if shape_of not in (None, FIRST):
        words += ["--workload", shape_of]
    if suite is not None:
        words.append(_portable(suite))
    if getattr(args, "cases", None) is not None:
        words += ["--cases", _portable(args.cases)]
    for name, text in axes.items():
        flag = name.replace("_", "-")
        forms = {"true": f"--{flag}", "false": f"--no-{flag}", "both": f"--{flag}-both"}
        words += [forms[text]] if text in forms else [f"--{flag}", text]
    selectors, files = backend_words(args.backends)
    chosen = [*selectors, *(Path(file).name for file in files)]
    for flag, values in (("--backends", chosen), ("--skip", args.skip or [])):
        words += [flag, ",".join(values)] if values else []
    settings = [(one.flag, getattr(args, one.name, None)) for one in SETTINGS]
    for flag, value in [("--baseline", args.baseline), *settings, ("--gpus", args.gpus), ("--shard", args.shard)]:
        words += [flag, value] if value is not None else []
    return shlex.join(words)


def _portable(suite: str) -> str:
    return Path(suite).name if suite.endswith(".toml") else suite
