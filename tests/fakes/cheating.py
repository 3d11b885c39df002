"""Backends for the CPU (for --backends) whose answers are right and whose times are not those of the work.

Each does the work somewhere else: in a thread, in a call that is not timed, or once for data it has seen before.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from misbehaving import Misbehaving

from attnbench.backends.base import Launch


def attend(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    """out [B, H, Sq, D], through torch."""
    import torch

    with torch.no_grad():
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v


def attend_by_numpy(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    """The same where torch's dispatcher does not see it."""
    import numpy
    import torch

    scores = q.numpy() @ k.numpy().swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores[..., hidden.numpy()] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy(weights / weights.sum(-1, keepdims=True) @ v.numpy())


class Cheating(Misbehaving):
    """Honest, with its steps as methods; a subclass moves the work."""

    devices = ("cpu", "cuda")
    copies = True
    "own copies of the inputs, as most adapters; else views of the tensors handed over"
    attend = staticmethod(attend)

    def launch(self, case, inputs):
        import torch

        self.hides = self.hidden(case.seqlen, case.seqlen_k).to(inputs.q.device)
        first = self.views(inputs)
        self.data = {name: x.clone(memory_format=torch.contiguous_format) for name, x in first.items()}
        if not self.copies:
            self.data = first
        self.out: Any = None
        self.prepare()
        return Launch(
            forward=self.forward,
            outputs=lambda: {"out": self.outputs().transpose(1, 2)},
            reload=self.reload,
            reset=self.reset if type(self).reset is not Cheating.reset else None,
        )

    def views(self, inputs):
        return {name: getattr(inputs, name).transpose(1, 2) for name in "qkv"}

    def prepare(self):
        """Once the data is there."""

    def work(self):
        return self.attend(*self.data.values(), self.hides)

    def forward(self):
        self.out = self.work()

    def outputs(self):
        return self.out

    def reset(self):
        """Nothing."""

    def reload(self, inputs):
        if not self.copies:
            self.data = self.views(inputs)
            return
        for name, x in self.views(inputs).items():
            self.data[name].copy_(x)


class HonestSteps(Cheating):
    name = "honest-steps"


class HonestViews(Cheating):
    name, copies = "honest-views", False


class ByNumpy(Cheating):
    """Honest, slower, and nothing that torch sees."""

    name, attend, devices = "by-numpy", staticmethod(attend_by_numpy), ("cpu",)


# ── asynchronous ───────────────────────────────────────────────────────────────────────────────────


class Future(Cheating):
    """A call only submits, in place of a call that nobody asked for; whoever asks for the outputs waits."""

    name = "future"

    def prepare(self):
        self.pool = ThreadPoolExecutor(1)

    def forward(self):
        if self.out is not None:
            self.out.cancel()
        self.out = self.pool.submit(self.work)

    def outputs(self):
        return self.out.result()


class FutureAfterAWhile(Future):
    """Waits for its thread in the first four calls, in which it is checked.

    In no more: a slow machine may record a single sample, and looks at it in a few calls.
    """

    name, calls = "future-after-a-while", 0

    def forward(self):
        super().forward()
        self.calls += 1
        if self.calls <= 4:
            self.out.result()


class FutureOfReload(Cheating):
    """A thread works from `reload` on; a call waits for it and copies."""

    name = "future-of-reload"

    def prepare(self):
        self.pool = ThreadPoolExecutor(1)
        self.kept = self.pool.submit(self.work)

    def reload(self, inputs):
        super().reload(inputs)
        self.kept = self.pool.submit(self.work)

    def forward(self):
        self.out = self.kept.result().clone()


class FutureOfReloadByNumpy(FutureOfReload):
    name, attend = "future-of-reload-by-numpy", staticmethod(attend_by_numpy)


class WaitsNowAndThen(FutureOfReloadByNumpy):
    """`reload` waits for its thread in every second call, as if the machine had preempted it there."""

    name, loads = "waits-now-and-then", 0

    def reload(self, inputs):
        super().reload(inputs)
        self.loads += 1
        # By a Weyl sequence: a look loads twice, and neither of the two may be the same in all looks.
        if self.loads * 0.618 % 1 < 0.5:
            self.kept.result()


class WhenRead(Cheating):
    """A tensor of a class of its own, which computes itself when an operator reads it."""

    name = "when-read"

    def forward(self):
        import torch

        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                with torch._C.DisableTorchFunctionSubclass():
                    for one in args:
                        if isinstance(one, Lazy) and (compute := one.__dict__.pop("compute", None)):
                            one.copy_(compute())
                    return func(*args, **(kwargs or {}))

        self.out = torch.empty_like(self.data["q"]).transpose(1, 2).as_subclass(Lazy)
        self.out.compute = lambda: self.work().transpose(1, 2)

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.outputs = lambda: {"out": self.out}
        return launch


# ── in a call that is not timed ────────────────────────────────────────────────────────────────────


class InOutputs(Cheating):
    name = "in-outputs"

    def forward(self):
        self.out = None

    def outputs(self):
        if self.out is None:
            self.out = self.work()
        return self.out


class RestsWhenReadAgain(InOutputs):
    """A second read now and then takes longer than the first, as if the machine had preempted it there."""

    name, reads, again = "rests-when-read-again", 0, False

    def outputs(self):
        first, found = self.out is None, super().outputs()
        if self.again and not first:
            self.reads += 1
            if self.reads * 0.618 % 1 < 0.5:
                time.sleep(0.05)
        self.again = first
        return found


class InOutputsByNumpy(InOutputs):
    name, attend = "in-outputs-by-numpy", staticmethod(attend_by_numpy)


class InEveryOutputs(Cheating):
    name, attend = "in-every-outputs", staticmethod(attend_by_numpy)

    def forward(self):
        """Nothing."""

    def outputs(self):
        return self.work()


class InReset(Cheating):
    """Keeps its buffer, so that a call of nothing leaves what reset has written."""

    name = "in-reset"

    def reset(self):
        self.out = self.work()

    def forward(self):
        """Nothing."""


class CopiesWhatResetComputed(InReset):
    name, attend = "copies-what-reset-computed", staticmethod(attend_by_numpy)

    def reset(self):
        self.kept = self.work()

    def forward(self):
        self.out = self.kept.clone()


class InReload(Cheating):
    name = "in-reload"

    def prepare(self):
        self.kept = self.work()

    def reload(self, inputs):
        super().reload(inputs)
        self.prepare()

    def forward(self):
        self.out = self.kept.clone()


class InReloadByNumpy(InReload):
    name, attend = "in-reload-by-numpy", staticmethod(attend_by_numpy)


# ── once for data it has seen ──────────────────────────────────────────────────────────────────────


class Memo(Cheating):
    """Works once for each key, and copies from then on."""

    def prepare(self):
        self.memo: dict[Any, Any] = {}

    def key(self):
        raise NotImplementedError

    def work(self):
        key = self.key()
        if key not in self.memo:
            self.memo[key] = super().work()
        return self.memo[key].clone()


class ByDirtyFlag(Memo):
    name, dirty = "by-dirty-flag", 0

    def reload(self, inputs):
        super().reload(inputs)
        self.dirty += 1

    def key(self):
        return self.dirty


class NowInReloadNowInTheCall(ByDirtyFlag):
    """Keeps each limit of its own in about half of the looks."""

    name, attend = "now-in-reload-now-in-the-call", staticmethod(attend_by_numpy)

    def reload(self, inputs):
        super().reload(inputs)
        if self.dirty * 0.618 % 1 < 0.5:
            self.work()


class ByPointer(Memo):
    name, copies = "by-pointer", False

    def key(self):
        return tuple(x.data_ptr() for x in self.data.values())


class ByVersion(Memo):
    name = "by-version"

    def key(self):
        return tuple((x.data_ptr(), x._version) for x in self.data.values())


class ByVersionOfViews(ByVersion):
    name, copies = "by-version-of-views", False


class ByHash(Memo):
    name = "by-hash"

    def key(self):
        return hash(b"".join(x.contiguous().numpy().tobytes()[:65536] for x in self.data.values()))


class ByOneElement(Memo):
    name = "by-one-element"

    def key(self):
        return float(self.data["q"][0, 0, 0, 0])


class KeepsWeights(Cheating):
    """Keeps softmax(QKᵀ) alone."""

    name = "keeps-weights"

    def prepare(self):
        self.memo: dict[Any, Any] = {}

    def work(self):
        import torch

        q, k, v = self.data.values()
        key = hash(q.contiguous().numpy().tobytes()[:65536])
        if key not in self.memo:
            with torch.no_grad():
                scores = ((q @ k.mT) * q.shape[-1] ** -0.5).masked_fill(self.hides, -torch.inf)
                self.memo[key] = torch.softmax(scores, -1)
        return self.memo[key] @ v


class SlowForTwoCalls(ByDirtyFlag):
    """Works in the first two calls after a reload, in case one of them is looked at."""

    name, left = "slow-for-two-calls", 2

    def reload(self, inputs):
        super().reload(inputs)
        self.left = 2

    def work(self):
        self.left -= 1
        if self.left >= 0:
            self.memo.pop(self.key(), None)
        return super().work()


class WhenAskedFor(Cheating):
    """Works in a call only if somebody has asked for the outputs since the last, or loaded data."""

    name, asked_for = "when-asked-for", True

    def reload(self, inputs):
        super().reload(inputs)
        self.asked_for = True

    def outputs(self):
        self.asked_for = True
        return self.out

    def forward(self):
        if self.asked_for:
            super().forward()
        self.asked_for = False


class AfterAPause(Cheating):
    """Works in a call only if the last was a while ago, or data was loaded."""

    name, last = "after-a-pause", 0.0

    def reload(self, inputs):
        super().reload(inputs)
        self.last = 0.0

    def forward(self):
        if time.monotonic() - self.last > 5e-3:
            super().forward()
        self.last = time.monotonic()


class NowAndThen(Cheating):
    """Works in every fourth call, and in the first two after data was loaded."""

    name, calls, left = "now-and-then", 0, 2

    def reload(self, inputs):
        super().reload(inputs)
        self.left = 2

    def forward(self):
        self.calls += 1
        self.left -= 1
        if self.left >= 0 or self.calls % 4 == 0:
            super().forward()


class StopsWorking(Cheating):
    """Does nothing any more after the four calls of the checks; its outputs are still those of the last call."""

    name, calls = "stops-working", 0

    def forward(self):
        self.calls += 1
        if self.calls <= 4:
            super().forward()


# ── on a GPU: other streams and threads ────────────────────────────────────────────────────────────


class OnSideStream(Cheating):
    """Works on a stream of its own, in order with the current one at both ends: honest."""

    name, devices = "on-side-stream", ("cuda",)
    waits, is_waited_for = True, True

    def prepare(self):
        import torch

        self.stream = torch.cuda.Stream()
        self.out = torch.empty_like(self.data["q"])

    def forward(self):
        import torch

        current = torch.cuda.current_stream()
        if self.waits:
            self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.out.copy_(self.work())
        if self.is_waited_for:
            current.wait_stream(self.stream)


class NotWaitedFor(OnSideStream):
    name, is_waited_for = "not-waited-for", False


class DoesNotWait(OnSideStream):
    name, waits = "does-not-wait", False


class OutOfOrder(OnSideStream):
    name, waits, is_waited_for = "out-of-order", False, False


class OutOfOrderWithViews(OutOfOrder):
    name, copies = "out-of-order-with-views", False


class ReplaysAGraph(Cheating):
    """Honest: a captured graph over tensors of its own."""

    name, devices = "replays-a-graph", ("cuda",)

    def prepare(self):
        import torch

        for _ in range(2):
            self.out = self.work()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.work()

    def forward(self):
        self.graph.replay()

    def launch(self, case, inputs):
        launch = super().launch(case, inputs)
        launch.capturable = False
        return launch


class WaitsInReload(Cheating):
    """Honest: its reload synchronises, as one that plans on the host may."""

    name, devices = "waits-in-reload", ("cuda",)

    def reload(self, inputs):
        import torch

        super().reload(inputs)
        torch.cuda.synchronize()
        sum(range(200_000))


# ── with a backward ────────────────────────────────────────────────────────────────────────────────


class BackwardInForward(Cheating):
    """Mode bwd: the gradients are there before the backward is called."""

    name = "backward-in-forward"

    def launch(self, case, inputs):
        import torch

        self.hides = self.hidden(case.seqlen, case.seqlen_k)
        state: dict[str, Any] = {"inputs": inputs}

        def forward():
            views = self.views(state["inputs"])
            leaves = [x.detach().clone().requires_grad_() for x in views.values()]
            scores = ((leaves[0] @ leaves[1].mT) * case.scale).masked_fill(self.hides, -torch.inf)
            out = torch.softmax(scores, -1) @ leaves[2]
            state["out"] = out.detach()
            state["kept"] = torch.autograd.grad(out, leaves, state["inputs"].dout.transpose(1, 2))

        def backward():
            state["grads"] = [x.clone() for x in state["kept"]]

        def outputs():
            found = {"out": state["out"], **dict(zip(("dq", "dk", "dv"), state.get("grads", ()), strict=False))}
            return {name: x.transpose(1, 2) for name, x in found.items()}

        return Launch(
            forward=forward, backward=backward, outputs=outputs, reload=lambda fresh: state.update(inputs=fresh)
        )
