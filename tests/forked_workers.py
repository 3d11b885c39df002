"""Workers that are forked from a process that has imported torch, because nearly all of a worker's start is that import.

For tests of what a worker records.  Tests of its start, of its supervisor and of processes that outlive it start real
ones.  This file is run in two roles:

- ``serve ADDRESS MODULE…``, the name of a socket, imports the modules and forks for each request; a fork runs
  `worker.serve`;
- ``ask ADDRESS DEVICE HANDLES…`` is what the supervisor starts in place of a worker.  It requests a fork with its own
  handles, environment and folder, and ends as the fork ends; when it is killed, the fork and its children are.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STANDARD = (0, 1, 2)
MOST = 1 << 20
"""Bytes of a request."""


def ask(address: str, device: str, *handles: str) -> None:
    """Request a worker and end as it ends."""
    numbers = [*STANDARD, *map(int, handles)]
    request = {"device": device, "numbers": numbers, "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(f"\0{address}")
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], numbers)
        code = int(server.makefile().readline())
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


class Server:
    """Forks workers, and ends those whose process under the supervisor has ended."""

    def __init__(self, address: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"\0{address}")
        self.listener.listen()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self.fork)
        self.selector.register(sys.stdin, selectors.EVENT_READ, sys.exit)

    def run(self) -> int:
        """Serve until stdin is closed; in a fork, return the exit code of its worker."""
        while True:
            [(key, _), *_] = self.selector.select()
            if (worker := key.data()) is not None:
                return int(worker())

    def fork(self) -> Callable[[], int] | None:
        """Fork one worker; return None in this process, and in the fork what it is to run."""
        connection, _ = self.listener.accept()
        data, handles, _, _ = socket.recv_fds(connection, MOST, len(STANDARD) + 3)
        while not data.endswith(b"\n"):
            data += connection.recv(MOST)
        pid = os.fork()
        if pid == 0:
            return lambda: work(json.loads(data), handles)
        for handle in handles:
            os.close(handle)
        ended = os.pidfd_open(pid)

        def end() -> None:
            """Reap the fork, which has ended or is to end, and report how it ended."""
            for kill in (os.killpg, os.kill):
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            for each in (ended, connection):
                self.selector.unregister(each)
            os.close(ended)
            with connection, suppress(OSError):
                connection.sendall(f"{code}\n".encode())

        for each in (ended, connection):
            self.selector.register(each, selectors.EVENT_READ, end)
        return None


def work(request: dict[str, Any], handles: list[int]) -> int:
    """Be the worker of a request, with the handles that it expects."""
    from attnbench.worker import protocol, serve

    os.setsid()
    # Aside first: the numbers that were received may be those that others are to have.
    aside = 1 + max(*handles, *request["numbers"])
    received = [fcntl.fcntl(handle, fcntl.F_DUPFD, aside) for handle in handles]
    os.closerange(len(STANDARD), aside)
    for handle, number in zip(received, request["numbers"], strict=True):
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(request["environment"], **{protocol.PARENT: str(os.getppid())})
    os.chdir(request["folder"])
    path = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [*path, *(one for one in sys.path if one not in path)]
    own = request["numbers"][len(STANDARD) :]
    sys.argv[1:] = [request["device"], *map(str, own)]
    return serve.serve(request["device"], *own)


def serve(address: str, *modules: str) -> int:
    """Import what a worker imports, then fork."""
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    server = Server(address)
    print("ready", flush=True)
    return server.run()


@contextmanager
def forking(*modules: str, path: Sequence[Path] = ()) -> Iterator[Callable[..., list[str]]]:
    """While open, gives the command that stands for a worker's, from its arguments.

    Args:
        modules: imported before the forks, besides those that any worker imports.
        path: folders in front of the search path, such as one whose sitecustomize.py changes what a worker imports.
    """
    from attnbench.machine import child
    from attnbench.worker.protocol import PARENT

    environment = child.environment() | {PARENT: str(os.getpid())}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), environment["PYTHONPATH"]])
    file, address = str(Path(__file__).resolve()), uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-P", file, "serve", address, "torch", "attnbench.worker.serve", *modules],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield lambda *args: [sys.executable, "-I", "-S", file, "ask", address, *args]
        server.communicate()


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    sys.exit({"ask": ask, "serve": serve}[role](*words))
