"""``flash-triton``: our FlashAttention.

A configuration is the forward's (``m128n128w8s2-tma-pp``, or every field of it by name), the backward's
(``b64x128w8s2-atomic``) or both (``m…+b…``).  The default backward adds dQ up by fp32 atomics; one with an ``r…`` cut
is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Config, Launch, Machine, module_exists
from attnbench.backends.buffers import Buffers
from attnbench.backends.dense import DenseBackend, Limits
from attnbench.errors import Unavailable, Unsupported, UsageError, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.config.forward import ForwardConfig
    from attnbench.kernels.flash.config.space import Shape
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs

HOPPER = (9, 0)
"Whose space is shown where no card is known."
_BACKWARD = re.compile(r"b\d")
"How a backward's word begins; a full form of the forward begins with block_m."


class FlashTriton(DenseBackend):
    """Buffers are there before; nothing is allocated in a call."""

    name = "flash-triton"
    title = "FlashAttention, ours (Triton)"
    install = "part of torch"
    tested = "NVIDIA H200, torch 2.11"
    distribution = "triton"
    compiles = True
    limits = Limits(max_headdim=256, headdim_v=True, gqa=True, window=True, bottom_right=True, empty_rows=True,
                    varlen=True, backward=True, capability=(8, 0))

    def probe(self) -> None:
        """Ask for Triton, which torch for a GPU brings.

        Raises:
            Unavailable: it is not installed.
        """
        if not module_exists("triton"):
            raise Unavailable(f"{self.name}: module=triton is not installed; {self.install} for a GPU")

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse what the kernels do not take, and a configuration this card cannot run.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if self.config is not None and machine.capability is not None:
            try:
                self._read(self.config.short, case, machine.capability)
            except UsageError as why:
                raise Unsupported(str(why)) from None

    def configs(self, case: AttentionCase) -> Iterable[Config]:
        """The forward's space, in a mode with a backward the backward's, for an H100 or H200."""
        from attnbench.kernels.flash.config.backward import backward_space
        from attnbench.kernels.flash.config.space import space

        if not case.has_backward:
            return [Config(config.short, config.values) for config in space(_shape(case, HOPPER))]
        dims = (HOPPER, _item_bytes(case), case.headdim, case.headdim_v)
        spaces = [*backward_space(*dims), *backward_space(*dims, deterministic=True)]
        return [Config(config.short, {"deterministic": config.deterministic}) for config in spaces]

    def config_of(self, short: str, case: AttentionCase) -> Config:
        """Any valid configuration, in `configs` or not.

        Raises:
            UsageError: it cannot be read or is not valid; what is wrong, and the nearest valid one.
        """
        return self._read(short, case, HOPPER)

    def _read(self, short: str, case: AttentionCase, capability: tuple[int, int]) -> Config:
        from attnbench.kernels.flash.config.forward import parse
        from attnbench.kernels.flash.config.space import fault, nearest

        values: dict[str, Any] = {}
        forward, backward = split(short)
        if forward is not None and ("+" in forward or _BACKWARD.match(forward)):
            raise self._refusal(short, "joins more than one of each; m…, b… or m…+b…", "")
        if forward is not None:
            shape = _shape(case, capability)
            try:
                config = parse(forward)
                # Of a precision that is refused anyway there is no more to say.
                found = fault(config, shape) if case.dtype in self.limits.dtypes else None
            except ValueError as why:
                raise self._refusal(forward, str(why), nearest(forward, shape)) from None
            if found is not None:
                raise self._refusal(forward, f"is not valid, {found[0]}: it {found[1]}", nearest(forward, shape))
            values |= config.values
        if backward is not None:
            values |= self._read_backward(backward, case, capability)
        return Config(short, values)

    def _read_backward(self, short: str, case: AttentionCase, capability: tuple[int, int]) -> dict[str, Any]:
        from attnbench.kernels.flash.config.backward import nearest_backward, parse_backward, why_not

        shape = (capability, _item_bytes(case), case.headdim, case.headdim_v)
        if not case.has_backward:
            raise self._refusal(short, f"is of the backward, which mode={case.mode} has not; m… of the forward", "")
        try:
            config = parse_backward(short)
        except ValueError as why:
            raise self._refusal(short, f"is not known; {why}", nearest_backward(short, *shape)) from None
        wrong = why_not(config, *shape)
        if wrong is not None:
            raise self._refusal(short, f"is not valid, {wrong}", nearest_backward(short, *shape))
        return {"deterministic": config.deterministic}

    def _refusal(self, short: str, wrong: str, near: str) -> UsageError:
        said, _, accepted = wrong.partition("; ")
        todo = f"the nearest valid one is {near}" if near else ""
        return UsageError(refusal(self.name, "config", short, said, accepted or "less of it", todo))

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Own copies of the inputs, results and workspace."""
        yield _Session(case, inputs, "" if self.config is None else self.config.short).launch()


def split(text: str) -> tuple[str | None, str | None]:
    """Forward and backward of a configuration: ``m…``, ``b…``, or both joined; a full form is the forward's."""
    parts = text.split("+")
    backward = next((part for part in parts if _BACKWARD.match(part)), None)
    forward = "+".join(part for part in parts if part is not backward)
    return forward or None, backward


def _item_bytes(case: AttentionCase) -> int:
    return 4 if case.dtype == "fp32" else 2


def _shape(case: AttentionCase, capability: tuple[int, int]) -> Shape:
    from attnbench.kernels.flash.config.space import Shape

    return Shape(dim=case.headdim, dim_v=case.headdim_v, item_bytes=_item_bytes(case), seqlen_q=case.seqlen,
                 seqlen_k=case.seqlen_k, packed=case.packed, capability=capability)


class _Session(Buffers):
    """Buffers of one session."""

    def __init__(self, case: AttentionCase, inputs: AttentionInputs, short: str) -> None:
        import torch

        from attnbench.kernels.flash import api as kernels
        from attnbench.kernels.flash.config.backward import parse_backward
        from attnbench.kernels.flash.config.forward import parse

        super().__init__(inputs)
        self.case = case
        q, k, v = self.own["q"], self.own["k"], self.own["v"]
        packed = {name: self.own[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if case.packed}
        packed |= {name: getattr(inputs, name) for name in ("max_seqlen_q", "max_seqlen_k") if case.packed}
        self.problem = kernels.problem_of(q, k, v, causal=case.causal, window=case.window, scale=case.scale, **packed)
        kernels.check_values(self.problem, q, k)
        forward, backward = split(short)
        self.config: ForwardConfig = parse(forward) if forward else kernels.default_forward(q, k, v, self.problem)
        self.backward_config = parse_backward(backward) if backward else kernels.default_backward(
            q, k, v, self.problem)
        self.out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        self.lse = torch.empty(kernels.lse_shape(q, self.problem), dtype=torch.float32, device=q.device)
        self.grads: dict[str, Tensor] = {}
        if case.has_backward:
            self.grads = {f"d{name}": torch.empty_like(self.own[name]) for name in ("q", "k", "v")}
            self.workspace = kernels.workspace_of(q, self.problem, self.backward_config)

    def launch(self) -> Launch:
        trains = self.case.has_backward
        sums = "" if self.backward_config.deterministic else ", dQ added up by atomics in another order each time"
        notes = [f"forward {self.config.short}"] + [f"backward {self.backward_config.short}{sums}"] * trains
        return Launch(forward=self.forward, backward=self.backward if trains else None, outputs=self.outputs,
                      reload=self.load, notes=tuple(notes[self.case.mode == "bwd":]))

    def run_forward(self) -> None:
        from attnbench.kernels.flash.forward import launch_forward

        own = self.own
        launch_forward(own["q"], own["k"], own["v"], self.out, self.lse, self.problem, self.config)

    def run_backward(self) -> None:
        from attnbench.kernels.flash.backward import launch_backward

        own, (dq, dk, dv) = self.own, self.grads.values()
        launch_backward(own["q"], own["k"], own["v"], self.out, own["dout"], self.lse, dq, dk, dv, self.problem,
                        self.backward_config, self.workspace)

    def results(self) -> Mapping[str, Tensor]:
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        return self.grads
