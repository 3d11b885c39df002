"""A session of ``hstu-bsa-triton``: the public calls of our kernels, on own copies of the inputs.

So the host time of a row is that of a user's call.  The backward is called without autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.buffers import Buffers
from attnbench.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.bsa.call import BsaCall
    from attnbench.kernels.hstu.bsa.plan import BsaConfig
    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs


def _note(config: BsaConfig) -> str:
    """Return a note on which kernels run."""
    attend = "for Hopper" if config.attend else f"schedule {config.schedule}"
    return f"select {'for Hopper' if config.select else 'portable'}, attend {attend}"


class BsaSession(Buffers):
    """Own copies of the inputs of one session; a call allocates its buffers, as a user's call does."""

    def __init__(self, case: HstuCase, inputs: HstuInputs, changes: Mapping[str, Any], who: str) -> None:
        from attnbench.kernels.hstu.bsa import api as kernels

        super().__init__(inputs)
        self.case = case
        own, cached = self.own, case.delta_q is not None
        self.given = kernels.BsaTensors(
            q=own["q"],
            k=own["k"],
            v=own["v"],
            gates=own.get("gates"),
            offsets=own["seq_offsets"],
            offsets_q=own["seq_offsets_q"] if cached else None,
            num_targets=own.get("num_targets"),
        )
        # All sequences may be shorter than the case allows; the slots after their blocks stay empty.
        room = min(case.seqlen, case.block_counts * case.block_size)
        self.numbers = kernels.Numbers(
            max_seqlen=max(inputs.max_seqlen, room),
            block_size=case.block_size,
            block_counts=case.block_counts,
            local_window=case.local_window,
            selection=case.selection,
            pairs=case.pairs,
            max_seqlen_q=inputs.max_seqlen_q,
            alpha=case.alpha,
            scaling_seqlen=case.scaling_seqlen,
        )
        self.problem = kernels.checked(self.given, self.numbers)
        config = kernels.changed_config(
            kernels.default_config(self.problem, self.given.capability, rows=self.given.rows), self.problem, changes
        )
        if fault := kernels.config_fault(self.problem, config, capability=self.given.capability):
            raise Unsupported(f"{who}: {fault}; another configuration")
        # A user's call names no configuration, and neither does the row of the default.
        self.config = config if changes else None
        self.call = kernels.call_of(self.given, self.numbers, self.config, validate=True)
        self.found: tuple[Tensor, ...] = ()
        "out, blocks and, in a mode with a backward, further results of the forward that it needs"
        self.grads: dict[str, Tensor | None] = {}

    def launch(self) -> Launch:
        """Return the session's launch."""
        from attnbench.workloads.hstu.work import sparse_work

        return Launch(
            forward=self.forward,
            backward=self.backward if self.case.has_backward else None,
            outputs=self.outputs,
            reload=self.load,
            phases=self.phases(),
            executed_flops=sparse_work(self.case).flops,
            notes=(_note(self.call.config), "deterministic"),
        )

    def run_forward(self) -> None:
        """Call the forward; the last results are freed first, so that peak memory is the call's own."""
        from attnbench.kernels.hstu.bsa.api import hstu_bsa_attention

        self.found = ()
        if self.case.has_backward:
            self.found = tuple(x for x in self.call.forward(*self.given) if x is not None)
            return
        tensors, numbers = self.given._asdict(), self.numbers._asdict()
        self.found = hstu_bsa_attention(**tensors, **numbers, config=self.config)

    def run_backward(self) -> None:
        """Call the backward with the results of the last forward."""
        self.grads = {}
        _, blocks, *saved = self.found
        found = self.call.gradients(self.own["dout"], blocks, *self.given, *saved)
        self.grads = dict(zip(("dq", "dk", "dv", "dgates"), found, strict=True))

    def phases(self) -> dict[str, Callable[[], None]]:
        """Return the parts of the forward, on results of its last call; `attend` adds to the output again."""
        from attnbench.kernels.hstu.bsa import forward as parts

        def run(name: str) -> None:
            getattr(parts, name)(self.parts)

        return {name: partial(run, name) for name in ("pool", "select", "lists", "attend")}

    @cached_property
    def parts(self) -> BsaCall:
        """Return a forward with buffers of its own, for the phases, called once."""
        import torch

        from attnbench.kernels.hstu.bsa import api as kernels

        p, config, device = self.problem, self.call.config, self.given.q.device
        call = self.given.call(
            p,
            config,
            torch.empty(p.queries, p.heads, p.linear_dim, dtype=p.dtype, device=device),
            torch.empty(p.queries, p.list_heads, p.block_counts, dtype=torch.int32, device=device),
            kernels.forward_workspace(p, config, device),
        )
        kernels.forward(call)
        return call

    def results(self) -> Mapping[str, Tensor]:
        """Results of the last forward."""
        out, blocks, *_ = self.found
        return {"out": out, "blocks": blocks}

    def gradients(self) -> Mapping[str, Tensor]:
        """Gradients of the last backward."""
        return {name: x for name, x in self.grads.items() if x is not None}
