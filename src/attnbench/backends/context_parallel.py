"""Base classes of the adapters for context-parallel attention: a team of rank processes for each session.

The communication schemes are in `parallel/forms`; an adapter names one and its limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import Backend, Check, InPlace, Launch, Machine, module_exists, require
from attnbench.backends.our_triton import require_triton
from attnbench.errors import AttnbenchError, Unavailable, refusal
from attnbench.workloads.attention_cp.case import FUNCTIONS, CpCase

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.parallel.problem import Problem
    from attnbench.parallel.team import Session
    from attnbench.workloads.attention.inputs import AttentionInputs
    from attnbench.workloads.hstu.inputs import HstuInputs

WHOLE_ROUNDS = 9
"Rounds over a call and its phases, to measure how much of the communication was overlapped."


class ContextParallel(Backend[CpCase, "AttentionInputs | HstuInputs"]):
    """An adapter for the workload `attention-cp`; subclasses name a form (communication scheme)."""

    workload = "attention-cp"
    variant = "softmax"
    install = "part of torch"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    compiles = in_ranks = True
    form: ClassVar[str]
    functions: ClassVar[tuple[str, ...]] = FUNCTIONS
    dtypes: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "fp32")
    divides_heads: ClassVar[bool] = False
    "the ranks split the heads"
    one_sequence: ClassVar[bool] = False
    "all sequences must be equally long, and divisible by 2 W"
    one_head_group: ClassVar[bool] = False
    "GQA is not supported"
    keeps_ranks: ClassVar[bool] = True
    "its processes can be reused by the next session"
    ours: ClassVar[bool] = True
    "uses our kernels on a GPU"

    def probe(self) -> None:
        """Check that Triton, or the library, is installed.

        Raises:
            Unavailable: it is not installed.
        """
        super().probe()
        if self.ours:
            require_triton(self)

    def variant_of(self, case: CpCase) -> str:
        """Return the function of the case."""
        return case.function

    def ranks(self, case: CpCase) -> int:
        """Return the number of processes of a session."""
        return case.world

    def check(self, case: CpCase, machine: Machine) -> None:
        """Refuse cases that the form does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
            Unavailable: torch was built without the communication library.
        """
        import torch.distributed as dist

        checks: list[Check] = [
            (case.function in self.functions, "function", case.function, "is not computed", ", ".join(self.functions)),
            (case.dtype in self.dtypes, "dtype", case.dtype, "is not supported", ", ".join(self.dtypes)),
        ]
        if self.divides_heads:
            for name in ("nheads", "nheads_kv"):
                heads = getattr(case, name)
                accepted = f"a multiple of world={case.world}"
                checks.append((heads % case.world == 0, name, heads, "is not shared evenly by the ranks", accepted))
        if self.one_sequence:
            checks.append((case.lengths == "full", "lengths", case.lengths, "is not supported", "full"))
            accepted = f"a multiple of {2 * case.world} (2 × world)"
            checks.append((case.seqlen % (2 * case.world) == 0, "seqlen", case.seqlen, "is not cut evenly", accepted))
        if self.one_head_group:
            accepted = f"nheads={case.nheads}"
            checks.append((case.nheads_kv == case.nheads, "nheads_kv", case.nheads_kv, "is not supported", accepted))
        require(self.name, *checks)
        super().check(case, machine)
        there = dist.is_available() and (
            dist.is_nccl_available() if machine.device == "cuda" else dist.is_gloo_available()
        )
        if not there:
            name = "NCCL" if machine.device == "cuda" else "gloo"
            raise Unavailable(refusal(self.name, "torch", name, "is not part of this build", f"a build with {name}"))

    def prestart(self, case: CpCase, device: device) -> None:
        """Start the team's processes: all teams of a group then start at the same time."""
        from attnbench.parallel.team import devices_from, start_team

        start_team(self.name, devices_from(device, self.ranks(case), self.name))

    @contextmanager
    def session(self, case: CpCase, inputs: AttentionInputs | HstuInputs) -> Iterator[Launch]:
        """Take a team of processes, each with its rows, and yield its launch."""
        from attnbench.parallel.team import Session, devices_from, return_team, take_team

        team = take_team(self.name, devices_from(inputs.q.device, self.ranks(case), self.name))
        try:
            with closing(Session(team, self.form, problem_of(case))) as session:
                yield CpLaunch(self.name, case, session, inputs).launch()
        except BaseException:
            team.end()
            raise
        if self.keeps_ranks:
            return_team(team)
        else:
            team.end()


class OverFlashAttention(ContextParallel):
    """An adapter of a third-party library on top of FlashAttention 2."""

    ours, compiles = False, False
    devices = ("cuda",)
    functions, dtypes = ("softmax",), ("fp16", "bf16")
    one_sequence = True

    def probe(self) -> None:
        """Check that the library and FlashAttention 2 are installed.

        Raises:
            Unavailable: one of them is not installed.
        """
        super().probe()
        if not module_exists("flash_attn"):
            raise Unavailable(f"{self.name}: module=flash_attn is not installed; {self.install}")


class CpLaunch:
    """The launch of a team's session: one call of all ranks, whose time is that of the slowest rank."""

    def __init__(self, who: str, case: CpCase, session: Session, inputs: AttentionInputs | HstuInputs) -> None:
        self.who, self.case, self.session = who, case, session
        self.shape, self.device = inputs.q.shape, inputs.q.device
        self.peak_tflops = session.team.peak_tflops(case.dtype)
        self.load(inputs)

    def launch(self) -> Launch:
        """Return the session's launch."""
        ranks = len(self.session.team.devices)
        phases = {name: InPlace(partial(self.call, name), self.last_ms) for name in self.session.phases}
        return Launch(
            forward=self.call,
            outputs=self.outputs,
            reload=self.load,
            reported_ms=self.reported_ms,
            phases=phases if ranks > 1 else {},
            whole=self.overlap if "exchange" in phases and ranks > 1 else None,
            counters={"ranks": ranks, "sent_mb": self.session.sent_bytes / 1e6},
            devices=ranks,
            capturable=False,
            notes=(f"time of the slowest of {ranks} ranks from a barrier on", *self.session.notes),
        )

    def load(self, inputs: AttentionInputs | HstuInputs) -> None:
        """Send the ranks their rows of new values."""
        self.session.load({name: _packed(getattr(inputs, name)) for name in ("q", "k", "v")})

    def call(self, phase: str | None = None) -> None:
        """Make one call, or run one phase, on all ranks, after this process's own work on the device is done."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)
        self.session.run(phase)

    def outputs(self) -> Mapping[str, Tensor]:
        """Return the rows of all ranks, assembled."""
        return {"out": self.session.out().to(self.device, copy=True).view(self.shape)}

    def last_ms(self) -> float:
        """Return the time of the last call or phase."""
        return self.session.last_ms

    def reported_ms(self) -> float:
        """Return the time of the last call.

        Raises:
            AttnbenchError: the time is too short for the card, so part of the problem was not computed.
        """
        from attnbench.workloads.attention_cp import WORKLOAD

        ms, ranks = self.last_ms(), len(self.session.team.devices)
        tflops = WORKLOAD.work(self.case).flops / ms / 1e9 / ranks
        if self.peak_tflops is not None and tflops > self.peak_tflops:
            wrong = f"TFLOP/s a GPU is above the card's peak of {self.peak_tflops:g}: not all of it was computed"
            raise AttnbenchError(refusal(self.who, "time", f"{tflops:.0f}", wrong, "a time that the card can reach"))
        return ms

    def overlap(self) -> Mapping[str, float | None]:
        """Return the share of the communication phases hidden behind attention, from calls and phases timed in turn."""
        names = (None, *self.session.phases)
        return hidden_of([{name: self.session.run(name) for name in names} for _ in range(WHOLE_ROUNDS)])


def hidden_of(rounds: Sequence[Mapping[str | None, float]]) -> dict[str, float | None]:
    """Return how much of exchange and permute is hidden behind attention: the sum of the phases minus the call.

    A call hides no less than nothing and no more than exchange and permute, so the median over the rounds is limited to
    that.  Where a quarter and three quarters of the rounds differ by more than what there is to hide, it is unknown.

    Args:
        rounds: of each round, ms of the call (None) and of each phase.
    """
    beside = [sum(ms for name, ms in one.items() if name not in (None, "attention")) for one in rounds]
    hidden = sorted(ms + one["attention"] - one[None] for ms, one in zip(beside, rounds, strict=True))
    most, quarter = median(beside), len(rounds) // 4
    if not most or hidden[-1 - quarter] - hidden[quarter] > most:
        return {"hidden_ms": None, "hidden_percent": None}
    ms = min(max(median(hidden), 0.0), most)
    return {"hidden_ms": ms, "hidden_percent": 100 * ms / most}


def problem_of(case: CpCase) -> Problem:
    """Return the problem in the form that is sent to the ranks."""
    from attnbench.dtypes import DTYPES
    from attnbench.parallel.problem import Problem

    return Problem(
        lengths=case.rows,
        heads=case.nheads,
        heads_kv=case.nheads_kv,
        dim=case.headdim,
        dtype=DTYPES[case.dtype].torch,
        causal=case.causal,
        scale=float(case.headdim**-0.5),
        function=case.function,
        divisor=case.seqlen,
    )


def _packed(x: Tensor) -> Tensor:
    """Reshape [B, S, heads, D] to [B S, heads, D]; return packed tensors unchanged."""
    return x.flatten(0, 1) if x.dim() == 4 else x
