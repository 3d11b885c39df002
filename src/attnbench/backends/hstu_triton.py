"""``hstu-triton``: our dense HSTU attention; dQ by fp32 atomics unless the configuration says ``deterministic``.

A configuration is the forward's (``f128x128w8s2-ws``), the backward's (``a64x128w8s2-ws``, ``deterministic-…``) or both
(``f…+a…``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Config, Launch, Machine
from attnbench.backends.buffers import Buffers
from attnbench.backends.hstu import OurTriton
from attnbench.errors import Unsupported, UsageError, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs

LARGEST_DIM = 256


class HstuTriton(OurTriton):
    """Buffers are there before; a call allocates nothing but a ticket's four bytes."""

    name = "hstu-triton"
    title = "HSTU, ours (Triton)"
    tested = "NVIDIA H200, torch 2.11"

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse what the kernels do not take.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        for name in ("attn_dim", "linear_dim"):
            if getattr(case, name) > LARGEST_DIM:
                raise Unsupported(refusal(self.name, name, getattr(case, name), "is not supported",
                                          f"at most {LARGEST_DIM}"))
        self._check_config(case, machine)

    def _check_config(self, case: HstuCase, machine: Machine) -> None:
        from attnbench.kernels.hstu.dense.configs import (
            ColumnConfig,
            ForwardConfig,
            hopper_columns_fault,
            hopper_fault,
        )

        values = {} if self.config is None else self.config.values
        shape: dict[str, Any] = {"capability": machine.capability, "item_bytes": 4 if case.dtype == "fp32" else 2,
                 "attn_dim": case.attn_dim, "linear_dim": case.linear_dim}
        forward, columns = values.get("forward", {}), values.get("atomic", {})
        faults = {}
        if "order" in forward and (rows := ForwardConfig(**forward)).hopper:
            faults[rows.order] = hopper_fault(rows, **shape)
        if "order" in columns and (keys := ColumnConfig(**columns, atomic=True)).hopper:
            faults[keys.order] = faults.get(keys.order) or hopper_columns_fault(keys, **shape)
        for order, fault in faults.items():
            if fault:
                raise Unsupported(refusal(self.name, "order", order, fault, "another order"))

    def configs(self, case: HstuCase) -> Iterable[Config]:
        """Cuts of the forward, or with a backward of its kernels; the short form spells what is changed."""
        cuts = _backward_cuts(_width(case)) if case.has_backward else _forward_cuts(_width(case))
        return [Config(short, values) for short, values in cuts.items()]

    def config_of(self, short: str, case: HstuCase) -> Config:
        """A cut of the forward, in a mode with a backward one of its kernels, or both joined by ``+``.

        Raises:
            UsageError: there is none such; the nearest, and the command that lists them all.
        """
        values: dict[str, Any] = {}
        parts = {part.startswith("f"): part for part in short.split("+")}
        if len(parts) < short.count("+") + 1:
            raise self._refusal(short, "joins more than one of each", "f…, a… or f…+a…")
        for forward, part in parts.items():
            if not forward and not case.has_backward and part[:1] in ("a", "d"):
                raise self._refusal(part, f"is of the backward, which mode={case.mode} has not", "f… of the forward")
            there = _forward_cuts(_width(case)) if forward or not case.has_backward else _backward_cuts(_width(case))
            if part not in there:
                near = get_close_matches(part, there, n=1, cutoff=0.0)[0]
                listed = f"attnbench list configs {self.name} --attn-dim {case.attn_dim} --linear-dim {case.linear_dim}"
                mode = f" --mode {case.mode}" * (not forward and case.has_backward)
                raise self._refusal(part, "is not known", f"one of the {len(there)} of `{listed}{mode}`",
                                    f"the nearest valid one is {near}")
            values |= there[part]
        return Config(short, values)

    def _refusal(self, short: str, wrong: str, accepted: str, todo: str = "") -> UsageError:
        return UsageError(refusal(self.name, "config", short, wrong, accepted, todo))

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Own copies of the inputs, results and workspace."""
        yield _Session(case, inputs, {} if self.config is None else self.config.values).launch()


def _width(case: HstuCase) -> int:
    dim = max(case.attn_dim, case.linear_dim)
    return next((width for width in _WHOLE if dim <= width), LARGEST_DIM)


def _space(kernel: str, cuts: Iterable[tuple[int, int, int, int]], **more: Any) -> dict[str, dict[str, Any]]:
    return {f"{kernel[0]}{rows}x{keys}w{warps}s{stages}" + "".join(f"-{_spell(*one)}" for one in more.items()):
            {kernel: {"block_m": rows, "block_n": keys, "warps": warps, "stages": stages, **more}}
            for rows, keys, warps, stages in cuts}


def _spell(name: str, value: Any) -> str:
    if name == "order":
        return str(value)
    return f"{name}{value:d}" if isinstance(value, bool) else f"{name}{value}"


def _said(cut: Any, without: tuple[str, ...] = ()) -> str:
    """A cut in the words of configurations: tiles, warps, stages, and whatever is not as where nothing is said."""
    changed = {field.name: getattr(cut, field.name) for field in fields(cut)
               if field.default is not MISSING and getattr(cut, field.name) != field.default
               and field.name not in without}
    words = [_spell(*one) for one in sorted(changed.items(), key=lambda one: one[0] != "order")]
    return "-".join([f"{cut.block_m}x{cut.block_n}w{cut.warps}s{cut.stages}", *words])


# Rows, keys, warps, stages: what fits sm_90 and compiles there, by the widest head it does so for.
_WHOLE = {64: ((64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3),
               (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3)),
          128: ((64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4),
                (128, 128, 8, 2)),
          256: ((64, 64, 4, 2), (128, 32, 8, 2), (128, 32, 8, 3), (128, 64, 8, 2))}
_ROWS = _WHOLE | {256: ((64, 64, 4, 2), (128, 32, 8, 2))}
_COLUMNS = {64: ((32, 64, 4, 2), (32, 64, 8, 2), (32, 128, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2), (64, 128, 8, 1),
                 (64, 128, 8, 2), (64, 128, 8, 3), (128, 64, 8, 2)),
            128: ((32, 64, 4, 2), (32, 64, 8, 2), (32, 128, 8, 2), (64, 64, 8, 1), (64, 64, 8, 2), (64, 128, 8, 1),
                  (64, 128, 8, 2), (64, 128, 8, 3)),
            256: ((32, 64, 8, 2), (32, 128, 8, 2), (64, 64, 8, 1), (64, 64, 8, 2))}
# Of the kernel for Hopper: what spills nothing in its loop, with room for one program an SM.
_HOPPER = {64: ((128, 64, 8, 3), (128, 64, 8, 6), (128, 128, 8, 2), (128, 128, 8, 3), (192, 64, 12, 3),
                (192, 64, 12, 4), (192, 64, 12, 6), (192, 64, 12, 8)),
           128: ((128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (192, 64, 12, 2), (192, 64, 12, 3)),
           256: ((128, 64, 8, 2),)}
_ATOMIC = _COLUMNS | {256: ((32, 64, 8, 1), (32, 64, 8, 2), (64, 64, 8, 1))}


def _forward_cuts(width: int) -> dict[str, dict[str, Any]]:
    main = ((128, 64, 8, 2 if width == 256 else 3),)
    return (_space("forward", _WHOLE[width], order="plain") | _space("forward", _WHOLE[width], order="ahead")
            | _space("forward", _HOPPER[width], order="ws")
            | (_space("forward", ((128, 32, 8, 2), (128, 32, 8, 3), (64, 32, 4, 3)), registers=128, order="plain")
               | _space("forward", main, masked_stages=2) | _space("forward", main, loads="pointer")
               if width < 256 else {})
            | _space("forward", main, section_mib=8.0) | _space("forward", main, section_mib=1000.0))


def _backward_cuts(width: int) -> dict[str, dict[str, Any]]:
    deterministic = _space("columns", _COLUMNS[width]) | _space("rows", _ROWS[width])
    # Tiles and warps of the Hopper kernel are given; what is left is how many tiles are in flight.
    hopper = [(64, 64 if width == 256 else 128, 8, stages)
              for stages in {64: (2, 3, 4), 128: (2, 3), 256: (2,)}[width]]
    return ({"deterministic": {"deterministic": True}} | _space("atomic", _ATOMIC[width])
            | _space("atomic", hopper, order="ws")
            | {f"deterministic-{short}": {"deterministic": True, **change} for short, change in deterministic.items()})


class _Session(Buffers):
    """Buffers of one session."""

    def __init__(self, case: HstuCase, inputs: HstuInputs, changes: Mapping[str, Any]) -> None:
        import torch

        from attnbench.kernels.hstu.dense import api as kernels

        super().__init__(inputs)
        self.case = case
        own = self.own
        self.problem = kernels.Problem(
            offsets=own["seq_offsets"], offsets_q=own["seq_offsets_q"] if case.delta_q is not None else None,
            num_targets=own.get("num_targets"), max_seqlen=inputs.max_seqlen, max_seqlen_q=inputs.max_seqlen_q,
            alpha=case.alpha, scaling_seqlen=case.scaling_seqlen, causal=case.causal,
            contextual_len=case.contextual_len, max_attn_len=case.max_attn_len)
        qkv = own["q"], own["k"], own["v"]
        kernels.check_tensors(*qkv, self.problem)
        kernels.check_values(*qkv, self.problem)
        self.forward_config, self.backward_config = kernels.configs_of(*qkv, inputs.max_seqlen, changes,
                                                                           alpha=case.alpha)
        self.out = torch.empty(*own["q"].shape[:2], own["v"].shape[2], dtype=own["q"].dtype, device=own["q"].device)
        self.grads: dict[str, Tensor] = {}
        self.workspace: Tensor | None = None
        if case.has_backward:
            self.grads = {f"d{name}": torch.empty_like(own[name]) for name in ("q", "k", "v")}
            shape = kernels.workspace_shape(own["q"], self.backward_config)
            self.workspace = None if shape is None else torch.empty(shape, dtype=torch.float32, device=self.out.device)

    def launch(self) -> Launch:
        trains = self.case.has_backward
        cuts = self.backward_config.columns, self.backward_config.rows
        backward = " and ".join(_said(cut, ("atomic",)) for cut in cuts if cut is not None)
        notes = [f"forward {_said(self.forward_config)}"] * (self.case.mode != "bwd") + [
            f"backward {backward}",
            "backward deterministic" if self.backward_config.deterministic
            else "backward adds up dQ by fp32 atomics, in another order each time"] * trains
        return Launch(forward=self.forward, backward=self.backward if trains else None, outputs=self.outputs,
                      reload=self.load, executed_flops=self._executed(), notes=tuple(notes))

    def _executed(self) -> int | None:
        """With the products a deterministic backward does twice; tiles that are partly seen count as seen."""
        from attnbench.workloads.hstu.work import visible_pairs, work

        case = self.case
        if not (case.has_backward and self.backward_config.deterministic):
            return None
        return work(case).flops + 2 * (case.attn_dim + case.linear_dim) * case.nheads * visible_pairs(case)

    def run_forward(self) -> None:
        from attnbench.kernels.hstu.dense.forward import launch_forward

        own = self.own
        launch_forward(own["q"], own["k"], own["v"], self.out, self.problem, self.forward_config)

    def run_backward(self) -> None:
        from attnbench.kernels.hstu.dense.backward import launch_backward

        own = self.own
        dq, dk, dv = self.grads.values()
        launch_backward(own["q"], own["k"], own["v"], own["dout"], dq, dk, dv, self.problem, self.backward_config,
                        self.workspace)

    def results(self) -> Mapping[str, Tensor]:
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        return self.grads
