"""Kernels compiled ahead of the call that needs them, in processes without a card, into Triton's cache on disk.

What a call needs is found by making it, on tensors without memory (device "meta") that count as lying on the
card (`card.stood_in_for`), while Triton has a driver that knows the card's architecture and nothing else, and a mode in
which whatever it would compile is handed over.  So checks, configurations, specialisations and with them the keys of
the cache are those of the real call, and there is no second description.

    with gathered(card) as jobs:
        flash_attention(q, k, v)            # launches nothing; `jobs` has a kernel more, under its key in the cache
    compile_all(jobs.values(), processes=8)

Each kernel is compiled in a fork of its own.  If a compiler dies or hangs, the real call compiles that kernel itself and
reports the error.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from triton.backends.compiler import GPUTarget
from triton.runtime import _async_compile
from triton.runtime.driver import driver

from attnbench.kernels.shared.card import Card, stood_in_for

LIMIT_S = 300
"Seconds of a core that a kernel may take to compile, as may the assembler."
PR_SET_PDEATHSIG = 1


class Job(NamedTuple):
    """A kernel that Triton would compile."""

    key: str
    "of Triton's cache"
    compile: Callable[[], Any]
    "compiles it, or finds it there"


class _Gathering:
    """Stands for Triton's mode of compiling asynchronously: of what it is given it compiles nothing."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}

    def submit(self, key: str, compile_kernel: Callable[[], Any], *then: Callable[..., Any]) -> None:
        """Note a kernel; None says that there is none to launch."""
        self.jobs.setdefault(key, Job(key, compile_kernel))


class _Driver:
    """Of Triton's driver what compiling asks for."""

    def __init__(self, card: Card) -> None:
        self.target = GPUTarget("cuda", 10 * card.capability[0] + card.capability[1], 32)

    def get_current_device(self) -> str:
        """No number: kernels that Triton keeps for a real card stay apart."""
        return f"ahead of sm_{self.target.arch}"

    def get_current_stream(self, device: object) -> int:
        """None that anything is launched on."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What the card runs."""
        return self.target


@contextmanager
def gathered(card: Card) -> Iterator[dict[str, Job]]:
    """Launch nothing in this thread while open, but gather what would be compiled, each kernel once.

    Args:
        card: on which every tensor counts as lying.

    Yields:
        The jobs so far, by key.
    """
    gathering, before = _Gathering(), driver._active
    mode = _async_compile.active_mode.set(gathering)
    driver.set_active(_Driver(card))
    try:
        with stood_in_for(card):
            yield gathering.jobs
    finally:
        driver._active = before
        _async_compile.active_mode.reset(mode)


def compile_all(
    jobs: Iterable[Job], *, processes: int, on_end: Callable[[Job, bool], None] = lambda job, done: None
) -> None:
    """Compile kernels, each in a fork of this process, which therefore may have no card of CUDA's.

    Args:
        jobs: drawn from one by one, whenever there is room for another process.
        processes: at a time.
        on_end: called for each job with whether it is in the cache now, in no order.
    """
    running: dict[int, Job] = {}

    def wait() -> None:
        pid, status = os.wait()
        if pid in running:
            on_end(running.pop(pid), status == 0)

    for job in jobs:
        while len(running) >= processes:
            wait()
        running[_forked(job)] = job
    while running:
        wait()


def _forked(job: Job) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of this process hold no lock we need
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with(os.getppid())
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        _launchable(job.compile())
        code = 0
    finally:  # whatever it was, nothing of the parent's is to run here
        os._exit(code)


def _launchable(kernel: Any) -> None:
    """Build the launcher of a compiled kernel too, where that is a module in C of its own (Triton 3.6)."""
    from triton.backends.nvidia import driver as nvidia

    if hasattr(nvidia, "make_launcher"):
        with suppress(Exception):  # a machine without libcuda has no use for it
            nvidia.CudaLauncher(kernel.src, kernel.metadata)


def die_with(parent: int) -> None:
    """Ask the system for SIGKILL when the parent dies (Linux); catch the parent that is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
