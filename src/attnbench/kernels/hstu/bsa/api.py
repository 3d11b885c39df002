"""Block-sparse HSTU attention over jagged sequences, forward and backward, for autograd or with own buffers.

A sequence is ``[history | targets]``.  For a history row t (a target stands behind the history), c = 1 / N:

    compressed  g₀ BS c Σ_b SiLU(α q·k̄_b) v̄_b     complete blocks that end at or before t; k̄, v̄ their means
    selected    g₁ c Σ_j SiLU(α q·k_j) v_j          keys up to t of the local block and of the S - 1 complete blocks
                                                    before it with the largest α q·k̄; a target adds itself
    sliding     g₂ c Σ_j SiLU(α q·k_j) v_j          the last w keys

(After Yuan et al. 2025, arXiv:2502.11089, with SiLU as in Zhai et al. 2024, arXiv:2402.17152.)  The truth these
kernels are held against is `attnbench.workloads.hstu.oracle_bsa`.  Pooling, ranking and lists are part of the call:

    hstu_bsa_pool     means of blocks                              reads K and V
    hstu_bsa_select   compressed branch, ranking, keys nearby      reads Q, K, V, writes O
    hstu_bsa_lists    for each block the queries that chose it     traffic of the indices
    hstu_bsa_attend   listed blocks, and the sums of partial rows  reads Q, K, V, O, writes O

The selection is a constant of the gradients.  Forward and backward have one order for every sum: the same bits each
time.  Letters: Tq, Tk packed queries and keys, H heads, D attention dim, Dv linear dim, B sequences.  Takes bf16, fp16
and fp32, dims 1 to 256, blocks of 16 to 128 keys, 1 to 16 blocks a query, any strides but the last, lengths from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.hstu.bsa.backward import BsaGradients, backward
from attnbench.kernels.hstu.bsa.call import BsaCall, allocate, forward_workspace
from attnbench.kernels.hstu.bsa.forward import forward
from attnbench.kernels.hstu.bsa.plan import (
    SCHEDULES,
    BsaConfig,
    Shapes,
    backward_shapes,
    changed_config,
    config_fault,
    default_config,
    forward_shapes,
    saved_shapes,
)
from attnbench.kernels.hstu.bsa.portable.pool import hstu_bsa_pool
from attnbench.kernels.hstu.bsa.problem import BsaProblem
from attnbench.kernels.hstu.dense.problem import (
    LARGEST_COUNT,
    Problem,
    check_device,
    check_tensors,
    check_values,
    default_alpha,
)
from attnbench.kernels.hstu.dense.problem import WHO as DENSE
from attnbench.kernels.shared.hopper import is_rows
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of
from attnbench.kernels.shared.limits import lies_in_rows

__all__ = [
    "BsaCall",
    "BsaConfig",
    "BsaGradients",
    "BsaProblem",
    "BsaTensors",
    "allocate",
    "backward",
    "backward_shapes",
    "changed_config",
    "check",
    "config_fault",
    "default_config",
    "forward",
    "forward_workspace",
    "hstu_bsa_attention",
    "problem_of",
]

WHO = "hstu_bsa_attention"
BLOCK_SIZES = (16, 32, 64, 128)
MOST_BLOCKS = 16
SELECTIONS = ("head", "shared")
INPUTS = ("q", "k", "v", "gates", "offsets", "offsets_q", "num_targets")
"Fields of `BsaTensors`, as the kept launches take them."


@dataclass(frozen=True, kw_only=True, slots=True)
class BsaTensors:
    """Inputs of a call, as `hstu_bsa_attention` takes them."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor | None
    offsets: Tensor
    offsets_q: Tensor | None
    num_targets: Tensor | None

    @property
    def capability(self) -> tuple[int, int]:
        """Of the card; (0, 0) for CPU tensors, which Triton's interpreter takes."""
        return torch.cuda.get_device_capability(self.q.device) if self.q.device.type == "cuda" else (0, 0)

    @property
    def rows(self) -> bool:
        """Whether the kernels for Hopper can read them."""
        return all(is_rows(x) or not x.numel() for x in (self.q, self.k, self.v))

    def call(
        self, problem: BsaProblem, config: BsaConfig, out: Tensor, blocks: Tensor, workspace: dict[str, Tensor]
    ) -> BsaCall:
        """Join them with results and workspace."""
        return BsaCall(
            problem=problem,
            config=config,
            q=self.q,
            k=self.k,
            v=self.v,
            gates=self.gates,
            offsets=self.offsets,
            offsets_q=self.offsets_q,
            num_targets=self.num_targets,
            out=out,
            blocks=blocks,
            workspace=workspace,
        )


def problem_of(
    tensors: BsaTensors,
    *,
    max_seqlen: int,
    max_seqlen_q: int,
    block_size: int,
    block_counts: int,
    alpha: float,
    scaling_seqlen: int,
    local_window: int | None,
    selection: str,
    pairs: bool,
) -> BsaProblem:
    """Put the numbers of a call together; shapes are read off the tensors, unchecked."""
    t = tensors
    return BsaProblem(
        batch=t.offsets.shape[0] - 1,
        heads=t.q.shape[1],
        queries=t.q.shape[0],
        keys=t.k.shape[0],
        max_seqlen=max_seqlen,
        max_seqlen_q=max_seqlen_q,
        attn_dim=t.q.shape[2],
        linear_dim=t.v.shape[2],
        dtype=t.q.dtype,
        block_size=block_size,
        block_counts=block_counts,
        local_window=local_window or 0,
        gates=0 if t.gates is None else t.gates.shape[-1],
        alpha=alpha,
        scaling_seqlen=scaling_seqlen,
        shared=selection == "shared",
        pairs=pairs,
        has_targets=t.num_targets is not None,
        has_cache=t.offsets_q is not None,
    )


class _Call:
    """A call without its tensors: problem, checked, configuration, and the launches of both directions."""

    __slots__ = ("backward", "config", "forward", "problem")

    def __init__(self, problem: BsaProblem, config: BsaConfig) -> None:
        self.problem, self.config = problem, config
        self.forward = Launches(partial(_run_forward, problem, config))
        self.backward: Kept[tuple[bool, Launches]] = Kept()
        "by `facts_of` its tensors: whether the output's gradient is copied before, and the launches"

    def gradients(self, dout: Tensor, *tensors: Tensor | None) -> Results:
        """dq, dk, dv and dgates of the tensors of `_run_backward`."""
        key = facts_of(dout, *tensors)
        found = self.backward.get(key)
        if found is None:
            launches = Launches(partial(_run_backward, self.problem, self.config))
            found = self.backward.keep(key, (not lies_in_rows(dout), launches))
        copied, launches = found
        return launches(dout.clone(memory_format=torch.contiguous_format) if copied else dout, *tensors)


_calls: Kept[_Call] = Kept()


def _room_for(shapes: Shapes, like: Tensor) -> dict[str, Tensor]:
    return {name: empty(shape, like, dtype) for name, (shape, dtype) in shapes.items()}


def _run_forward(problem: BsaProblem, config: BsaConfig, *given: Tensor | None) -> Results:
    tensors = BsaTensors(**dict(zip(INPUTS, given, strict=True)))
    p, q = problem, tensors.q
    out = empty((p.queries, p.heads, p.linear_dim), q)
    blocks = empty((p.queries, p.list_heads, p.block_counts), q, torch.int32)
    saved = _room_for(saved_shapes(p, config), q)
    forward(tensors.call(p, config, out, blocks, saved | _room_for(forward_shapes(p, config), q)))
    return out, blocks, *saved.values()


def _run_backward(
    problem: BsaProblem, config: BsaConfig, dout: Tensor, blocks: Tensor, *given: Tensor | None
) -> Results:
    tensors = BsaTensors(**dict(zip(INPUTS, given, strict=False)))
    p, q = problem, tensors.q
    saved = dict(zip(saved_shapes(p, config), given[len(INPUTS) :], strict=True))
    dq, dk, dv = (empty(x.shape, x) for x in (q, tensors.k, tensors.v))
    dgates = None if tensors.gates is None else empty(tensors.gates.shape, tensors.gates)
    backward(
        BsaGradients(
            # The backward reads no output; `blocks` stands where it would.
            call=tensors.call(p, config, blocks, blocks, saved),
            dout=dout,
            dq=dq,
            dk=dk,
            dv=dv,
            dgates=dgates,
            workspace=_room_for(backward_shapes(p, config), q),
        )
    )
    return dq, dk, dv, dgates


class _HstuBsaAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gates: Tensor | None,
        offsets: Tensor,
        offsets_q: Tensor | None,
        num_targets: Tensor | None,
        call: _Call,
    ) -> Results:
        given = q, k, v, gates, offsets, offsets_q, num_targets
        out, blocks, *saved = call.forward(*given)
        ctx.save_for_backward(blocks, *given, *saved)
        ctx.call = call
        ctx.mark_non_differentiable(blocks)
        ctx.set_materialize_grads(False)  # the selection has none
        return out, blocks

    @staticmethod
    @once_differentiable  # a second derivative would be missing in silence
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.call.gradients(grads[0], *ctx.saved_tensors), None, None, None, None


def hstu_bsa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_seqlen: int,
    *,
    gates: Tensor | None = None,
    block_size: int = 32,
    block_counts: int = 4,
    local_window: int | None = None,
    selection: str = "head",
    pairs: bool = False,
    offsets_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    num_targets: Tensor | None = None,
    alpha: float | None = None,
    scaling_seqlen: int | None = None,
    config: BsaConfig | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Block-sparse SiLU attention of each sequence to itself, differentiable once; see the letters above.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [Tq, H, D], the sequences one after another.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        offsets: int [B + 1]; sequence b has the keys from [b] to [b + 1].
        max_seqlen: at least the most keys of a sequence.
        gates: contiguous [Tq, H, 2], or 3 with `local_window`: factors of the branches; None: they are added as they
            are.
        block_size: keys of a block: 16, 32, 64 or 128.
        block_counts: blocks a query selects, its own among them: 1 to 16.
        local_window: rows of the sliding branch, the query's own among them; None: no such branch.
        selection: head: each head selects its blocks; shared: one selection by the sum of the heads' scores.
        pairs: an odd row of a history selects what the row before it does.
        offsets_q: the same of the queries, which are the last rows of each sequence; None: all rows are queries.
        max_seqlen_q: at least the most queries of a sequence; None: max_seqlen.
        num_targets: int [B], targets at the end of each sequence, which see no other target; None: none.
        alpha: factor of the scores, above 0; None: 1 / sqrt(D).
        scaling_seqlen: N, what outputs are divided by; None: max_seqlen.
        config: launch configuration; None: the default.
        validate: look into the tensors too, once, and wait for the device: offsets, targets, NaN.

    Returns:
        The output [Tq, H, Dv], and the selected blocks, int32 [Tq, H, S] ([Tq, 1, S] if shared), ascending, -1 behind.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.
    """
    given = q, k, v, gates, offsets, offsets_q, num_targets
    key = (
        facts_of(*given),
        exact(
            max_seqlen,
            block_size,
            block_counts,
            local_window,
            selection,
            bool(pairs),
            max_seqlen_q,
            None if alpha is None else float(alpha),
            scaling_seqlen,
            config,
        ),
    )
    call = _calls.get(key)
    if call is None or validate:
        tensors = BsaTensors(**dict(zip(INPUTS, given, strict=True)))
        numbers: dict[str, Any] = {
            "max_seqlen": max_seqlen,
            "max_seqlen_q": max_seqlen if max_seqlen_q is None else max_seqlen_q,
            "alpha": default_alpha(q) if alpha is None else float(alpha),
            "scaling_seqlen": max_seqlen or 1 if scaling_seqlen is None else scaling_seqlen,
            "block_size": block_size,
            "block_counts": block_counts,
            "local_window": local_window,
            "selection": selection,
        }
        check(tensors, **numbers, config=config, validate=validate)
        problem = problem_of(tensors, **numbers, pairs=pairs)
        config = config or default_config(problem, tensors.capability, rows=tensors.rows)
        call = _calls.keep(key, _Call(problem, config))
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given[:4]):
        return _HstuBsaAttention.apply(*given, call)
    out, blocks, *_ = call.forward(*given)
    assert out is not None
    assert blocks is not None
    return out, blocks


def check(
    tensors: BsaTensors,
    *,
    max_seqlen: int,
    max_seqlen_q: int,
    alpha: float,
    scaling_seqlen: int,
    block_size: int,
    block_counts: int,
    local_window: int | None,
    selection: str,
    config: BsaConfig | None = None,
    validate: bool = False,
) -> None:
    """Refuse what the kernels cannot take; with `validate` also values inside the tensors, waiting for the device.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    t = tensors
    shared = Problem(
        offsets=t.offsets,
        offsets_q=t.offsets_q,
        num_targets=t.num_targets,
        max_seqlen=max_seqlen,
        max_seqlen_q=max_seqlen_q,
        alpha=alpha,
        scaling_seqlen=scaling_seqlen,
        causal=True,
        contextual_len=0,
        max_attn_len=None,
    )
    _as_ours(lambda: check_tensors(t.q, t.k, t.v, shared))
    _as_ours(lambda: check_device(t.q, compiled=isinstance(hstu_bsa_pool, triton.JITFunction)))
    _check_sparse(block_size, block_counts, local_window, selection, alpha, max_seqlen)
    _check_gates(t, 2 if local_window is None else 3)
    if config is not None and config.schedule not in SCHEDULES:
        raise _wrong("config.schedule", config.schedule, "is not known", " or ".join(SCHEDULES))
    if validate:
        _as_ours(lambda: check_values(t.q, t.k, t.v, shared))


def _as_ours(checked: Callable[[], None]) -> None:
    """Let the checks of the dense function speak in this one's name."""
    try:
        checked()
    except ValueError as wrong:
        raise ValueError(str(wrong).replace(DENSE, WHO, 1)) from None


def _check_sparse(
    block_size: int, block_counts: int, local_window: int | None, selection: str, alpha: float, max_seqlen: int
) -> None:
    if block_size not in BLOCK_SIZES:
        power = type(block_size) is int and block_size > 0 and not block_size & (block_size - 1)
        raise _wrong(
            "block_size",
            block_size,
            "is not supported" if power else "is no power of two",
            f"one of {', '.join(map(str, BLOCK_SIZES))}",
        )
    exist = max(1, -(-max_seqlen // block_size))
    if type(block_counts) is not int or not 1 <= block_counts <= MOST_BLOCKS:
        raise _wrong("block_counts", block_counts, "is out of range", f"a whole number from 1 to {MOST_BLOCKS}")
    if block_counts > exist:
        raise _wrong(
            "block_counts",
            block_counts,
            f"is over the {exist} blocks of {block_size} in {max_seqlen} rows",
            f"at most {exist}",
        )
    if local_window is not None and (type(local_window) is not int or not 1 <= local_window <= LARGEST_COUNT):
        raise _wrong(
            "local_window", local_window, "cannot be used", f"a whole number from 1 to {LARGEST_COUNT}, or None"
        )
    if selection not in SELECTIONS:
        raise _wrong("selection", selection, "is not known", " or ".join(SELECTIONS))
    if alpha <= 0:
        raise _wrong("alpha", alpha, "would turn the ranking round", "a finite number above 0")


def _check_gates(tensors: BsaTensors, branches: int) -> None:
    q, gates = tensors.q, tensors.gates
    if gates is None:
        return
    for name, have, want in (
        ("shape", tuple(gates.shape), (*q.shape[:2], branches)),
        ("dtype", gates.dtype, q.dtype),
        ("device", gates.device, q.device),
        ("is_contiguous()", gates.is_contiguous(), True),
    ):
        if have != want:
            raise _wrong(f"gates.{name}", have, "does not fit", str(want))


def _wrong(name: str, value: object, wrong: str, accepted: str) -> ValueError:
    return ValueError(f"{WHO}: {name}={value} {wrong}; {accepted}")
