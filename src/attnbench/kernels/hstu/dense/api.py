"""Dense HSTU attention over jagged sequences, forward and backward, for autograd and for callers with own buffers.

    S = α Q Kᵀ        A = SiLU(S) ∘ M / N        O = A V        SiLU(x) = x σ(x)
    dV = Aᵀ dO        dS = (dO Vᵀ) ∘ M / N ∘ σ(S)(1 + S(1 - σ(S)))        dQ = α dS K        dK = α dSᵀ Q

(Zhai et al. 2024, arXiv:2402.17152.)  `hstu.tiles` says what the mask M is.  The truth these kernels are held
against is `attnbench.workloads.hstu.oracle`.  With P visible (query, key) pairs of a head, D = attention dim and
Dv = linear dim, the forward is 2 P (D + Dv) FLOPs and the backward 2 P (3 D + 2 Dv); it executes two products more,
2 P (D + Dv), where it is deterministic, and tiles whole.  Workspace: none forward (four bytes where jobs
are drawn) and none of the deterministic backward; 4 D bytes a query and head of the one with atomics.

Letters: Tq, Tk packed queries and keys, H heads, D attention dim, Dv linear dim, B sequences.  Takes bf16, fp16 and
fp32, dims 1 to 256, any strides but the last, lengths from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.hstu.dense.backward import launch_backward, workspace_shape
from attnbench.kernels.hstu.dense.configs import (
    BackwardConfig,
    ColumnConfig,
    ForwardConfig,
    RowConfig,
    backward_config,
    forward_config,
    hopper_columns_config,
    hopper_forward_config,
)
from attnbench.kernels.hstu.dense.forward import launch_forward
from attnbench.kernels.hstu.dense.hopper.tiles import LEAST_ALPHA
from attnbench.kernels.hstu.dense.portable.forward import hstu_dense_forward
from attnbench.kernels.hstu.dense.problem import (
    Problem,
    check_device,
    check_tensors,
    check_types,
    check_values,
    default_alpha,
    wrong,
)
from attnbench.kernels.shared.hopper import is_rows
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of
from attnbench.kernels.shared.limits import lies_in_rows

__all__ = [
    "BackwardConfig",
    "ColumnConfig",
    "ForwardConfig",
    "Problem",
    "RowConfig",
    "backward_config",
    "check_tensors",
    "check_values",
    "configs_of",
    "default_backward",
    "default_forward",
    "forward_config",
    "hstu_attention",
    "launch_backward",
    "launch_forward",
    "workspace_shape",
]


def default_forward(q: Tensor, k: Tensor, v: Tensor, max_seqlen: int) -> ForwardConfig:
    """Tuned default for these tensors on their card: of the kernel for Hopper if that takes them, else the portable."""
    hopper = None
    if all(map(is_rows, (q, k, v))):
        hopper = hopper_forward_config(_capability(q), q.element_size(), q.shape[2], v.shape[2], max_seqlen)
    return hopper or forward_config(*_shape(q, v), max_seqlen)


def default_backward(
    q: Tensor, k: Tensor, v: Tensor, max_seqlen: int, *, deterministic: bool, alpha: float | None = None
) -> BackwardConfig:
    """Tuned default for these tensors on their card: of the kernel for Hopper if that takes them, else the portable.

    Args:
        q: [Tq, H, D], whose card, precision, dims and strides it is for.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        max_seqlen: most rows of a sequence.
        deterministic: every sum has one order; that for Hopper is not.
        alpha: factor of the scores; None: 1 / sqrt(D).  Between 0 and 1e-30 that for Hopper cannot hide what is masked.
    """
    hopper = None
    small = 0 < abs(default_alpha(q) if alpha is None else alpha) < LEAST_ALPHA
    if not deterministic and not small and all(map(is_rows, (q, k, v))):
        hopper = hopper_columns_config(_capability(q), q.element_size(), q.shape[2], v.shape[2], max_seqlen)
    found = (
        BackwardConfig(columns=hopper, rows=None)
        if hopper
        else backward_config(*_shape(q, v), max_seqlen, deterministic=deterministic)
    )
    return _precise(found, q.dtype)


def configs_of(
    q: Tensor, k: Tensor, v: Tensor, max_seqlen: int, changes: Mapping[str, Any], *, alpha: float | None = None
) -> tuple[ForwardConfig, BackwardConfig]:
    """Tuned defaults with changes: ``deterministic`` (a boolean), and fields of the configurations by kernel.

    A kernel that nothing is changed of has its default, which may be that for Hopper; one with changes starts from the
    portable default, so that what a change leaves out does not depend on which of them a card prefers.

    Args:
        q: whose card, precision, dims and strides the defaults are for.
        k: the same.
        v: the same.
        max_seqlen: most rows of a sequence.
        changes: such as ``{"forward": {"block_m": 64}, "deterministic": True, "rows": {"warps": 4}}``; the
            column kernel is ``atomic`` or, deterministic, ``columns``.
        alpha: factor of the scores; None: 1 / sqrt(D).
    """
    deterministic = changes.get("deterministic", False)
    forward = default_forward(q, k, v, max_seqlen)
    if rows := changes.get("forward"):
        forward = replace(forward_config(*_shape(q, v), max_seqlen), **rows)
    backward = default_backward(q, k, v, max_seqlen, deterministic=deterministic, alpha=alpha)
    columns = changes.get("columns" if deterministic else "atomic", {})
    if columns:
        backward = _precise(backward_config(*_shape(q, v), max_seqlen, deterministic=deterministic), q.dtype)
    if columns.get("order") == "ws":
        columns = {"split": False} | columns  # that kernel holds dK and dV at once, at every dim
    return forward, BackwardConfig(
        columns=replace(backward.columns, **columns),
        rows=backward.rows and replace(backward.rows, **changes.get("rows", {})),
    )


def _precise(config: BackwardConfig, dtype: torch.dtype) -> BackwardConfig:
    if dtype != torch.float16:
        return config
    # tanh.approx is off by 2⁻¹¹, and the slope multiplies that by the score: several times what fp16 is allowed.
    return BackwardConfig(
        columns=replace(config.columns, silu="exp"), rows=config.rows and replace(config.rows, silu="exp")
    )


def _shape(q: Tensor, v: Tensor) -> tuple[tuple[int, int], int, int]:
    return _capability(q), q.element_size(), max(q.shape[2], v.shape[2])


def _capability(x: Tensor) -> tuple[int, int]:
    compiled = isinstance(hstu_dense_forward, triton.JITFunction)
    return torch.cuda.get_device_capability(x.device) if compiled and x.device.type == "cuda" else (0, 0)


TABLE = ("offsets", "offsets_q", "num_targets")
"Fields of a `Problem` that are tensors."


class _Call:
    """A call without its tensors: the numbers of its problem, checked, and the launches of both directions."""

    __slots__ = ("backward", "config", "forward", "problem_at")

    def __init__(self, problem: Problem, forward: ForwardConfig, backward: BackwardConfig) -> None:
        numbers = {name: getattr(problem, name) for name in Problem.__slots__ if name not in TABLE}
        self.problem_at, self.config = partial(Problem, **numbers), backward
        self.forward = Launches(partial(_run_forward, self.problem_at, forward))
        self.backward: Kept[tuple[bool, Launches]] = Kept()
        "by `facts_of` its tensors: whether the output's gradient is copied before, and the launches"

    def gradients(self, dout: Tensor, *tensors: Tensor | None) -> Results:
        """dq, dk and dv of the tensors of `_run_backward`."""
        key = facts_of(dout, *tensors)
        found = self.backward.get(key)
        if found is None:
            launches = Launches(partial(_run_backward, self.problem_at, self.config))
            copied = not lies_in_rows(dout) or (self.config.columns.hopper and not is_rows(dout))
            found = self.backward.keep(key, (copied, launches))
        copied, launches = found
        return launches(dout.clone(memory_format=torch.contiguous_format) if copied else dout, *tensors)


_calls: Kept[_Call] = Kept()


def _run_forward(
    problem_at: Callable[..., Problem], config: ForwardConfig, q: Tensor, k: Tensor, v: Tensor, *table: Tensor | None
) -> Results:
    out = empty((q.shape[0], q.shape[1], v.shape[2]), q)
    launch_forward(q, k, v, out, problem_at(**dict(zip(TABLE, table, strict=True))), config)
    return (out,)


def _run_backward(
    problem_at: Callable[..., Problem],
    config: BackwardConfig,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *table: Tensor | None,
) -> Results:
    dq, dk, dv = (empty(x.shape, x) for x in (q, k, v))
    shape = workspace_shape(q, config)
    workspace = None if shape is None else empty(shape, q, torch.float32)
    problem = problem_at(**dict(zip(TABLE, table, strict=True)))
    launch_backward(q, k, v, dout, dq, dk, dv, problem, config, workspace)
    return dq, dk, dv


class _HstuAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets: Tensor,
        offsets_q: Tensor | None,
        num_targets: Tensor | None,
        call: _Call,
    ) -> Tensor | None:
        (out,) = call.forward(q, k, v, offsets, offsets_q, num_targets)
        ctx.save_for_backward(q, k, v)
        ctx.call, ctx.table = call, (offsets, offsets_q, num_targets)
        return out

    @staticmethod
    @once_differentiable  # a second derivative would be missing in silence
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.call.gradients(grads[0], *ctx.saved_tensors, *ctx.table), None, None, None, None


def hstu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_seqlen: int,
    *,
    offsets_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    num_targets: Tensor | None = None,
    alpha: float | None = None,
    scaling_seqlen: int | None = None,
    causal: bool = True,
    contextual_len: int = 0,
    max_attn_len: int | None = None,
    deterministic: bool = False,
    forward: ForwardConfig | None = None,
    backward: BackwardConfig | None = None,
    validate: bool = False,
) -> Tensor:
    """SiLU attention of each sequence to itself, differentiable once; see the letters above.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [Tq, H, D], the sequences one after another.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        offsets: int [B + 1]; sequence b has the keys from [b] to [b + 1].
        max_seqlen: at least the most keys of a sequence.
        offsets_q: the same of the queries, which are the last rows of each sequence; None: all rows are queries.
        max_seqlen_q: at least the most queries of a sequence; None: max_seqlen.
        num_targets: int [B], targets at the end of each sequence, which see no other target; None: none.
        alpha: factor of the scores; None: 1 / sqrt(D).
        scaling_seqlen: N, what outputs are divided by; None: max_seqlen.
        causal: a row of the history sees no later key.
        contextual_len: rows at the front of each sequence that see all of its history.
        max_attn_len: a row sees at most so many rows back; None: all.
        deterministic: of the backward: the same bits each time, at seven products instead of five; the forward
            always is.
        forward: launch configuration; None: the tuned default, which is of the kernel for Hopper where that takes the
            tensors (sm_90, 16 bits, rows and strides of whole 16 bytes) and else the portable one; `default_forward`
            says which.  `ForwardConfig(block_m=128, block_n=128, warps=8, stages=2, order="ws")` is one for Hopper.
        backward: launch configuration; None: the tuned default, chosen alike, with deterministic=True the portable one.
            Columns with order="ws" and atomic=True are those for Hopper; a dO that they cannot describe is copied.
        validate: look into the tensors too, once, and wait for the device: offsets, targets, NaN.

    Returns:
        [Tq, H, Dv], contiguous.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.  One given for
            Hopper is refused on another card than sm_90, in fp32, at dims it has not and of tensors it cannot describe;
            no other runs in its place.  Of the backward's some of that comes with the backward.
    """
    key = (
        facts_of(q, k, v, offsets, offsets_q, num_targets),
        exact(
            max_seqlen,
            max_seqlen_q,
            alpha,
            scaling_seqlen,
            causal,
            contextual_len,
            max_attn_len,
            bool(deterministic),
            forward,
            backward,
        ),
    )
    call = _calls.get(key)
    if call is None or validate:
        check_types(
            {"q": q, "k": k, "v": v, "offsets": offsets, "offsets_q": offsets_q, "num_targets": num_targets}, alpha
        )
        problem = Problem(
            offsets=offsets,
            offsets_q=offsets_q,
            num_targets=num_targets,
            max_seqlen=max_seqlen,
            max_seqlen_q=max_seqlen if max_seqlen_q is None else max_seqlen_q,
            alpha=default_alpha(q) if alpha is None else float(alpha),
            scaling_seqlen=max_seqlen or 1 if scaling_seqlen is None else scaling_seqlen,
            causal=causal,
            contextual_len=contextual_len,
            max_attn_len=max_attn_len,
        )
        check_tensors(q, k, v, problem)
        if validate:
            check_values(q, k, v, problem)
        configs = _configs(q, k, v, problem, forward, backward, deterministic)
        check_device(q, compiled=isinstance(hstu_dense_forward, triton.JITFunction))
        call = _calls.keep(key, _Call(problem, *configs))
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _HstuAttention.apply(q, k, v, offsets, offsets_q, num_targets, call)
    (out,) = call.forward(q, k, v, offsets, offsets_q, num_targets)
    assert out is not None
    return out


def _configs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    forward: ForwardConfig | None,
    backward: BackwardConfig | None,
    deterministic: bool,
) -> tuple[ForwardConfig, BackwardConfig]:
    """Configurations as given, or the tuned defaults.

    Raises:
        ValueError: one is of another type, or is not deterministic and was to be.
    """
    for name, given, kind in (("forward", forward, ForwardConfig), ("backward", backward, BackwardConfig)):
        if given is not None and not isinstance(given, kind):
            raise wrong(name, repr(given)[:40], f"is of type {type(given).__name__}", f"a {kind.__name__}, or None")
    forward = forward or default_forward(q, k, v, problem.max_seqlen)
    backward = backward or default_backward(
        q, k, v, problem.max_seqlen, deterministic=deterministic, alpha=problem.alpha
    )
    if deterministic and not backward.deterministic:
        raise wrong(
            "backward.columns.atomic",
            True,
            "is not deterministic, which deterministic=True asks for",
            "columns and rows, or None",
        )
    return forward, backward
