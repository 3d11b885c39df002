"""Backends for the CPU, each with one misbehaviour (give this file to --backends).

All share one honest base: attention in plain fp32, causal from the bottom right.  `ATTNBENCH_TEST_LOG`
names a file to which some write what happened to them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnbench.backends.base import Backend, Config, Launch

SAMPLING = 12
"""A call that comes after everything that is done before the samples."""

open_sessions: set[str] = set()
harmed = False
"""Set by a backend that does harm which shows in another."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def sleep_forever() -> None:
    """Said first, so that a test need not guess when."""
    log("asleep")
    while True:
        time.sleep(60)


def log(words: str) -> None:
    with Path(os.environ["ATTNBENCH_TEST_LOG"]).open("a") as file:
        file.write(words + "\n")


class Misbehaving(Backend):
    """Honest; a subclass changes one step."""

    workload, variant, install, devices = "attention", "softmax", "part of the tests", ("cpu",)
    distribution = "numpy"

    def attend(self, q: Any, k: Any, v: Any, hidden: Any, call: int) -> Any:
        """out [B, H, Sq, D]; `call` counts the calls of this session from 1."""
        import torch

        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v

    def hidden(self, queries: int, keys: int) -> Any:
        import torch

        return torch.ones(queries, keys, dtype=torch.bool).triu_(keys - queries + 1)

    def set_up(self) -> None:
        """Before the launch is handed over."""

    def tear_down(self) -> None:
        """When the session is closed."""

    def launch(self, case: Any, inputs: Any) -> Launch:
        import torch

        data = {name: getattr(inputs, name).transpose(1, 2) for name in "qkv"}
        data = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in data.items()}
        hidden = self.hidden(case.seqlen, case.seqlen_k)
        state: dict[str, Any] = {"calls": 0, "out": None}

        def forward() -> None:
            state["calls"] += 1
            state["out"] = None
            with torch.no_grad():
                state["out"] = self.attend(data["q"], data["k"], data["v"], hidden, state["calls"])

        def reload(fresh: Any) -> None:
            for name, tensor in data.items():
                tensor.copy_(getattr(fresh, name).transpose(1, 2))

        return Launch(forward=forward, outputs=lambda: {"out": state["out"].transpose(1, 2)}, reload=reload)

    @contextmanager
    def session(self, case: Any, inputs: Any) -> Iterator[Launch]:
        self.set_up()
        open_sessions.add(self.name)
        try:
            yield self.launch(case, inputs)
        finally:
            open_sessions.discard(self.name)
        self.tear_down()


class Honest(Misbehaving):
    name = "honest"


class HonestToo(Misbehaving):
    name = "honest-too"


class Noting(Misbehaving):
    """Honest, with words for the record, and its process in the log."""

    name = "noting"

    def launch(self, case, inputs):
        log(f"pid {os.getpid()}")
        launch = super().launch(case, inputs)
        launch.notes = ("the kernel that was chosen: plain",)
        return launch


# ── the process ends ───────────────────────────────────────────────────────────────────────────────


class DiesInSetUp(Misbehaving):
    name = "dies-in-set-up"

    def set_up(self):
        print("about to fail in /some/where/private/kernel.cu")
        sys.stdout.flush()
        die()


class DiesInFirstCall(Misbehaving):
    name = "dies-in-first-call"

    def attend(self, *args):
        return die()


class DiesInSampling(Misbehaving):
    name = "dies-in-sampling"

    def attend(self, *args):
        if args[-1] >= SAMPLING:
            die()
        return super().attend(*args)


class DiesInClosing(Misbehaving):
    name = "dies-in-closing"

    def tear_down(self):
        die()


class Exits(Misbehaving):
    name = "exits"

    def attend(self, *args):
        os._exit(3)


class KillsItself(Misbehaving):
    name = "kills-itself"

    def attend(self, *args):
        os.kill(os.getpid(), signal.SIGKILL)


class HangsInFirstCall(Misbehaving):
    name = "hangs-in-first-call"

    def attend(self, *args):
        sleep_forever()


class HangsInSampling(Misbehaving):
    name = "hangs-in-sampling"

    def attend(self, *args):
        if args[-1] >= SAMPLING:
            sleep_forever()
        return super().attend(*args)


class SetsUpForever(Misbehaving):
    name = "sets-up-forever"

    def set_up(self):
        log("asleep")
        # Holding the interpreter's lock: nothing in this process could end it.
        ctypes.PyDLL(None).sleep(2**30)


class HoldsStillOnce(Noting):
    """Honest, but the first of its processes stops in the middle of sampling, until it is killed."""

    name = "holds-still-once"

    def attend(self, *args):
        if args[-1] >= SAMPLING and "asleep" not in Path(os.environ["ATTNBENCH_TEST_LOG"]).read_text():
            sleep_forever()
        return super().attend(*args)


class HarmsOthers(Misbehaving):
    """Right itself; who is called after it in this process dies, as after a late error of a GPU."""

    name = "harms-others"

    def attend(self, *args):
        global harmed
        if args[-1] >= SAMPLING:
            harmed = True
        return super().attend(*args)


class Harmed(Misbehaving):
    """Innocent; dies where `harms-others` was at work."""

    name = "harmed"

    def attend(self, *args):
        if harmed:
            die()
        return super().attend(*args)


# ── memory ─────────────────────────────────────────────────────────────────────────────────────────


class TooLarge(Misbehaving):
    name = "too-large"

    def attend(self, *args):
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class TooLargeInPython(Misbehaving):
    name = "too-large-in-python"

    def set_up(self):
        raise MemoryError


class TooLargeBesideOthers(Misbehaving):
    """Fits alone and beside one other, not beside two."""

    name = "too-large-beside-two"

    def attend(self, *args):
        import torch

        if len(open_sessions) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().attend(*args)


class TooLargeInSampling(Misbehaving):
    """Fits while it is looked at, but not while it is sampled beside another."""

    name = "too-large-in-sampling"

    def attend(self, *args):
        import torch

        if args[-1] >= SAMPLING and len(open_sessions) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().attend(*args)


# ── exceptions ─────────────────────────────────────────────────────────────────────────────────────


class RaisesInProbe(Misbehaving):
    name = "raises-in-probe"

    def probe(self):
        raise KeyError("LIBRARY_HOME")


class RaisesInVersion(Misbehaving):
    name = "raises-in-version"

    def version(self):
        raise OSError("no such file: /home/somebody/library/version.txt")


class RaisesInSession(Misbehaving):
    name = "raises-in-session"

    def set_up(self):
        raise RuntimeError("no kernel image\nis available")


class RaisesInForward(Misbehaving):
    name = "raises-in-forward"

    def attend(self, *args):
        raise ValueError("head of size 16")


class RaisesInOutputs(Misbehaving):
    name = "raises-in-outputs"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.outputs = lambda: {}["out"]
        return launch


class RaisesInSampling(Misbehaving):
    name = "raises-in-sampling"

    def attend(self, *args):
        if args[-1] >= SAMPLING:
            raise ValueError("one call too many")
        return super().attend(*args)


class RaisesInClosing(Misbehaving):
    name = "raises-in-closing"

    def tear_down(self):
        raise RuntimeError("the handle is gone")


class WrongAndRaisesInClosing(Misbehaving):
    name = "wrong-and-raises-in-closing"

    def attend(self, *args):
        return super().attend(*args) * 1.1

    def tear_down(self):
        raise RuntimeError("the handle is gone")


class ReportsNonsense(Misbehaving):
    """Times itself, and says so."""

    name = "reports-nonsense"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.reported_ms = lambda: float("nan")
        return launch


class HasConfigurations(Misbehaving):
    name = "has-configurations"

    def configs(self, case):
        return (Config("fast"),)


# ── wrong ──────────────────────────────────────────────────────────────────────────────────────────


class NotANumber(Misbehaving):
    name = "not-a-number"

    def attend(self, *args):
        out = super().attend(*args)
        out[0, 0, 3, 1] = float("nan")
        return out


class WrongValues(Misbehaving):
    name = "wrong-values"

    def attend(self, *args):
        out = super().attend(*args)
        out[0, 1, 5] *= 1.01
        return out


class TopLeft(Misbehaving):
    name = "top-left"

    def hidden(self, queries, keys):
        import torch

        return torch.ones(queries, keys, dtype=torch.bool).triu_(1)


class Unwritten(Misbehaving):
    """Writes into a buffer it keeps, after a while all but one row."""

    name = "unwritten"
    buffer: Any = None

    def attend(self, *args):
        out = super().attend(*args)
        if self.buffer is None:
            self.buffer = out.clone()
        rows = slice(0 if args[-1] <= 3 else 1, None)
        self.buffer[:, :, rows] = out[:, :, rows]
        return self.buffer


class Cached(Misbehaving):
    name = "cached"
    answer: Any = None

    def attend(self, *args):
        if self.answer is None:
            self.answer = super().attend(*args)
        return self.answer.clone()


class ChangesInputs(Misbehaving):
    name = "changes-inputs"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        honest = launch.forward

        def forward():
            honest()
            inputs.k[0, 0] += 1

        launch.forward = forward
        return launch


class ChangesInputsInSampling(Misbehaving):
    name = "changes-inputs-in-sampling"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        honest, calls = launch.forward, [0]

        def forward():
            honest()
            calls[0] += 1
            if calls[0] == SAMPLING:
                inputs.v[0, 0] += 1

        launch.forward = forward
        return launch


class ChangesInputsAndRaises(Misbehaving):
    name = "changes-inputs-and-raises"

    def launch(self, case, inputs):
        inputs.q.zero_()
        raise RuntimeError("not today")


class FinishesLate(Misbehaving):
    """Leaves the last row to a thread, which is done after the first look at the outputs and before the second."""

    name = "finishes-late"

    def attend(self, *args):
        out = super().attend(*args)
        last, due, self.looks = out[:, :, -1].clone(), threading.Event(), 0
        out[:, :, -1] = 0

        def finish():
            due.wait()
            out[:, :, -1] = last

        self.due, self.thread = due, threading.Thread(target=finish, daemon=True)
        self.thread.start()
        return out

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        outputs = launch.outputs

        def look():
            self.looks += 1
            if self.looks == 2:
                self.due.set()
                self.thread.join()
            return outputs()

        launch.outputs = look
        return launch


class WrongAfterTiming(Misbehaving):
    name = "wrong-after-timing"

    def attend(self, *args):
        out = super().attend(*args)
        return out * 1.5 if args[-1] >= SAMPLING else out


# ── untidy, but right ──────────────────────────────────────────────────────────────────────────────


class ChangesGlobals(Misbehaving):
    name = "changes-globals"

    def set_up(self):
        import torch

        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1 + torch.get_num_threads())


class ChangesGlobalsInSampling(Misbehaving):
    name = "changes-globals-in-sampling"

    def attend(self, *args):
        import torch

        if args[-1] >= SAMPLING:
            torch.set_default_dtype(torch.float64)
        return super().attend(*args)


class Noisy(Misbehaving):
    """Prints whatever it likes, also past Python, and closes what it was given."""

    name = "noisy"

    def attend(self, *args):
        print('{"say": "done", "number": 1, "sampling_s": 0}', flush=True)
        os.write(1, b"\x00\xff\n" * 100)
        os.write(2, b"no newline")
        return super().attend(*args)

    def tear_down(self):
        for number in (0, 1, 2):
            os.close(number)


class LeavesAChild(Misbehaving):
    """Starts a process of its own and forgets it."""

    name = "leaves-a-child"

    def set_up(self):
        import subprocess

        child = subprocess.Popen(["/bin/sleep", "300"])
        log(f"child {child.pid}")
        child.returncode = 0  # nobody is to be told of it by a ResourceWarning


class DiesAndLeavesAChild(LeavesAChild):
    name = "dies-and-leaves-a-child"

    def set_up(self):
        super().set_up()
        die()


class ReportsAMillisecond(Misbehaving):
    """Honest, and times itself."""

    name = "reports-a-millisecond"

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.reported_ms = lambda: 1.0
        return launch


class OfAVariantNobodyKnows(Misbehaving):
    name, variant = "of-a-variant-nobody-knows", "sotfmax"
