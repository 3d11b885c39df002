"""A tiny workload (a scaled running sum) and launches of it, each with one misbehaviour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.backends.base import Launch
from attnbench.check.poison import bits
from attnbench.dtypes import DTYPES, torch_dtype
from attnbench.record import Work
from attnbench.workloads.base import Draw, OutputKind, Workload


@dataclass(frozen=True)
class SumCase:
    """out[b, i, h] = Σ_{j ≤ i} x[b, j, h] / (i + 1), and its gradient dx for a given dout."""

    batch: int = 2
    length: int = 129
    heads: int = 3
    size: int = 17
    dtype: str = "fp32"
    mode: str = "fwd-bwd"

    @property
    def id(self) -> str:
        return f"sum-{self.length}-{self.dtype}-{self.mode}"

    def to_dict(self) -> dict[str, Any]:
        return vars(self)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.length, self.heads, self.size)


@dataclass
class SumInputs:
    x: Tensor
    dout: Tensor

    def tensors(self) -> dict[str, Tensor]:
        return {"x": self.x, "dout": self.dout}


class SumWorkload(Workload):
    name, title, axes, variants = "sum", "running mean", (), ("mean",)

    def outputs(self, variant: str) -> Mapping[str, OutputKind]:
        return {"out": OutputKind.VALUE, "dx": OutputKind.GRADIENT}

    def case(self, values: Mapping[str, Any]) -> SumCase:
        return SumCase(**values)

    def work(self, case: SumCase) -> Work:
        return Work(flops=1, bytes=1)

    def inputs(self, case: SumCase, *, seed: int, kind: str = "normal", device: Any = "cpu") -> SumInputs:
        random = torch.Generator(device).manual_seed(seed)
        dtype = torch_dtype(case.dtype)
        largest = 20.0 if dtype is torch.int8 else 1.0
        return SumInputs(
            *((largest * torch.randn(case.shape, generator=random, device=device)).to(dtype) for _ in range(2))
        )

    def oracle(self, variant: str, case: SumCase, inputs: SumInputs, *, dtype: Any, draw: Draw) -> dict[str, Tensor]:
        answer = mean(inputs.x.to(dtype), inputs.dout.to(dtype), case.mode)
        return self.select(case, answer, draw)

    def expected_errors(self, variant: str, case: SumCase, inputs: SumInputs, *, draw: Draw) -> dict[str, Tensor]:
        """Each sum so far is rounded, in the tensor's own precision; then the weights, and the mean."""
        unit = torch.finfo(result_type(case)).eps / 2 / 3**0.5
        weight = _weight(inputs.x.double())
        out = _accumulate(inputs.x.double())
        errors = {"out": (_accumulate(out.square()) + 2 * out.square()).sqrt() * weight}
        if case.mode != "fwd":
            dx = _accumulate((inputs.dout.double() * weight).flip(1))
            terms = _accumulate((inputs.dout.double() * weight).square().flip(1))
            errors["dx"] = (_accumulate(dx.square()) + 2 * terms).sqrt().flip(1)
        return self.select(case, {name: unit * x for name, x in errors.items()}, draw)

    def draw(self, case: SumCase, *, seed: int, max_bytes: int) -> Draw:
        whole = [(b, h) for b in range(case.batch) for h in range(case.heads)]
        fits = max_bytes // (case.length * case.size * 8)
        return Draw() if fits >= len(whole) else Draw((whole[0], whole[-1]), "columns")

    def select(self, case: SumCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        if draw.parts is None:
            return dict(outputs)
        return {name: torch.stack([t[b, :, h] for b, h in draw.parts]) for name, t in outputs.items()}

    def signs(self, case: SumCase) -> Mapping[str, str]:
        return dict.fromkeys(("x", "out"), "x") | dict.fromkeys(("dout", "dx"), "dout")

    def suspects(
        self, variant: str, case: SumCase, inputs: SumInputs, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        yield (
            "a sum from the end",
            self.select(case, {"out": mean(inputs.x.float().flip(1), inputs.x, "fwd")["out"]}, draw),
        )


def result_type(case: SumCase) -> torch.dtype:
    return torch_dtype(DTYPES[case.dtype].results)


def _weight(x: Tensor) -> Tensor:
    return 1 / torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)[:, None, None]


def mean(x: Tensor, dout: Tensor, mode: str) -> dict[str, Tensor]:
    weight = _weight(x)
    # One element after another in the tensor's own precision, so that the plain evaluation has an error.
    out = {"out": _accumulate(x) * weight}
    if mode != "fwd":
        out["dx"] = _accumulate((dout * weight).flip(1)).flip(1)
    return out


def _accumulate(x: Tensor) -> Tensor:
    rows, total = [], torch.zeros_like(x[:, 0])
    for row in x.unbind(1):
        total = total + row
        rows.append(total)
    return torch.stack(rows, 1)


Compute = Callable[[SumInputs], dict[str, Tensor]]


class Session:
    """State of an honest launch; the misbehaving ones change one method."""

    def __init__(self, case: SumCase, inputs: SumInputs) -> None:
        self.case, self.inputs, self.calls = case, inputs, 0
        self.result: dict[str, Tensor] = {}

    def compute(self) -> dict[str, Tensor]:
        answer = mean(self.inputs.x.double(), self.inputs.dout.double(), self.case.mode)
        return {name: tensor.to(result_type(self.case)) for name, tensor in answer.items()}

    def forward(self) -> None:
        self.calls += 1
        self.result = self.compute()

    def backward(self) -> None:
        """Everything is computed by `forward`."""

    def reload(self, inputs: SumInputs) -> None:
        self.inputs = inputs

    def launch(self) -> Launch:
        return Launch(forward=self.forward, backward=self.backward, outputs=lambda: self.result, reload=self.reload)


class Altered(Session):
    """Changes the right answer in place."""

    alter: Callable[[dict[str, Tensor]], Any]

    def __init__(self, case: SumCase, inputs: SumInputs, alter: Callable[[dict[str, Tensor]], Any]) -> None:
        super().__init__(case, inputs)
        self.alter = alter

    def compute(self) -> dict[str, Tensor]:
        answer = super().compute()
        self.alter(answer)
        return answer


class Buffered(Session):
    """Writes into outputs allocated once, all but `skipped` elements."""

    skipped = 0
    noop_after = 10**9

    def forward(self) -> None:
        self.calls += 1
        if self.calls > self.noop_after:
            return
        for name, tensor in self.compute().items():
            if name not in self.result:
                self.result[name] = torch.zeros_like(tensor)
            flat = self.result[name].view(-1)
            flat[: flat.numel() - self.skipped] = tensor.reshape(-1)[: flat.numel() - self.skipped]


class Unwritten(Buffered):
    skipped = 20


class Cached(Session):
    def forward(self) -> None:
        self.result = self.result or self.compute()


class CachedCopy(Session):
    def forward(self) -> None:
        self.kept = getattr(self, "kept", None) or self.compute()
        self.result = {name: tensor.clone() for name, tensor in self.kept.items()}


class ChangesInput(Session):
    def forward(self) -> None:
        super().forward()
        self.inputs.dout.mul_(0.5)


class UndoesItsChange(Session):
    """Flips one bit, which hardly moves the answer; the next call puts it back."""

    def forward(self) -> None:
        super().forward()
        if self.calls > 1:
            bits(self.inputs.dout)[0, 0, 0, 0] ^= 1


class CopyingReload(Session):
    def reload(self, inputs: SumInputs) -> None:
        self.inputs.x.copy_(inputs.x)
        self.inputs.dout.copy_(inputs.dout)


class Forgetful(Session):
    """Wears out a copy of its own: right on the first call after a reload only."""

    def __init__(self, case: SumCase, inputs: SumInputs) -> None:
        super().__init__(case, inputs)
        self.reload(inputs)

    def reload(self, inputs: SumInputs) -> None:
        self.inputs = SumInputs(inputs.x.clone(), inputs.dout.clone())

    def forward(self) -> None:
        super().forward()
        self.inputs.x.mul_(1.25)


class ReadsLate(Session):
    """Views of the inputs, read when the outputs are asked for."""

    def forward(self) -> None:
        self.calls += 1

    def launch(self) -> Launch:
        return Launch(forward=self.forward, backward=self.backward, outputs=self.compute, reload=self.reload)


class Late(Buffered):
    """Leaves its work to a thread, which is done after the first look at the outputs and before the second."""

    def __init__(self, case: SumCase, inputs: SumInputs) -> None:
        super().__init__(case, inputs)
        super().forward()
        for tensor in self.result.values():
            tensor.zero_()

    def forward(self) -> None:
        due, work, self.looks = threading.Event(), super().forward, 0

        def wait_and_work() -> None:
            due.wait()
            work()

        self.due, self.thread = due, threading.Thread(target=wait_and_work, daemon=True)
        self.thread.start()

    def outputs(self) -> dict[str, Tensor]:
        self.looks += 1
        if self.looks == 2:
            self.due.set()
            self.thread.join()
        return self.result

    def launch(self) -> Launch:
        return Launch(forward=self.forward, backward=self.backward, outputs=self.outputs, reload=self.reload)


class SetsGlobals(Session):
    def forward(self) -> None:
        super().forward()
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.enable_flash_sdp(False)
        torch.set_num_threads(2)
        torch.rand(1)


class Raises(Session):
    def forward(self) -> None:
        torch.set_default_dtype(torch.float64)
        raise RuntimeError("no such kernel")
