"""HSTU attention of a serving step over a paged cache, and the append to it.

    with c cached keys, m new history rows and T candidates of a sequence:
    history row i sees the cached keys and the new ones up to itself; a candidate all c + m keys and itself
    O = SiLU(α Q Kᵀ) ∘ M · V / scaling_seqlen

`problem` says how pages and sequences are given.  With P = m c + m (m + 1) / 2 + T (c + m + 1) visible pairs of a
sequence and head the forward is 4 P D FLOPs.  Workspace: none, or fp32 [T, splits, H, D] where keys are split.
Takes bf16, fp16 and fp32, dims 1 to 256, pages of 32, 64 and 128 keys.
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
from attnbench.kernels.shared.operators import is_followed, refuse_followed

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
    """Attention of the new rows to the cached keys and to themselves; forward only.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [T, H, D] new rows, the sequences one after another; last dim contiguous, as of k and v.
        k: like q.
        v: like q.
        pool: [pages, 2, page_size, H, D]: the cached keys and values of this layer.
        step: sequences and pages.
        scaling_seqlen: what outputs are divided by; a constant of the model, or scores change with the batch.
        alpha: factor of the scores; None: 1 / sqrt(D).
        splits: parts of the keys, each a program's; None: as many as fill the card by the bounds in `step`.  Results
            of different splits differ by rounding; for a given number they are the same bits each time.
        config: launch configuration, or its short form, such as "m128n64w8s2-ws"; None: the default, which is of the
            kernel for Hopper where that takes the tensors (sm_90, 16 bits, rows and strides of whole 16 bytes) and else
            the portable one.  One that is given is never replaced by another.
        validate: look into the table too, once, and wait for the device.

    Returns:
        [T, H, D], contiguous.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.
    """
    if is_followed(q, k, v, pool):
        check_flags(ATTENTION, validate=validate)
        refuse_followed(ATTENTION, validate=validate)
        name = config if config is None or isinstance(config, str) else config.short
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
    """Attention without the kernel that adds up split keys: for a caller whose next kernel does (`hstu.layer`'s gate).

    Args:
        q: as of `hstu_paged_attention`, which says more of all of them.
        k: like q.
        v: like q.
        pool: pages of this layer.
        step: sequences and pages.
        scaling_seqlen: what outputs are divided by.
        alpha: factor of the scores.
        splits: parts of the keys.
        config: launch configuration, or its short form.

    Returns:
        The parts; where keys are not split, or dims are no power of two from 16, the output [T, H, D] itself.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.
    """
    return attend_parts(
        q=q, k=k, v=v, pool=pool, step=step, scaling_seqlen=scaling_seqlen, alpha=alpha, splits=splits, config=config
    )


def hstu_paged_append(k: Tensor, v: Tensor, pool: Tensor, step: Step, *, validate: bool = False) -> None:
    """Write keys and values of the new history into the pool, behind the cached ones; candidates are not written.

    Args:
        k: [T, H, D] new rows.
        v: like k.
        pool: [pages, 2, page_size, H, D]; changed.
        step: sequences, and pages for cached and new history.
        validate: look into the table too, once, and wait for the device.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.
    """
    if is_followed(k, v, pool):
        check_flags(APPEND, validate=validate)
        refuse_followed(APPEND, validate=validate)
        APPENDS(k, v, pool, *table_of(step), *bounds_of(step))
        return
    append(k, v, pool, step, validate=validate)


def hstu_paged_silu_append(q: Tensor, k: Tensor, v: Tensor, pool: Tensor, step: Step) -> None:
    """SiLU of q, k and v of all new rows in place, and the append of keys and values, in one launch.

    Args:
        q: [T, H, D] new rows; changed, as k and v are.  None of the three has memory of another.
        k: like q.
        v: like q.
        pool: as of `hstu_paged_append`; changed.
        step: sequences, and pages for cached and new history.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.
    """
    append(k, v, pool, step, silu_with=q)
