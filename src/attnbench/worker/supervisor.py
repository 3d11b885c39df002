"""The small process between parent and worker: keeps the end of the log and leaves no process behind.

``python supervisor.py PARENT CONTROL-FD RING-FD PAGE-FD HANDLES COMMAND…`` starts the worker, reads its output,
keeps the last part and counts the rest.  It is separate from the parent so that a worker never waits for a parent that
is busy or stopped, and so that a process remains to clean up after a kill -9 of the parent.

On Linux it is a subreaper: whatever a backend starts, including daemons with their own session, becomes its
child when the process that started it ends.  When the worker ends, or CONTROL is closed (by the parent, or by its
death), all of them get SIGKILL.  Other systems have no subreaper; there the worker's process group is killed.

It imports none of our modules, because it has to start in milliseconds.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

KEPT = 1 << 16
"""Bytes of the log that are kept."""
PIPE = 1 << 20
"""Capacity of the pipe that the worker prints to."""
LOOK_MS = 1000
"""Interval of checks whether the parent is alive: if it died, a fork of it may keep the pipe open."""
END_S = 5.0
"""Time limit for processes to end: one that waits for a driver cannot be killed."""

PR_SET_CHILD_SUBREAPER = 36
_HEADER = struct.Struct("<Qq")
"""Bytes printed; exit code of the worker in the form of `subprocess`."""
_RUNNING = -(2**62)
PRINTED = struct.Struct("<Q")
PRINTED_AT = 64
"""Offset in the activity page of the number of bytes printed, for the worker to read."""


class Ring:
    """The end of the log, in memory shared by parent and supervisor."""

    SIZE = _HEADER.size + KEPT

    def __init__(self, handle: int) -> None:
        self._memory = mmap.mmap(handle, self.SIZE)
        self.printed = 0

    def begin(self) -> None:
        """Write the initial state: no output, worker running."""
        _HEADER.pack_into(self._memory, 0, 0, _RUNNING)

    def add(self, data: bytes) -> None:
        """Append output."""
        last, start = data[-KEPT:], (self.printed + max(0, len(data) - KEPT)) % KEPT
        first = min(len(last), KEPT - start)
        self._memory[_HEADER.size + start : _HEADER.size + start + first] = last[:first]
        self._memory[_HEADER.size : _HEADER.size + len(last) - first] = last[first:]
        self.printed += len(data)
        _HEADER.pack_into(self._memory, 0, self.printed, _RUNNING)

    def end(self, code: int) -> None:
        """Write how the worker ended."""
        _HEADER.pack_into(self._memory, 0, self.printed, code)

    def read(self) -> tuple[int, int | None, bytes]:
        """Return the bytes printed, the exit code if known, and the last part of the output."""
        printed, code = _HEADER.unpack_from(self._memory, 0)
        kept = self._memory[_HEADER.size :]
        start = printed % KEPT
        return (
            printed,
            None if code == _RUNNING else code,
            kept[start:] + kept[:start] if printed > KEPT else (kept[:printed]),
        )

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()


class Supervisor:
    """A worker, its output, and every process it starts."""

    def __init__(
        self, parent: int, control: int, ring: Ring, page: int, handles: list[int], command: list[str]
    ) -> None:
        self.parent, self.control, self.ring = parent, control, ring
        self.page = mmap.mmap(page, mmap.PAGESIZE)
        self.asked = 0
        "signal that asked this process to end"
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.woken, wake = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._ask)
        self.log, end = os.pipe()
        os.set_blocking(self.log, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            try:
                fcntl.fcntl(self.log, fcntl.F_SETPIPE_SZ, PIPE)
            except OSError:  # the user's limit for pipe buffers is reached; the pipe stays smaller
                pass
        env = {**os.environ, "ATTNBENCH_PARENT": str(os.getpid())}
        self.worker = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=end, stderr=end, pass_fds=handles, start_new_session=True, env=env
        )
        for handle in (end, *handles):
            os.close(handle)
        self.code: int | None = None

    def run(self) -> None:
        """Run until the worker has ended or the parent asks for it; then end all its processes."""
        poll = select.poll()
        for handle in (self.control, self.log, self.woken):
            poll.register(handle, select.POLLIN)
        while self.code is None and not self.asked and os.getppid() == self.parent:
            for handle, _ in poll.poll(LOOK_MS):
                if handle == self.control:
                    self.asked = signal.SIGKILL
                elif handle == self.woken:
                    os.read(self.woken, 4096)
                elif not self._read():
                    poll.unregister(self.log)
            self._reap()
        self._end_all()
        while self._read():
            pass
        self.ring.end(-self.asked if self.code is None or self.asked else self.code)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = number

    def _read(self) -> bool:
        """Read available output; return whether there may be more."""
        try:
            data = os.read(self.log, PIPE)
        except BlockingIOError:
            return self.code is None and not self.asked
        self.ring.add(data)
        PRINTED.pack_into(self.page, PRINTED_AT, self.ring.printed)
        return bool(data)

    def _reap(self) -> bool:
        """Reap ended processes; return whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.worker.pid:
                self.code = self.worker.returncode = os.waitstatus_to_exitcode(status)

    def _end_all(self) -> None:
        """Send SIGKILL to the worker and all it started; orphans become children of this process."""
        deadline = time.monotonic() + END_S
        try:
            os.killpg(self.worker.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        while self._reap() and time.monotonic() < deadline:
            for pid in _children():
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass
            time.sleep(0.002)


def _children() -> list[int]:
    """Return the process ids of this process's children."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        pass
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(folder.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def main(words: list[str]) -> None:
    """Read the command line and supervise."""
    parent, control, ring, page = map(int, words[:4])
    handles: list[int] = json.loads(words[4])
    Supervisor(parent, control, Ring(ring), page, handles, words[5:]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
