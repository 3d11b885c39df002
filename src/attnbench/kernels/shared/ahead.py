"""Kernels compiled before the call that needs them, in processes without a card, into Triton's cache on disk.

What a call needs is found by making it, on tensors without memory (device "meta") that are treated as tensors of the card
(`card.stood_in_for`).  Triton then has a driver that only knows the card's architecture, and is in a mode in which every
kernel that it would compile is collected.  So checks, configurations, specialisations and the keys of the cache are those
of the real call, and there is no second description of them.

    with gathered(card) as jobs:
        flash_attention(q, k, v)            # launches nothing; `jobs` has one more kernel, by its key in the cache
    compile_all(jobs.values(), processes=8)

Each kernel is compiled in a forked process of its own.  If a compiler dies or hangs, the real call compiles that kernel
itself and reports the error.
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
"CPU seconds that a kernel, or the assembler, may take to compile."
PR_SET_PDEATHSIG = 1


class Job(NamedTuple):
    """A kernel that Triton would compile."""

    key: str
    "key in Triton's cache"
    compile: Callable[[], Any]
    "compiles it, or finds it in the cache"


class _Gathering:
    """Replaces Triton's mode of asynchronous compilation: collects what should be compiled, and compiles nothing."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}

    def submit(self, key: str, compile_kernel: Callable[[], Any], *then: Callable[..., Any]) -> None:
        """Collect a kernel; None: there is no kernel to launch."""
        self.jobs.setdefault(key, Job(key, compile_kernel))


class _Driver:
    """The part of Triton's driver that compiling needs."""

    def __init__(self, card: Card) -> None:
        self.target = GPUTarget("cuda", 10 * card.capability[0] + card.capability[1], 32)

    def get_current_device(self) -> str:
        """Not a number, so that kernels that Triton caches for a real card stay apart."""
        return f"ahead of sm_{self.target.arch}"

    def get_current_stream(self, device: object) -> int:
        """None: nothing is launched."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """The target of the card."""
        return self.target


@contextmanager
def gathered(card: Card) -> Iterator[dict[str, Job]]:
    """Launch nothing in this thread while open, but collect each kernel that would be compiled, once.

    Args:
        card: all tensors are treated as tensors of this card.

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
    """Compile kernels, each in a fork of this process, which therefore must not have initialized CUDA.

    Args:
        jobs: an iterator from which a job is taken whenever another process may start.
        processes: at a time.
        on_end: called for each job, in any order, with whether it is in the cache now.
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
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold no lock that the fork needs
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
    finally:  # on any error: no code of the parent must run in the fork
        os._exit(code)


def _launchable(kernel: Any) -> None:
    """Also build the launcher of a compiled kernel, where that is a C module of its own (Triton 3.6)."""
    from triton.backends.nvidia import driver as nvidia

    if hasattr(nvidia, "make_launcher"):
        with suppress(Exception):  # a machine without libcuda does not need it
            nvidia.CudaLauncher(kernel.src, kernel.metadata)


def die_with(parent: int) -> None:
    """Ask the system for SIGKILL when the parent dies (Linux); also detects a parent that has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
