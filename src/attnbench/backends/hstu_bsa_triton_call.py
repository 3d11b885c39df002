"""A session of ``hstu-bsa-triton``: buffers that are there before, and the calls of our kernels on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.buffers import Buffers
from attnbench.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.bsa.plan import BsaConfig
    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs


def _said(config: BsaConfig) -> str:
    """Which kernels run, as a launch notes it."""
    attend = "for Hopper" if config.attend else f"schedule {config.schedule}"
    return f"select {'for Hopper' if config.select else 'portable'}, attend {attend}"


class BsaSession(Buffers):
    """Own copies of the inputs, results and workspace of one session; nothing is allocated in a call."""

    def __init__(self, case: HstuCase, inputs: HstuInputs, changes: Mapping[str, Any], who: str) -> None:
        import torch

        from attnbench.kernels.hstu.bsa import api as kernels

        super().__init__(inputs)
        self.case = case
        own, cached = self.own, case.delta_q is not None
        tensors = kernels.BsaTensors(
            q=own["q"],
            k=own["k"],
            v=own["v"],
            gates=own.get("gates"),
            offsets=own["seq_offsets"],
            offsets_q=own["seq_offsets_q"] if cached else None,
            num_targets=own.get("num_targets"),
        )
        numbers: dict[str, Any] = {
            "max_seqlen": inputs.max_seqlen,
            "max_seqlen_q": inputs.max_seqlen_q,
            "alpha": case.alpha,
            "scaling_seqlen": case.scaling_seqlen,
            "block_size": case.block_size,
            "local_window": case.local_window,
            "selection": case.selection,
        }
        # Sequences may all be shorter than the case allows; the slots behind their blocks stay empty.
        kernels.check(
            tensors,
            **numbers | {"max_seqlen": max(case.seqlen, inputs.max_seqlen)},
            block_counts=case.block_counts,
            validate=True,
        )
        problem = kernels.problem_of(tensors, **numbers, block_counts=case.block_counts, pairs=case.pairs)
        config = kernels.changed_config(
            kernels.default_config(problem, tensors.capability, rows=tensors.rows), problem, changes
        )
        if fault := kernels.config_fault(problem, config, capability=tensors.capability):
            raise Unsupported(f"{who}: {fault}; another configuration")
        device, rows = tensors.q.device, (problem.queries, problem.list_heads, problem.block_counts)
        out = torch.empty(problem.queries, problem.heads, problem.linear_dim, dtype=problem.dtype, device=device)
        self.call = tensors.call(
            problem,
            config,
            out,
            torch.empty(rows, dtype=torch.int32, device=device),
            kernels.forward_workspace(problem, config, device),
        )
        self.call_back = None
        if case.has_backward:
            shapes = kernels.backward_shapes(problem, config)
            self.call_back = kernels.BsaGradients(
                call=self.call,
                dout=own["dout"],
                workspace=kernels.allocate(shapes, device),
                **{f"d{name}": torch.empty_like(own[name]) for name in ("q", "k", "v")},
                dgates=torch.empty_like(own["gates"]) if "gates" in own else None,
            )

    def launch(self) -> Launch:
        """What the session hands over."""
        from attnbench.workloads.hstu.work import sparse_work

        return Launch(
            forward=self.forward,
            backward=self.backward if self.call_back else None,
            outputs=self.outputs,
            reload=self.load,
            phases=self.phases(),
            executed_flops=sparse_work(self.case).flops,
            notes=(_said(self.call.config), "deterministic"),
        )

    def run_forward(self) -> None:
        """Launch the forward."""
        from attnbench.kernels.hstu.bsa.forward import forward

        forward(self.call)

    def run_backward(self) -> None:
        """Launch the backward."""
        from attnbench.kernels.hstu.bsa.backward import backward

        assert self.call_back is not None  # only a case with a backward has the call
        backward(self.call_back)

    def phases(self) -> dict[str, Callable[[], None]]:
        """Parts of the forward, on what its last call left; `attend` adds to the output once more."""
        from functools import partial

        from attnbench.kernels.hstu.bsa import forward as parts

        return {name: partial(getattr(parts, name), self.call) for name in ("pool", "select", "lists", "attend")}

    def results(self) -> Mapping[str, Tensor]:
        """What the forward writes."""
        return {"out": self.call.out, "blocks": self.call.blocks}

    def gradients(self) -> Mapping[str, Tensor]:
        """What the backward writes."""
        found = {name: getattr(self.call_back, name) for name in ("dq", "dk", "dv", "dgates")}
        return {name: x for name, x in found.items() if x is not None}
