"""``hstu-bsa-triton``: our block-sparse HSTU attention; pooling, ranking and lists are part of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Config, Launch, Machine
from attnbench.backends.buffers import Buffers
from attnbench.backends.hstu import OurTriton
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.bsa.plan import BsaConfig
    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs

BLOCK_SIZES = (16, 32, 64, 128)
MOST_BLOCKS = 16
LARGEST_DIM = 256


class HstuBsaTriton(OurTriton):
    """Five kernels forward, three backward, all with buffers that are there before."""

    name = "hstu-bsa-triton"
    title = "HSTU block-sparse, ours (Triton)"
    tested = "NVIDIA H200, torch 2.11"
    variant = "hstu-bsa"

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse what the kernels do not take.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        for name, fits, accepted in (
            ("block_size", case.block_size in BLOCK_SIZES, f"one of {', '.join(map(str, BLOCK_SIZES))}"),
            ("block_counts", case.block_counts <= MOST_BLOCKS, f"at most {MOST_BLOCKS}"),
            ("attn_dim", case.attn_dim <= LARGEST_DIM, f"at most {LARGEST_DIM}"),
            ("linear_dim", case.linear_dim <= LARGEST_DIM, f"at most {LARGEST_DIM}"),
        ):
            if not fits:
                raise Unsupported(refusal(self.name, name, getattr(case, name), "is not supported", accepted))

    def configs(self, case: HstuCase) -> Iterable[Config]:
        """Cuts of the two kernels that take most of the time: for Hopper (`ws`), and portable ones."""
        yield Config("portable", _PORTABLE)
        yield Config("ws", {"select": {}, "attend": {}})
        for groups, rows, blocks, stages, beside in _HOPPER_SELECT[max(case.attn_dim, case.linear_dim) <= 64]:
            yield Config(f"s{groups * rows}x{blocks}w{4 * groups}s{stages}-ws" + "-first" * (not beside),
                         {"select": {"groups": groups, "rows": rows, "blocks": blocks, "stages": stages,
                                     "beside": beside}})
        for word, name, value in _HOPPER_ATTEND:
            yield Config(f"{word}{value:g}-ws", {"attend": {name: value}})
        yield Config("keep-ws", {"attend": {"keep": True}})
        yield Config("passes", {"attend": None, "schedule": "passes"})
        for rows, blocks, warps, registers in _SELECT:
            yield Config(f"s{rows}x{blocks}w{warps}" + f"r{registers}" * bool(registers),
                         {"select": None, "select_rows": rows, "select_blocks": blocks, "select_warps": warps,
                          "select_registers": registers})
        for rows, each, warps, registers in _ATTEND + _NARROW * (max(case.attn_dim, case.linear_dim) <= 64):
            yield Config(f"a{rows}x{each}w{warps}" + f"r{registers}" * bool(registers),
                         {"attend": None, "attend_rows": rows, "tiles_each": each, "attend_warps": warps,
                          "attend_registers": registers})
        for ahead in (384, 1536):
            yield Config(f"ahead{ahead}", {"attend": None, "programs_ahead": ahead})
        for spare in (0, 3):
            yield Config(f"spare{spare}", {"attend": None, "spare_pairs": spare})

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Own copies of the inputs, results and workspace; nothing is allocated in a call."""
        yield _Session(case, inputs, {} if self.config is None else self.config.values).launch()


_PORTABLE = {"select": None, "attend": None}
# Rows, blocks or tiles of a program, warps, most registers: those that spill nothing up to 128 dims, bf16, sm_90.
_SELECT = ((64, 16, 4, None), (64, 16, 4, 128), (64, 32, 4, None), (64, 64, 4, None), (128, 32, 8, None))
_ATTEND = ((64, 1, 4, 128), (64, 2, 4, 128), (64, 4, 4, 128), (64, 8, 4, 128), (64, 4, 4, None), (128, 2, 8, None),
           (128, 4, 8, None))
_NARROW = ((64, 4, 4, 96), (64, 4, 4, 80), (128, 2, 8, 80))
"""More programs on an SM; over 64 dims they spill, or their products do not fit the registers at all."""


# Warpgroups, rows of each, means of a tile, stages, ranking beside products; over 64 dims, and up to them.
_HOPPER_SELECT = (((3, 64, 64, 4, True), (3, 64, 64, 4, False), (3, 64, 32, 8, True), (2, 64, 64, 5, True),
                   (2, 64, 64, 5, False), (2, 128, 32, 5, True)),
                  ((3, 128, 32, 8, True), (3, 128, 32, 8, False), (3, 64, 32, 16, True), (3, 64, 64, 8, False),
                   (2, 128, 32, 16, True), (2, 64, 64, 8, False)))
_HOPPER_ATTEND = (("stages", "stages", 2), ("ring", "ring_mib", 12.0), ("ring", "ring_mib", 32.0),
                  ("step", "step_mib", 3.0), ("step", "step_mib", 12.0), ("rows", "job_rows", 16), ("jobs", "jobs", 8))


def _said(config: BsaConfig) -> str:
    """Which kernels run, as a launch notes it."""
    attend = "for Hopper" if config.attend else f"schedule {config.schedule}"
    return f"select {'for Hopper' if config.select else 'portable'}, attend {attend}"


class _Session(Buffers):
    """Buffers of one session."""

    def __init__(self, case: HstuCase, inputs: HstuInputs, changes: Mapping[str, Any]) -> None:
        import torch

        from attnbench.kernels.hstu.bsa import api as kernels

        super().__init__(inputs)
        self.case = case
        own, cached = self.own, case.delta_q is not None
        tensors = kernels.BsaTensors(
            q=own["q"], k=own["k"], v=own["v"], gates=own.get("gates"), offsets=own["seq_offsets"],
            offsets_q=own["seq_offsets_q"] if cached else None, num_targets=own.get("num_targets"))
        numbers: dict[str, Any] = {
            "max_seqlen": inputs.max_seqlen, "max_seqlen_q": inputs.max_seqlen_q, "alpha": case.alpha,
            "scaling_seqlen": case.scaling_seqlen, "block_size": case.block_size, "local_window": case.local_window,
            "selection": case.selection}
        # Sequences may all be shorter than the case allows; the slots behind their blocks stay empty.
        kernels.check(tensors, **numbers | {"max_seqlen": max(case.seqlen, inputs.max_seqlen)},
                      block_counts=case.block_counts, validate=True)
        problem = kernels.problem_of(tensors, **numbers, block_counts=case.block_counts, pairs=case.pairs)
        config = kernels.changed_config(kernels.default_config(problem, tensors.capability, rows=tensors.rows),
                                        problem, changes)
        if fault := kernels.cut_fault(problem, config, capability=tensors.capability):
            raise Unsupported(f"{HstuBsaTriton.name}: {fault}; another configuration")
        device, rows = tensors.q.device, (problem.queries, problem.list_heads, problem.block_counts)
        out = torch.empty(problem.queries, problem.heads, problem.linear_dim, dtype=problem.dtype, device=device)
        self.call = tensors.call(problem, config, out, torch.empty(rows, dtype=torch.int32, device=device),
                                 kernels.forward_workspace(problem, config, device))
        self.call_back = None
        if case.has_backward:
            shapes = kernels.backward_shapes(problem, config)
            self.call_back = kernels.BsaGradients(
                call=self.call, dout=own["dout"], workspace=kernels.allocate(shapes, device),
                **{f"d{name}": torch.empty_like(own[name]) for name in ("q", "k", "v")},
                dgates=torch.empty_like(own["gates"]) if "gates" in own else None)

    def launch(self) -> Launch:
        from attnbench.workloads.hstu.work import sparse_work

        return Launch(forward=self.forward, backward=self.backward if self.call_back else None, outputs=self.outputs,
                      reload=self.load, phases=self.phases(), executed_flops=sparse_work(self.case).flops,
                      notes=(_said(self.call.config), "deterministic"))

    def run_forward(self) -> None:
        from attnbench.kernels.hstu.bsa.forward import forward

        forward(self.call)

    def run_backward(self) -> None:
        from attnbench.kernels.hstu.bsa.backward import backward

        assert self.call_back is not None  # only a case with a backward has the call
        backward(self.call_back)

    def phases(self) -> dict[str, Callable[[], None]]:
        """Parts of the forward, on what its last call left; `attend` adds to the output once more."""
        from functools import partial

        from attnbench.kernels.hstu.bsa import forward as parts

        return {name: partial(getattr(parts, name), self.call) for name in ("pool", "select", "lists", "attend")}

    def results(self) -> Mapping[str, Tensor]:
        return {"out": self.call.out, "blocks": self.call.blocks}

    def gradients(self) -> Mapping[str, Tensor]:
        found = {name: getattr(self.call_back, name) for name in ("dq", "dk", "dv", "dgates")}
        return {name: x for name, x in found.items() if x is not None}
