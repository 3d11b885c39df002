"""Run suites and read run files from Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.api.answers import Result
from attnbench.errors import UsageError, parsed, refusal, unknown
from attnbench.text import shown

if TYPE_CHECKING:
    from attnbench.record import Run
    from attnbench.sweep.run import Event


ARGUMENTS = ("axes", "backends", "baseline", "device", "files", "gpus", "jobs", "save")
"""The arguments of `run` other than settings: suggested if a name is mistyped."""


def load(path: str | Path, *, folder: str | Path = "results") -> Result:
    """Read a run; every statistic is recomputed from its samples.

    Args:
        path: path of a run file; or ``latest``, ``previous`` or an id, which name a run of the folder.
        folder: where run files are kept.

    Raises:
        RunFileError: the file cannot be read; the message names the place and the reason.
        UsageError: the folder has no such run.
    """
    from attnbench.store.runfile import read
    from attnbench.store.saved import names_a_run, read_run

    if isinstance(path, str) and names_a_run(path):
        return Result(read_run(path, str(folder), "load")[1])
    return Result(read(Path(path)))


def run(
    suite: str | Path = "quick",
    *,
    device: str = "auto",
    gpus: str | None = None,
    backends: str | Sequence[str] = (),
    baseline: str | None = None,
    files: str | Path | Sequence[str | Path] = (),
    save: str | Path | None = None,
    axes: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    **settings: Any,
) -> Result:
    """Run a suite in worker processes, as `attnbench run` does.

    Args:
        suite: a shipped suite's name or the path of a TOML file.
        device: auto, cpu, cuda or cuda:N.
        gpus: instead of `device`, ``all`` or numbers such as ``0,2``: one worker per GPU takes groups from one queue.
        backends: names that replace the suite's.
        baseline: backend to compare with.
        files: paths of files with backends of your own.
        save: run file, written after every group.  If there is a history beside it, or the environment names one
            (``ATTNBENCH_HISTORY``), the finished run is added to it.
        axes: one value or several by axis name, replacing the suite's.
        jobs: processes that compile Triton kernels in advance; 0 compiles at first calls; None: one per core.
        settings: further fields of `record.Settings`.

    Raises:
        UsageError: the request is wrong; nothing was measured.
        Unavailable: the device, timer or clocks are not available.
        NothingToRun: no backend of the request runs on this kind of device.
    """
    from attnbench.formats.layouts import check_layout
    from attnbench.machine.devices import resolve
    from attnbench.machine.gpus import chosen_gpus
    from attnbench.store.files import check_writable
    from attnbench.store.runfile import new_id, now
    from attnbench.suites.load import load_suite
    from attnbench.suites.plan import Request, build
    from attnbench.sweep.run import execute
    from attnbench.sweep.settings import check_settings
    from attnbench.sweep.teams import executors_on

    if not isinstance(suite, str | Path):
        accepted, todo = "the name of a suite, or the path of a file", "attnbench.bench(f) times a function"
        raise UsageError(refusal("attnbench.run", "suite", shown(suite), "is no suite", accepted, todo))
    if gpus is not None and device != "auto":
        raise UsageError(refusal("attnbench.run", "device", device, "does not go with gpus", "one of the two"))
    if jobs is not None and (type(jobs) is not int or jobs < 0):
        raise UsageError(refusal("attnbench.run", "jobs", jobs, "cannot be used", "a whole number, at least 0"))
    devices = [resolve(device)] if gpus is None else chosen_gpus("attnbench.run", gpus, "gpus")
    place, suite = devices[0], str(suite)
    paths = tuple(str(file) for file in _several(files))
    for one in _several(backends):
        if not isinstance(one, str):
            accepted = "names of backends; a function in a file by files=, or attnbench.compare"
            raise UsageError(refusal("attnbench.run", "backends", shown(one), "is no name", accepted))
    asked = {name: value for name, value in settings.items() if value is not None}
    loaded = load_suite(suite, place.kind)
    values = _axis_values(loaded.workload, axes or {})
    request = Request(
        suite=loaded,
        device=str(place),
        backends=_several(backends),
        baseline=baseline,
        files=paths,
        axes=values,
        settings=_settings(asked, loaded.workload),
    )
    words = {
        "device": device if device != "auto" else None,
        "gpus": gpus,
        "backends": list(request.backends),
        "baseline": baseline,
        "files": [Path(path).name for path in paths],
        "axes": values,
        **asked,
    }
    call = ", ".join(
        [repr(Path(suite).name), *(f"{name}={word!r}" for name, word in words.items() if word not in (None, [], {}))]
    )
    planned = build(request, run_id=new_id(), command=f"attnbench.run({call})", started=now())
    check_settings(planned.settings)
    check_layout(planned)
    if save is not None:
        check_writable(save)
    executors = executors_on("attnbench.run", planned, None if gpus is None else devices, paths)
    done: list[Run] = []
    path = None if save is None else Path(save)

    def on_event(event: Event) -> None:
        if event.kind == "waiting":
            warnings.warn(event.text, stacklevel=2)
        if event.kind == "done" and event.run is not None:
            done.append(event.run)

    try:
        found = execute(planned, path=path, backend_files=paths, executors=executors, jobs=jobs, on_event=on_event)
    except UsageError as error:  # the file cannot be written: the results are returned without it
        if not done:
            raise
        warnings.warn(str(error), stacklevel=2)
        return Result(done[-1])
    if path is not None:
        _remember(path)
    return Result(found)


def _remember(path: Path) -> None:
    """Add a run file to an existing history; a script never creates a database."""
    from attnbench.store.history.writing import keep

    missed = keep(path, make=False)
    if missed is not None:
        warnings.warn(missed, stacklevel=3)


def _several(value: Any) -> tuple[Any, ...]:
    """Return one value or several as a tuple; a text is one value."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _axis_values(workload: str, axes: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return values by axis; a text and a torch.dtype are parsed as the flag would be."""
    from attnbench.workloads.base import load_workload

    parse = {axis.name: axis.parse for axis in load_workload(workload).axes if not axis.boolean}
    found = {}
    for name, value in axes.items():
        found[name] = values = [_plain(one) for one in _several(value)]
        if not values:
            raise UsageError(refusal("attnbench.run", name, value, "has no value", "one value or several"))
        for place, one in enumerate(values):
            if name in parse and (isinstance(one, str) or type(one).__module__ == "torch"):
                values[place] = parsed("attnbench.run", name, str(one), parse[name])
    return {name: tuple(values) for name, values in found.items()}


def _plain(value: Any) -> Any:
    """Return a number of NumPy, or of a one-element tensor, as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _settings(asked: Mapping[str, Any], workload: str) -> dict[str, Any]:
    """Check settings by the rules of the command line."""
    from attnbench.suites.settings import SETTINGS
    from attnbench.workloads.base import load_workload

    known = {one.name: one.parse for one in SETTINGS if one.name != "device"}
    found: dict[str, Any] = {}
    for name, value in asked.items():
        if name in ("check", "measure") and isinstance(value, bool):  # verbs of the command line
            found[name] = value
            continue
        if name in {axis.name for axis in load_workload(workload).axes}:
            accepted = f"axes={{{name!r}: {shown(value)}}}"
            raise UsageError(refusal("attnbench.run", "setting", name, "is an axis of the shape", accepted))
        if name not in known:
            raise unknown("attnbench.run", "setting", name, [*known, "check", "measure", *ARGUMENTS])
        found[name] = parsed("attnbench.run", name, str(value), known[name])
    return found
