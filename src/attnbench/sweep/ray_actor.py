"""What runs on a machine of a Ray cluster: it unpacks the code that came along and owns an executor there.

It is sent to the cluster by value and imports nothing of ours before it has unpacked it: the machine needs Ray, torch
and whatever the backends need, but no attnbench.  It never touches CUDA: the worker process of its executor does.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""Variables that an actor has beyond those it was started with: one thread of OpenMP, and a debugger of Ray's."""


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
            path = Path(self._folder.name) / str(number) / name  # two may have one name
            path.parent.mkdir()
            path.write_bytes(content)
            paths.append(str(path))
        first, *others = map(Device.parse, devices)
        self._executor = DeviceExecutor(first, tuple(paths), wait=False, beside=others)

    def open(self) -> tuple[str, bool] | None:
        """Take the lock of the GPU; why it is not ours, and whether to wait for another run that holds it."""
        from attnbench.errors import Unavailable
        from attnbench.machine.gpu_lock import Held

        try:
            self._executor.open(lambda progress: None)
        except Unavailable as error:
            return str(error), isinstance(error, Held)
        return None

    def measure(self, group: str, settings: str) -> str:
        """Measure a group; all as JSON, since classes of the caller may be of another version."""
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
        """End the worker and let go of the GPU."""
        self._executor.close()
        self._folder.cleanup()


def as_its_raylet() -> str | None:
    """Undo what Ray did to this thread, so that a worker is one as the local engine starts it.

    Returns:
        What could not be undone, for the records.
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
    """The folder with the package, unpacked once a machine: in this user's own cache, where nobody else writes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnbench" / "code"
    place = cache / digest
    if place.is_dir():
        return place
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = Path(tempfile.mkdtemp(dir=cache))
    with zipfile.ZipFile(io.BytesIO(code)) as packed:
        packed.extractall(draft)
    try:
        draft.rename(place)
    except OSError:  # another actor of this machine was first
        shutil.rmtree(draft, ignore_errors=True)
    return place


def actor_class(ray: Any) -> Any:
    """The class as Ray takes it: never restarted, and each call is made once at most."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return ray.remote(max_restarts=0, max_task_retries=0)(RemoteExecutor)
