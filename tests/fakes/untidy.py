"""Backends for the CPU that are correct and leave a global changed (give this file to --backends): `leaves-NAME`."""

from __future__ import annotations

import decimal
import gc
import json
import locale
import os
import random
import resource
import signal
import sys
import time
import warnings
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from misbehaving import Misbehaving, log
from torch.overrides import TorchFunctionMode

attention = torch.nn.functional.scaled_dot_product_attention


def lowered(limit: int, value: int) -> None:
    resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))


def slow_clock() -> int:
    return 0


class Broken:
    """A stream that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError("broken")

    flush = write


CHANGES: dict[str, Any] = {
    "anomaly-detection": lambda: torch.autograd.set_detect_anomaly(True),
    "a-folder": lambda: os.chdir("/"),
    "a-broken-stderr": lambda: setattr(sys, "stderr", Broken()),
    "no-stdout": lambda: setattr(sys, "stdout", None),
    "a-closed-stderr": lambda: sys.stderr.close(),
    "another-file-of-stderr": lambda: os.dup2(os.open(os.devnull, os.O_RDWR), 2),
    "a-low-recursion-limit": lambda: sys.setrecursionlimit(60),
    "few-open-files": lambda: lowered(resource.RLIMIT_NOFILE, 30),
    "small-files": lambda: lowered(resource.RLIMIT_FSIZE, 2**40),
    "an-environment-variable": lambda: os.environ.update(A_SECRET="hunter2", LANG="C"),
    "no-path": lambda: os.environ.pop("PATH"),
    "a-folder-in-front": lambda: sys.path.insert(0, "/somewhere/private"),
    "random-numbers": lambda: (random.random(), np.random.rand(1), torch.rand(1)),
    "a-signal-handler": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    "a-blocked-signal": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
    "an-alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 5),
    "one-core": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "an-old-tensor-type": lambda: torch.set_default_tensor_type(torch.DoubleTensor),
    "no-garbage-collection": lambda: (gc.disable(), gc.set_threshold(1)),
    "a-switch-interval": lambda: sys.setswitchinterval(1.0),
    "a-locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C"),
    "a-umask": lambda: os.umask(0o777),
    "warnings-as-errors": lambda: warnings.simplefilter("error"),
    "no-warnings": lambda: warnings.simplefilter("ignore"),
    "a-default-device": lambda: torch.set_default_device("meta"),
    "another-attention": lambda: setattr(torch.nn.functional, "scaled_dot_product_attention", slow_clock),
    "another-product": lambda: setattr(torch.Tensor, "__matmul__", slow_clock),
    "another-clock": lambda: setattr(time, "perf_counter_ns", slow_clock),
    "another-json": lambda: setattr(json, "dumps", slow_clock),
    "another-core-count": lambda: setattr(os, "cpu_count", slow_clock),
    "one-digit": lambda: setattr(decimal.getcontext(), "prec", 1),
    "a-trace-function": lambda: sys.settrace(lambda *_: None),
    "denormals-flushed": lambda: torch.set_flush_denormal(True),
    "numpy-errors": lambda: np.seterr(all="raise"),
    "mkldnn-off": lambda: setattr(torch.backends.mkldnn, "enabled", False),
}
"""All that can be put back; each is done when the session is opened."""


def _backend(kind: str) -> type[Misbehaving]:
    class Leaves(Misbehaving):
        name = f"leaves-{kind}"

        def set_up(self):
            CHANGES[kind]()

    Leaves.__module__ = __name__
    return Leaves


globals().update({f"Leaves{number}": _backend(kind) for number, kind in enumerate(CHANGES)})


class WithGradients(Misbehaving):
    """Honest, with a backward of its own that uses autograd in its launch alone."""

    name = "with-gradients"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        data = {name: getattr(inputs, name).detach().clone().requires_grad_() for name in "qkv"}
        hidden = self.hidden(case.seqlen, case.seqlen_k)
        kept: dict[str, Any] = {}

        def forward():
            q, k, v = (data[name].transpose(1, 2) for name in "qkv")
            kept["out"] = self.attend(q, k, v, hidden, 0).transpose(1, 2)

        def backward():
            kept["grads"] = torch.autograd.grad(kept["out"], [data[name] for name in "qkv"], kept["dout"])

        def reload(fresh):
            kept["dout"] = fresh.dout
            with torch.no_grad():
                for name in "qkv":
                    data[name].copy_(getattr(fresh, name))

        reload(inputs)
        launch.forward, launch.backward, launch.reload = forward, backward, reload
        launch.outputs = lambda: (
            {"out": kept["out"].detach()}
            | {f"d{name}": grad for name, grad in zip("qkv", kept.get("grads", ()), strict=False)}
        )
        return launch


class InferenceModeAroundTheYield(Misbehaving):
    name = "inference-mode-around-the-yield"

    @contextmanager
    def session(self, case, inputs):
        with torch.inference_mode(), super().session(case, inputs) as launch:
            yield launch


class CountsCalls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class AModeAroundTheYield(Misbehaving):
    name = "a-mode-around-the-yield"

    @contextmanager
    def session(self, case, inputs):
        log(f"mode {os.getpid()}")
        with CountsCalls(), super().session(case, inputs) as launch:
            yield launch


class AnotherClockInItsPhases(Misbehaving):
    name = "another-clock-in-its-phases"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.phases = {"plan": lambda: setattr(time, "time_ns", slow_clock)}
        return launch


class AFolderWhenItIsClosed(Misbehaving):
    name = "a-folder-when-it-is-closed"

    def tear_down(self):
        os.chdir("/")
