"""Compiles the kernels of a plan ahead of its groups, while nothing is sampled.

A first call compiles for seconds, on one core, while the GPU is idle.  `worker.ahead` compiles the kernels that the
sessions of a plan will launch, on all cores and without a GPU, into the cache that the worker's own call reads.  A
group is measured when its kernels are compiled; meanwhile all compiling processes are stopped (SIGSTOP), so that
they do not load the host that is being timed.  So the first table waits for the kernels of one group only, and the
last for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from attnbench.backends.base import Backend
from attnbench.backends.registry import parse_selector
from attnbench.errors import Unavailable
from attnbench.machine import child
from attnbench.machine.compile_cache import pinned
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import usable_cores
from attnbench.machine.memory import available_memory
from attnbench.record import PlannedGroup, to_dict
from attnbench.suites.user_backends import known_backends

MOST_JOBS = 64
"""Upper limit of the default number of processes."""
ROOM = 2**30
"""Bytes of memory required for each process: twice what one uses."""
LOOK_S = 0.2
PATIENCE_S = 600.0
"""Without news for this long, compiling ahead is given up: no kernel takes half of it."""


def default_jobs() -> int:
    """Return the number of cores, limited by memory."""
    memory = available_memory()
    return max(1, min(MOST_JOBS, usable_cores() or 1, MOST_JOBS if memory is None else memory // ROOM))


def groups_ahead(groups: Sequence[PlannedGroup], files: Sequence[str]) -> list[PlannedGroup]:
    """Return the groups, each with only the backends whose kernels can be compiled without a GPU."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return []
    able = {name for name, backend in known_backends(files).items() if backend.ahead and _installed(backend)}
    found = []
    for group in groups:
        names = tuple(name for name in group.backends if parse_selector(name)[0] in able)
        if names:
            found.append(dataclasses.replace(group, backends=names))
    return found


def _installed(backend: Backend) -> bool:
    try:
        backend.probe()
    except Unavailable:
        return False
    return True


class CompiledAhead:
    """Compiles the kernels of a plan and knows which groups are ready.

    Args:
        groups: in the order in which they are started.
        device: that they are measured on.
        files: paths of --backends files.
        jobs: number of processes.
        together: several executors measure at the same time, so all kernels must be compiled before any starts.
        sampled: groups are timed, so nothing may be compiled meanwhile.
        card: compute capability and number of SMs; None asks the device.
    """

    def __init__(
        self,
        groups: Sequence[PlannedGroup],
        device: Device,
        files: Sequence[str],
        *,
        jobs: int,
        together: bool = False,
        sampled: bool = True,
        card: tuple[tuple[int, int], int] | None = None,
    ) -> None:
        once = {(group.case_id, group.backends): group for group in reversed(groups)}  # replicates need the same
        asked = [group for group in groups if once[group.case_id, group.backends] is group]
        self._together, self._sampled = together, sampled
        self._open = {group.group: 1 for group in asked}
        "by group, kernels that are not compiled yet; plus one until their number is known"
        self.kernels = self.done = 0
        self._over = self._stopped = False
        self._heard = time.monotonic()
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            child.command("attnbench.worker.ahead"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**child.environment(), **pinned()},
            start_new_session=True,
        )
        request = {
            "groups": [to_dict(group) for group in asked],
            "device": str(device),
            "files": list(files),
            "jobs": jobs,
            "card": card,
            "parent": os.getpid(),
        }
        self._reader = threading.Thread(target=self._converse, args=(json.dumps(request).encode(),), daemon=True)
        self._reader.start()

    def __enter__(self) -> CompiledAhead:
        """Return self; the process is already running."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_for(self, group: PlannedGroup, tell: Callable[[str], None] = lambda text: None) -> None:
        """Wait until a group's kernels are compiled; if groups are timed, then stop compiling until the next call.

        Args:
            group: of the plan.
            tell: called with the progress from time to time.
        """
        with self._changed:
            self._heard = time.monotonic()
            while not self._over and self._missing(group):
                # Repeated: after quick signals Linux may leave a process stopped that was just forked (seen with 6.18).
                self._signal(signal.SIGCONT)
                self._stopped = False
                tell(f"compiling {self.kernels} kernel{'s' * (self.kernels != 1)}, {self.done} done")
                self._changed.wait(LOOK_S)
                if time.monotonic() - self._heard > PATIENCE_S:
                    self._end()
            if self._sampled and not self._stopped:
                self._signal(signal.SIGSTOP)
                self._stopped = True

    def give_up(self) -> None:
        """Stop compiling and release all waiting threads; may be called from any thread."""
        with self._changed:
            self._end()
            self._changed.notify_all()

    def close(self) -> None:
        """End all compiling processes."""
        self.give_up()
        self._process.wait()
        self._reader.join()

    def _missing(self, group: PlannedGroup) -> bool:
        if self._together and self._sampled:
            return True  # until everything is compiled
        return self._open.get(group.group, 0) > 0

    def _end(self) -> None:
        self._over = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self._over:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    # ── messages of the process, read in a thread of its own ───────────────────────────────────────

    def _converse(self, request: bytes) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018 (no test)
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(request)
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._hear(line)
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _hear(self, line: bytes) -> None:
        try:  # the line may be output of a backend
            word: dict[str, Any] = json.loads(line)
            group = word["done"] if "done" in word else word["group"]
            self._open[group] += -1 if "done" in word else int(word["kernels"]) - 1
        except (ValueError, KeyError, TypeError):
            return
        self.done += "done" in word
        self.kernels += 0 if "done" in word else int(word["kernels"])
        self._heard = time.monotonic()
