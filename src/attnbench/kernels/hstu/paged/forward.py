"""Launch the paged HSTU forward that a configuration selects, portable or Hopper, and the sum over split keys."""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.hstu.dense.forward import grid_of
from attnbench.kernels.hstu.dense.parts import launch_sum, parts_of
from attnbench.kernels.hstu.dense.parts import workspace_shape as shape_of_parts
from attnbench.kernels.hstu.paged import portable
from attnbench.kernels.hstu.paged.configs import PagedConfig
from attnbench.kernels.hstu.paged.hopper.forward import ForwardMeta, hstu_paged_hopper_forward
from attnbench.kernels.hstu.paged.problem import Step
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import ROWS, rows_of
from attnbench.kernels.shared.kept import launch
from attnbench.kernels.shared.tiling import block_of, group_of

SECTION_MIB = 24.0
"Keys and values that consecutive programs of the Hopper kernel share in the L2."


def splits_of(q: Tensor, step: Step, config: PagedConfig) -> int:
    """Into how many parts the keys of a call are split; computed from the bounds, without synchronizing."""
    programs, keys = programs_of(q, step, config, 1), step.max_cached + step.max_new
    if config.hopper:
        return parts_of(
            programs, config.block_m, keys, config.block_n, 2 * q.shape[2], block_of(q.shape[2]), processors(q)
        )
    return config.splits(programs, keys, processors(q))


def programs_of(q: Tensor, step: Step, config: PagedConfig, splits: int) -> int:
    """Number of work items of a call; the portable kernel launches a program for each."""
    return -(-step.max_new // config.block_m) * step.batch * q.shape[1] * splits


def workspace_shape(q: Tensor, splits: int) -> tuple[int, ...] | None:
    """Shape of the fp32 partial sums of a call; None if keys are not split."""
    return shape_of_parts(q.shape, splits)


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    out: Tensor | None,
    step: Step,
    config: PagedConfig,
    *,
    alpha: float,
    scaling_seqlen: int,
    splits: int,
    workspace: Tensor | None,
) -> None:
    """Compute `out` [T, H, D] without synchronizing with the device.

    Allocates only the four-byte counter of the Hopper kernel's tile scheduler.

    Args:
        q: [T, H, D], last dim contiguous, also for k and v; for Hopper as `is_rows` accepts.
        k: like q.
        v: like q.
        pool: [pages, 2, page_size, H, D], contiguous.
        out: like q, contiguous; every row of a sequence is written.  None: the parts stay in the workspace.
        step: sequences and pages, already checked.
        config: tiles and code path.
        alpha: factor of the scores.
        scaling_seqlen: divisor of the outputs.
        splits: into how many parts the keys are split, from 1.
        workspace: fp32, shaped as `workspace_shape`.
    """
    if programs_of(q, step, config, splits) == 0 or q.numel() == 0:
        return
    launch_attention = _launch_hopper if config.hopper else portable.launch_forward
    launch_attention(
        q, k, v, pool, out, step, config, alpha=alpha, scaling_seqlen=scaling_seqlen, splits=splits, workspace=workspace
    )
    if workspace is not None and out is not None:
        launch_sum(workspace, out, 1 / scaling_seqlen, hopper=config.hopper)


def _launch_hopper(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    out: Tensor | None,
    step: Step,
    config: PagedConfig,
    *,
    alpha: float,
    scaling_seqlen: int,
    splits: int,
    workspace: Tensor | None,
) -> None:
    (_, heads, dim), page_size = q.shape, pool.shape[2]
    tiles, pairs, block_d = -(-step.max_new // config.block_m), step.batch * heads, block_of(dim)
    group = group_of((step.max_cached + step.max_new) * 2 * dim * q.element_size(), SECTION_MIB, pairs)
    programs, counter = grid_of(tiles * pairs * splits, q)
    box = min(page_size, config.block_n)
    launch(
        hstu_paged_hopper_forward,
        (programs,),
        q_desc=rows_of(q, ROWS.value, block_d),
        k_desc=rows_of(k, config.block_n, block_d),
        v_desc=rows_of(v, config.block_n, block_d),
        pool_desc=rows_of(pool.view(-1, heads, dim), box, block_d),
        out_desc=rows_of(out, ROWS.value, block_d) if workspace is None else None,
        parts_ptr=workspace,
        counter_ptr=counter,
        offsets_ptr=step.offsets,
        cached_ptr=step.cached,
        indptr_ptr=step.indptr,
        indices_ptr=step.indices,
        num_targets_ptr=step.num_targets,
        half_alpha=alpha / 2,
        scale=1 / scaling_seqlen,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group,
        parts=splits,
        META=ForwardMeta(
            **config.hopper_flags(block_d),
            PAGE=page_size,
            HAS_TARGETS=step.num_targets is not None,
            DRAWS=counter is not None,
            SPLIT=workspace is not None,
        ),
        num_warps=4,
        launch_pdl=workspace is not None,
    )
