"""HSTU attention of a serving step over a paged KV cache, and the append to that cache.

    for a sequence with c cached keys, m new history rows and T candidates:
    history row i sees the cached keys and the new keys up to its own; a candidate sees all c + m keys and its own
    O = SiLU(α Q Kᵀ) ∘ M · V / scaling_seqlen

`problem` describes how pages and sequences are passed.  A sequence and head has P = m c + m (m + 1) / 2 + T (c + m + 1)
visible pairs, and the forward takes 4 P D FLOPs.  Workspace: none, or fp32 [T, splits, H, D] where keys are split.
Supports bf16, fp16 and fp32, dims 1 to 256, pages of 32, 64 and 128 keys.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.paged.calls import (
    APPEND,
    ATTENTION,
    append,
    attend,
    attend_parts,
    bounds_of,
    default_forward,
    table_of,
)
from attnbench.kernels.hstu.paged.configs import PagedConfig
from attnbench.kernels.hstu.paged.forward import launch_forward, splits_of, workspace_shape
from attnbench.kernels.hstu.paged.operators import APPENDS, FORWARD
from attnbench.kernels.hstu.paged.portable import launch_append
from attnbench.kernels.hstu.paged.problem import PAGE_SIZES, Step
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.operators import needs_operator, refuse_in_operator

__all__ = [
    "PAGE_SIZES",
    "PagedConfig",
    "Step",
    "default_forward",
    "hstu_paged_append",
    "hstu_paged_attention",
    "hstu_paged_parts",
    "hstu_paged_silu_append",
    "launch_append",
    "launch_forward",
    "splits_of",
    "workspace_shape",
]


def hstu_paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    step: Step,
    *,
    scaling_seqlen: int,
    alpha: float | None = None,
    splits: int | None = None,
    config: PagedConfig | str | None = None,
    validate: bool = False,
) -> Tensor:
    """Attention of the new rows to the cached keys and to the new keys; forward only.

    Unless `validate` is set the call does not synchronize with the device, so it can be captured in a CUDA graph.

    Args:
        q: [T, H, D] new rows, sequences packed one after another; last dim contiguous, also for k and v.
        k: like q.
        v: like q.
        pool: [pages, 2, page_size, H, D]: the cached keys and values of this layer.
        step: sequences and pages.
        scaling_seqlen: divisor of the outputs; a constant of the model, otherwise scores depend on the batch.
        alpha: factor of the scores; None: 1 / sqrt(D).
        splits: into how many parts the keys are split, a program for each; None: enough to fill the card, judged by the
            bounds in `step`.  Results of different splits differ by rounding; a given number is bitwise reproducible.
        config: launch configuration, or its short form, such as "m128n64w8s2-ws"; None: the default, which uses the
            Hopper kernel if it supports the tensors (sm_90, 16-bit dtype, rows and strides that are multiples of 16
            bytes) and otherwise the portable one.  A configuration that is passed is never replaced by another.
        validate: also check the values in the table, which synchronizes with the device.

    Returns:
        [T, H, D], contiguous.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    if needs_operator(q, k, v, pool):
        check_flags(ATTENTION, validate=validate)
        refuse_in_operator(ATTENTION, validate=validate)
        name = getattr(config, "short", config)
        numbers = *bounds_of(step), scaling_seqlen, alpha, splits, name
        out: Tensor = FORWARD(q, k, v, pool, *table_of(step), *numbers)
        return out
    return attend(
        q=q,
        k=k,
        v=v,
        pool=pool,
        step=step,
        scaling_seqlen=scaling_seqlen,
        alpha=alpha,
        splits=splits,
        config=config,
        validate=validate,
    )


def hstu_paged_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    step: Step,
    *,
    scaling_seqlen: int,
    alpha: float | None = None,
    splits: int | None = None,
    config: PagedConfig | str | None = None,
) -> Tensor | Parts:
    """Attention without the kernel that sums the parts of split keys, for a next kernel that sums them (`layer.gate`).

    Args:
        q: as for `hstu_paged_attention`, which describes all arguments in full.
        k: like q.
        v: like q.
        pool: pages of this layer.
        step: sequences and pages.
        scaling_seqlen: divisor of the outputs.
        alpha: factor of the scores.
        splits: into how many parts the keys are split.
        config: launch configuration, or its short form.

    Returns:
        The parts; or the output [T, H, D] itself where keys are not split or D is not a power of two from 16.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    return attend_parts(
        q=q, k=k, v=v, pool=pool, step=step, scaling_seqlen=scaling_seqlen, alpha=alpha, splits=splits, config=config
    )


def hstu_paged_append(k: Tensor, v: Tensor, pool: Tensor, step: Step, *, validate: bool = False) -> None:
    """Write keys and values of the new history into the pool, after the cached ones; candidates are not written.

    Args:
        k: [T, H, D] new rows.
        v: like k.
        pool: [pages, 2, page_size, H, D]; written to.
        step: sequences, and pages for cached and new history.
        validate: also check the values in the table, which synchronizes with the device.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    if needs_operator(k, v, pool):
        check_flags(APPEND, validate=validate)
        refuse_in_operator(APPEND, validate=validate)
        APPENDS(k, v, pool, *table_of(step), *bounds_of(step))
        return
    append(k, v, pool, step, validate=validate)


def hstu_paged_silu_append(q: Tensor, k: Tensor, v: Tensor, pool: Tensor, step: Step) -> None:
    """Apply SiLU to q, k and v of all new rows in place, and append keys and values to the pool, in one launch.

    Args:
        q: [T, H, D] new rows; overwritten, as k and v are.  The three must not share memory.
        k: like q.
        v: like q.
        pool: as for `hstu_paged_append`; written to.
        step: sequences, and pages for cached and new history.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    append(k, v, pool, step, silu_with=q)
