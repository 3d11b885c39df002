"""The actor on a machine of a Ray cluster: unpacks the code sent with it and owns an executor there.

It is sent to the cluster by value and imports nothing of ours before it has unpacked it: the machine needs Ray, torch
and the libraries of the backends, but no attnbench.  It never uses CUDA: the worker process of its executor does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""Variables that Ray sets in an actor: one OpenMP thread, and its debugger."""
KEPT_DAYS = 30
"""Longer than any run: a folder in use must not go."""


class RemoteExecutor:
    """An executor for one device, or for a team of one machine.

    Args:
        code: a zip file of the package.
        digest: of `code`, names the folder it is unpacked in.
        devices: cpu, or cuda:0 and those that follow it, the only GPUs that Ray shows this process.
        files: --backends files, name and content of each.
    """

    def __init__(self, code: bytes, digest: str, devices: list[str], files: list[tuple[str, bytes]]) -> None:
        sys.path.insert(0, str(_unpacked(code, digest)))
        from attnbench.machine.device import Device
        from attnbench.sweep.executor import DeviceExecutor

        self._folder = tempfile.TemporaryDirectory(prefix="attnbench-")
        paths = []
        for number, (name, content) in enumerate(files):
            path = Path(self._folder.name) / str(number) / name  # two files may have the same name
            path.parent.mkdir()
            path.write_bytes(content)
            paths.append(str(path))
        first, *others = map(Device.parse, devices)
        self._executor = DeviceExecutor(first, tuple(paths), wait=False, beside=others)

    def open(self) -> tuple[str, bool] | None:
        """Lock the GPU; otherwise return why it is not available, and whether to wait for the run that has it."""
        from attnbench.errors import Unavailable
        from attnbench.machine.gpu_lock import Held

        try:
            self._executor.open(lambda progress: None)
        except Unavailable as error:
            return str(error), isinstance(error, Held)
        return None

    def measure(self, group: str, settings: str) -> str:
        """Measure a group; all values are JSON, since the caller's classes may be of another version."""
        from attnbench.record import PlannedGroup, Settings, from_dict, to_dict
        from attnbench.sweep.executor import ExecutorLost

        note = as_its_raylet()
        try:
            found = self._executor.measure(
                from_dict(PlannedGroup, json.loads(group), "group"),
                from_dict(Settings, json.loads(settings), "settings"),
                lambda progress: None,
            )
        except ExecutorLost as error:
            return json.dumps({"lost": str(error), "measuring": error.measuring})
        notes = (note,) if note else ()
        return json.dumps(
            {
                "records": to_dict([dataclasses.replace(one, notes=(*one.notes, *notes)) for one in found.records]),
                "environments": to_dict(found.environments),
                "sampling_s": found.sampling_s,
            }
        )

    def close(self) -> None:
        """End the worker and release the GPU."""
        self._executor.close()
        self._folder.cleanup()


def as_its_raylet() -> str | None:
    """Undo what Ray changed in this thread, so that a worker is started as by the local engine.

    Returns:
        A note for the records on what could not be undone.
    """
    at_first = Path("/proc/self/environ").read_bytes().split(b"\0")
    for name in SET_BY_RAY:
        if not any(one.startswith(f"{name}=".encode()) for one in at_first):
            os.environ.pop(name, None)
    own, wanted = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, os.getppid()))
    if own > wanted:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, wanted)
        except PermissionError:
            return f"measured at niceness {own}, which Ray gives its workers; start Ray with RAY_worker_niceness=0"
    return None


def _unpacked(code: bytes, digest: str) -> Path:
    """Return the folder of the package, unpacked once per machine: in the user's own cache, writable by nobody else.

    Folders that no actor has used for `KEPT_DAYS` are removed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnbench" / "code"
    place = cache / digest
    if place.is_dir():
        os.utime(place)
        return place
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in cache.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another actor of this machine removes them too
            if time.time() - old.stat().st_mtime > KEPT_DAYS * 86400:
                shutil.rmtree(old, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(dir=cache))
    with zipfile.ZipFile(io.BytesIO(code)) as packed:
        packed.extractall(draft)
    try:
        draft.rename(place)
    except OSError:  # another actor of this machine was first
        shutil.rmtree(draft, ignore_errors=True)
    return place


def actor_class(ray: Any) -> Any:
    """Return the class for Ray: actors are never restarted, and each call is made at most once."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return ray.remote(max_restarts=0, max_task_retries=0)(RemoteExecutor)
