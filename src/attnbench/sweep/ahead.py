"""Kernels of a plan compiled ahead of its groups, while nothing is sampled.

A first call compiles for seconds, on one core, while the GPU waits.  `worker.ahead` compiles what the sessions of a plan
will launch, on all cores and without a card, into the cache that the worker's own call reads.  A group is measured when
its kernels are there; while it is, everything of that process is stopped (SIGSTOP), so that it takes nothing from the
host that is being timed.  So the first table waits for the kernels of one group alone, and the last for all of them.
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
from attnbench.machine.advice import available_memory
from attnbench.machine.compile_cache import pinned
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import usable_cores
from attnbench.record import PlannedGroup, to_dict
from attnbench.suites.user_backends import known_backends

MOST_JOBS = 64
"""Processes by default at most."""
ROOM = 2**30
"""Bytes of memory that there are to be for each: twice what it takes."""
LOOK_S = 0.2
PATIENCE_S = 600.0
"""Without news the rest is left to the workers: no kernel takes half of it."""


def default_jobs() -> int:
    """One a core, as far as memory goes."""
    memory = available_memory()
    return max(1, min(MOST_JOBS, usable_cores() or 1, MOST_JOBS if memory is None else memory // ROOM))


def groups_ahead(groups: Sequence[PlannedGroup], files: Sequence[str]) -> list[PlannedGroup]:
    """Groups with those of their backends whose kernels can be compiled without a card."""
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
    """What of a plan is being compiled, and what is there.

    Args:
        groups: in the order in which they are begun.
        device: that they are measured on.
        files: paths of --backends files.
        jobs: processes at a time.
        together: several executors measure at a time, so that nothing may be compiled once one of them begins.
        sampled: groups are timed, so that nothing may be compiled meanwhile.
        card: capability and SMs; None asks the device.
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
        "by group, kernels that are not compiled; one more as long as nobody said which it needs"
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
        """Nothing to do: the process is running."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_for(self, group: PlannedGroup, tell: Callable[[str], None] = lambda text: None) -> None:
        """Wait until the kernels of a group are compiled; where groups are timed, nothing is from here to the next call.

        Args:
            group: of the plan.
            tell: told now and then how far it is.
        """
        with self._changed:
            self._heard = time.monotonic()
            while not self._over and self._missing(group):
                # Each time: after quick signals Linux may leave one stopped that was being forked (seen with 6.18).
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
        """From any thread: nobody waits any more, and nothing more is compiled."""
        with self._changed:
            self._end()
            self._changed.notify_all()

    def close(self) -> None:
        """End everything that is still being compiled."""
        self.give_up()
        self._process.wait()
        self._reader.join()

    def _missing(self, group: PlannedGroup) -> bool:
        if self._together and self._sampled:
            return True  # until all is over
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

    # ── what the process says, in a thread of its own ──────────────────────────────────────────────

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
        try:  # a backend may print too
            word: dict[str, Any] = json.loads(line)
            group = word["done"] if "done" in word else word["group"]
            self._open[group] += -1 if "done" in word else int(word["kernels"]) - 1
        except (ValueError, KeyError, TypeError):
            return
        self.done += "done" in word
        self.kernels += 0 if "done" in word else int(word["kernels"])
        self._heard = time.monotonic()
