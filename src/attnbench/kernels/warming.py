"""`warm`: compile kernels in parallel before the calls that need them, which then find them in Triton's cache."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.shared.ahead import compile_all, die_with, gathered
from attnbench.kernels.shared.card import Card

WHO = "warm"
PACKAGE = __name__.rpartition(".")[0]
ALIGNED = 16
"Bytes: kernels are not specialized for a larger alignment."
MOST = 64
"Default limit of processes; each takes some 0.5 GB while it compiles."


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of `warm`."""

    kernels: int
    "distinct kernels that the calls launch"
    failed: int
    "how many could not be compiled: the call that needs one reports why"
    seconds: float


def warm(
    *calls: Callable[[], Any],
    card: Card | None = None,
    processes: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, kernels: None,
) -> Warmed:
    """Compile all kernels that calls need, several at a time, and return when they are in Triton's cache on disk.

    Its processes work without the card.  Kernels that are in the cache already cost nothing.

    Args:
        calls: such as ``partial(flash_attention, q, k, v, causal=True)``, of functions of this package.  Of a tensor its
            shape, strides, dtype and alignment count, and whether it requires a gradient: then the backward is compiled
            too.  It may be a tensor on device "meta", which has no memory.
        card: the card to compile for; None: PyTorch's current one.
        processes: at a time; None: one per core.
        on_progress: called with the number of kernels that are done, and of all.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.  A call that its
            function refuses is refused with that function's message.
        RuntimeError: the process that finds out what to compile has failed.
    """
    began = time.perf_counter()
    for number, call in enumerate(calls):
        _check_call(number, call)
    if processes is not None and (type(processes) is not int or processes < 1):
        raise _wrong("processes", repr(processes), "cannot be used", "a whole number from 1, or None")
    if not isinstance(card, Card | None):
        raise _wrong("card", repr(card), "is no card", "a Card, or None for PyTorch's current one")
    card = card or Card.current()
    if card is None:
        raise _wrong("card", None, "is PyTorch's current card, but there is none", "a Card: its capability and SMs")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise _wrong("TRITON_INTERPRET", 1, "has kernels interpreted", "an environment without it")
    kernels = done = failed = 0
    for answer in _answers(_packed((calls, card, processes or usable_cores()))):
        if "refused" in answer:
            raise ValueError(answer["refused"])
        kernels += answer.get("kernels", 0)
        if "done" in answer:
            done += 1
            failed += not answer["done"]
        on_progress(done, kernels)
    return Warmed(kernels, failed, time.perf_counter() - began)


def usable_cores() -> int:
    """Cores that this process may run on, at most `MOST`."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, MOST)


def without_card() -> dict[str, str]:
    """Environment of a process that compiles: without a card, with our packages, without threads (it will fork)."""
    paths = os.pathsep.join(path for path in sys.path if path)
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **alone, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}


def _check_call(number: int, call: object) -> None:
    accepted = f"partial(function, …) of a function of {PACKAGE}"
    if not isinstance(call, partial):
        raise _wrong(f"calls[{number}]", repr(call)[:60], "is not a call of one of our functions", accepted)
    name = getattr(call.func, "__name__", call.func)
    if not str(getattr(call.func, "__module__", "")).startswith(f"{PACKAGE}.") or call.func is warm:
        raise _wrong(f"calls[{number}]", name, "is not ours", accepted)
    try:
        signature(call.func).bind(*call.args, **call.keywords)
    except TypeError as why:
        raise _wrong(f"calls[{number}]", name, f"cannot be called so: {why}", "the arguments of its call") from None


# ── calls, sent to the other process ───────────────────────────────────────────────────────────────


class _Pickler(pickle.Pickler):
    """Pickles a tensor as what a kernel is compiled for."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        try:
            shape, strides, past = tuple(obj.shape), obj.stride(), obj.data_ptr() % ALIGNED
        except RuntimeError:
            raise _wrong(
                "calls", f"a tensor ({obj.layout})", "has no memory that a kernel reads", "dense ones"
            ) from None
        if past % obj.element_size():
            raise _wrong("calls", f"a tensor at an address with {past} over", "cannot be used", "whole elements")
        return shape, strides, obj.dtype, past // obj.element_size(), obj.requires_grad


class _Unpickler(pickle.Unpickler):
    """Creates tensors without memory from that."""

    def persistent_load(self, pid: Any) -> Tensor:
        shape, strides, dtype, offset, needs_grad = pid
        room = offset + 1 + sum(max(0, size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        made = torch.empty(room, dtype=dtype, device="meta").as_strided(shape, strides, offset)
        return made.requires_grad_(needs_grad)


def _wrong(name: str, value: object, what: str, accepted: str) -> ValueError:
    return ValueError(f"{WHO}: {name}={value} {what}; {accepted}")


def _packed(what: Any) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file).dump(what)
    except (pickle.PicklingError, TypeError, AttributeError) as why:
        raise _wrong("calls", str(why)[:100], "cannot be sent to another process", "plain values and tensors") from None
    return file.getvalue()


def _received(request: bytes) -> Any:
    return _Unpickler(io.BytesIO(request)).load()


def _answers(request: bytes) -> Iterator[dict[str, Any]]:
    """The other process's messages, until it ends."""
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid())]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=without_card()
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018 (no test)
        try:
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(request)
            for line in process.stdout:
                yield json.loads(line)
            if process.wait():
                log.seek(0)
                words = log.read().decode(errors="replace").strip().splitlines()
                last = "".join(words[-1:])[:300]
                raise RuntimeError(f"{WHO}: its process ended with code {process.returncode}; {last}")
        finally:  # an exception of the caller's callback leaves no process running
            process.kill()


# ── in the other process ───────────────────────────────────────────────────────────────────────────


def _send(**word: Any) -> None:
    """Send one message to the parent process."""
    sys.stdout.write(f"{json.dumps(word)}\n")
    sys.stdout.flush()


def _call_with_gradients(call: Callable[[], Any]) -> None:
    """Make a call, and the backward of its first result if that has one."""
    results = call()
    first = results[0] if isinstance(results, tuple | list) else results
    if isinstance(first, Tensor) and first.requires_grad:
        first.backward(torch.empty_like(first, memory_format=torch.contiguous_format))


def _serve() -> None:
    die_with(int(sys.argv[1]))
    calls, card, processes = _received(sys.stdin.buffer.read())
    try:
        with gathered(card) as jobs:
            for call in calls:
                _call_with_gradients(call)
    except ValueError as why:
        _send(refused=str(why))
        return
    _send(kernels=len(jobs))
    compile_all(jobs.values(), processes=processes, on_end=lambda job, done: _send(done=done))


if __name__ == "__main__":
    _serve()
