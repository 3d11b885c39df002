"""Nsight Compute's report file (.ncu-rep), read by NVIDIA's module `ncu_report` or through `ncu --import`.

The module comes from PyPI or with an installed ncu (extras/python); neither way needs a GPU.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.errors import RunFileError, Unavailable, refusal
from attnbench.machine.tools import find_program
from attnbench.profile import ncu_csv
from attnbench.profile.capture import Advice, Capture
from attnbench.profile.categories import Categories
from attnbench.profile.launches import Profiled, kernel_rows

INSTALL = "pip install ncu-report"
IMPORT_S = 300.0
ACCEPTED = "a report that ncu wrote (--export)"


def parse(path: Path, *, name: str, rules: Categories) -> Capture:
    """Read a report.

    Raises:
        Unavailable: neither the module nor ncu is installed.
        RunFileError: the file is truncated, not a report, or holds no kernel.
    """
    ncu = find_program("ncu")
    module, there = _module(ncu.path), ncu.reason is None and ncu.path is not None
    if module is not None:
        try:
            return _by_module(module, path, name, rules)
        except RunFileError:
            if not there:  # a module older than the report cannot read it; the ncu that wrote it can
                raise
    if there and ncu.path is not None:
        raw = page(ncu.path, path, "raw")
        return ncu_csv.parse(raw, name=name, source=path.name, rules=rules, advice=page(ncu.path, path, "details"))
    raise Unavailable(
        refusal(
            "ncu",
            "capture",
            path.name,
            "can be read by NVIDIA's own module or by ncu only",
            "the module ncu_report, or ncu on the PATH",
            INSTALL,
        )
    )


def page(ncu: str, path: Path, name: str) -> str:
    """Return a page of a report as CSV.

    Args:
        ncu: path of the program.
        path: path of the report.
        name: raw or details.

    Raises:
        RunFileError: ncu cannot read it.
    """
    # Not in base units: there ncu prints two decimals, in scaled units six (0.31 % of a pipe is 0.307689 %).
    argv = [
        ncu,
        "--import",
        str(path),
        "--page",
        name,
        "--csv",
        "--print-units",
        "auto",
        "--print-kernel-base",
        "demangled",
    ]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=IMPORT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunFileError(
            refusal("ncu", "capture", path.name, f"was not read ({type(error).__name__})", ACCEPTED)
        ) from None
    if done.returncode != 0 or not ncu_csv.looks_like(done.stdout):
        said = (done.stderr or done.stdout).strip().splitlines()
        wrong = f"cannot be read by ncu ({said[-1][:200] if said else f'code {done.returncode}'})"
        raise RunFileError(refusal("ncu", "capture", path.name, wrong, ACCEPTED))
    return done.stdout


def _module(ncu: str | None) -> ModuleType | None:
    """Return NVIDIA's module: the installed one, or the one in the folder of the given ncu."""
    if "ncu_report" not in sys.modules and importlib.util.find_spec("ncu_report") is None:
        places = [folder / "extras" / "python" for folder in Path(ncu).resolve().parents[:3]] if ncu else []
        place = next((place for place in places if (place / "ncu_report.py").is_file()), None)
        if place is None:
            return None
        sys.path.append(str(place))
    try:
        return importlib.import_module("ncu_report")
    except (ImportError, OSError):  # its library does not load on this machine
        return None


def _by_module(module: Any, path: Path, name: str, rules: Categories) -> Capture:
    try:
        launches = list(_launches(module, module.load_report(str(path))))
    except Exception as error:  # the module has no exception class of its own
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunFileError(refusal("ncu", "capture", path.name, f"cannot be read ({words})", ACCEPTED)) from None
    if not launches:
        raise RunFileError(refusal("ncu", "capture", path.name, "holds no kernel", ACCEPTED))
    devices = {one.device for one in launches if one.device}
    return Capture(
        tool="ncu",
        name=name,
        source=path.name,
        kernels=kernel_rows(launches, rules),
        device=devices.pop() if len(devices) == 1 else None,
    )


def _launches(module: Any, report: Any) -> Iterator[Profiled]:
    for number in range(report.num_ranges()):
        found = report.range_by_idx(number)
        for index in range(found.num_actions()):
            yield _launch(module, found.action_by_idx(index))


def _launch(module: Any, action: Any) -> Profiled:
    metrics = {name: action.metric_by_name(name) for name in action.metric_names()}
    values = {name: (_number(metric), metric.unit() or "") for name, metric in metrics.items()}
    shapes = [
        tuple(
            int(value or 1)
            for axis in "xyz"
            if (value := values.get(f"launch__{kind}_dim_{axis}", (None, ""))[0]) is not None
        )
        for kind in ("grid", "block")
    ]
    card = metrics.get("device__attribute_display_name")
    base = getattr(action, "NameBase_DEMANGLED", None) or getattr(module.IAction, "NameBase_DEMANGLED", None)
    return Profiled(
        name=action.name(base) if base is not None else action.name(),
        ranges=_ranges(action),
        metrics=values,
        grid=shapes[0] if len(shapes[0]) == 3 else None,
        block=shapes[1] if len(shapes[1]) == 3 else None,
        device=str(card.value()) if card is not None else None,
        advice=tuple(_advice(module, action)),
    )


def _number(metric: Any) -> float | None:
    value = metric.value()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _ranges(action: Any) -> tuple[str, ...]:
    state = action.nvtx_state()
    if state is None:
        return ()
    return tuple(name for key in state.domains() for name in state.domain_by_id(key).push_pop_ranges())


def _advice(module: Any, action: Any) -> Iterator[Advice]:
    """Yield the remarks of ncu's rules; the module returns dictionaries since 2023, in some versions as texts."""
    for rule in getattr(action, "rule_results_as_dicts", list)():
        message, gain = (_plain(rule.get(key)) for key in ("rule_message", "speedup_estimation"))
        text = message.get("message") if isinstance(message, dict) else None
        if text:
            speedup = gain.get("speedup") if isinstance(gain, dict) else None
            yield Advice(
                rule=str(rule.get("rule_identifier") or rule.get("name") or ""),
                text=" ".join(text.split()),
                speedup_percent=float(speedup) if isinstance(speedup, int | float) else None,
                scope=_scope(module, gain.get("type")) if isinstance(gain, dict) else None,
            )


def _scope(module: Any, kind: Any) -> str | None:
    """Return the scope of a gain, which the module gives as an enum value or as a text."""
    numbers = getattr(module, "SpeedupType", None) or getattr(module, "IFrontend", None)
    for name in ("SpeedupType_GLOBAL", "SpeedupType_LOCAL", "GLOBAL", "LOCAL"):
        if isinstance(kind, int) and getattr(numbers, name, None) == kind:
            return ncu_csv.scope(name)
    return ncu_csv.scope(str(kind))


def _plain(value: Any) -> Any:
    """Return a dictionary, parsed from a text if ncu 2025.4 gives a text instead."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
