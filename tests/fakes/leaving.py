"""Backends for the CPU that start processes or leave them or a long log behind (give this file to --backends)."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

from misbehaving import SAMPLING, Misbehaving, die, log

SLEEPER = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(300)"


def daemon() -> None:
    """A process with a session of its own whose starters are gone, in a folder and with files of its own."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.execv(sys.executable, [sys.executable, "-S", "-c", SLEEPER, os.environ["ATTNBENCH_TEST_LOG"]])


class LeavesADaemon(Misbehaving):
    name = "leaves-a-daemon"

    def set_up(self):
        daemon()


class DiesAndLeavesADaemon(Misbehaving):
    name = "dies-and-leaves-a-daemon"

    def set_up(self):
        daemon()
        while not os.path.getsize(os.environ["ATTNBENCH_TEST_LOG"]):  # noqa: PTH202
            pass
        die()


class LeavesAFamily(Misbehaving):
    """A shell that ignores what can be ignored, and its children."""

    name = "leaves-a-family"

    def set_up(self):
        script = 'trap "" TERM HUP INT; for i in 1 2 3; do setsid sleep 300 & echo $! >> "$0"; done; wait'
        child = subprocess.Popen(["/bin/sh", "-c", script, os.environ["ATTNBENCH_TEST_LOG"]], start_new_session=True)
        child.returncode = 0


class ItsChildReturns(Misbehaving):
    """A call forks and waits for the child, which returns from the call as well."""

    name = "its-child-returns"

    def attend(self, *args):
        if args[-1] == 3 and os.fork():
            os.wait()
        return super().attend(*args)

    def tear_down(self):
        log(f"closed-by {os.getpid()}")


class ItsChildRaises(Misbehaving):
    """A call forks and waits for the child, which raises out of the call."""

    name = "its-child-raises"

    def attend(self, *args):
        if args[-1] == 3:
            if not os.fork():
                raise RuntimeError("said by the child")
            os.wait()
        return super().attend(*args)


WRITES = """
import os, sys
for handle in map(int, sys.argv[1:]):
    try:
        os.write(handle, b"not a message\\n")
    except OSError:
        pass
"""


class ItsProgramWrites(Misbehaving):
    """Executes a program that inherits all that can be inherited, and writes to each of it."""

    name = "its-program-writes"

    def set_up(self):
        program = [sys.executable, "-S", "-c", WRITES, *map(str, range(3, 64))]
        subprocess.run(program, check=True, close_fds=False)


def pipe(argument: str) -> str:
    """What a handle among the worker's arguments refers to in this process."""
    return str(Path(f"/proc/self/fd/{argument}").readlink())


class ForksAPool(Misbehaving):
    """Honest: processes of its own help it, by fork.  They look at the worker's two pipes."""

    name = "forks-a-pool"

    def set_up(self):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            log(f"pool {pool.map(pipe, sys.argv[-2:])}")


class PrintsALot(Misbehaving):
    """64 MiB in its first call, past Python."""

    name = "prints-a-lot"

    def attend(self, *args):
        if args[-1] == 1:
            for _ in range(64):
                os.write(1, b"x" * 1023 * 1024 + b"\n" * 1024)
        return super().attend(*args)


class PrintsALotAndDies(PrintsALot):
    name = "prints-a-lot-and-dies"

    def attend(self, *args):
        super().attend(*args)
        os.write(2, b"the last words\n")
        die()


class PrintsInEachSample(Misbehaving):
    name = "prints-in-each-sample"

    def attend(self, *args):
        if args[-1] >= SAMPLING:
            os.write(1, b"y" * 2**16)
        return super().attend(*args)


class StopsItsSupervisor(Misbehaving):
    name = "stops-its-supervisor"

    def set_up(self):
        import signal

        os.kill(os.getppid(), signal.SIGSTOP)
