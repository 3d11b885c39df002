# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The portable paged HSTU kernels: attention of a tile of new rows to cached pages and new keys, and the append.

    O = c (SiLU(α Q K_cachedᵀ) V_cached + SiLU(α Q K_newᵀ) ∘ M · V_new)

Every new row sees all cached keys.  M is the mask among the new rows only: the history is causal, a candidate sees the
new history and itself.  The key tiles of a row tile are numbered in this order:

    whole cached tiles | the last, partly filled cached tile | tiles of the new history | the rows' own candidates

With split keys a program takes an equal share of that list and stores its sum in its own part of the workspace.  There
is no softmax, so partial sums can simply be added; a second kernel does so in a fixed order (deterministic; fp32 atomics
would need zeroing before and conversion after, and so save no pass).

A missing key is loaded as zeros: its score is 0 and SiLU(0) is 0.  So weights of cached tiles need no mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.arguments import RowStrides
from attnbench.kernels.hstu.dense.problem import descriptor
from attnbench.kernels.hstu.paged.arguments import AppendStrides, ForwardMeta, ForwardStrides, SplitStrides
from attnbench.kernels.hstu.tiles import sees, silu
from attnbench.kernels.shared.card import capability_of
from attnbench.kernels.shared.kept import launch
from attnbench.kernels.shared.rows import load_rows, store_rows
from attnbench.kernels.shared.tiling import block_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.paged.configs import PagedConfig
    from attnbench.kernels.hstu.paged.problem import Step

COUNTS = ("heads", "tiles", "splits")
"""Arguments whose values the code is not specialized for: another batch or length needs no recompilation."""
APPEND_ROWS = 8

KEYS, VALUES = (tl.constexpr(half) for half in range(2))
"The two halves of a page."


class Cache(NamedTuple):
    """Cached keys and values of one sequence and head."""

    pool_ptr: Any
    pool_desc: Any
    pool_row: Any
    head: Any
    keys: Any
    "how many there are"


@triton.jit
@no_type_check
def load_cached(cache, page, at, half, META: tl.constexpr, WHOLE: tl.constexpr):
    """Load a tile [BLOCK_N, BLOCK_D] of cached keys (half KEYS) or values (VALUES) from key `at`; zeros past the last."""
    if WHOLE and META.TMA:
        slot = (page * 2 + half) * META.PAGE + at % META.PAGE
        return cache.pool_desc.load([slot, tl.cast(cache.head, tl.int32), 0]).reshape(META.BLOCK_N, META.BLOCK_D)
    slot = (tl.cast(page, tl.int64) * 2 + half) * META.PAGE + at % META.PAGE
    return load_rows(
        base=cache.pool_ptr + slot * cache.pool_row + cache.head * META.DIM,
        first=0,
        count=cache.keys - at,
        stride=cache.pool_row,
        DIM=META.DIM,
        BLOCK=META.BLOCK_N,
        BLOCK_DIM=META.BLOCK_D,
        WHOLE=WHOLE,
    )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_paged_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    pool_ptr,
    out_ptr,
    pool_desc,
    offsets_ptr,
    cached_ptr,
    indptr_ptr,
    indices_ptr,
    num_targets_ptr,
    strides,
    half_alpha,
    scale,
    heads,
    tiles,
    splits,
    META: tl.constexpr,
):
    """The output of a tile of new rows; where keys are split, the partial output over this program's share of them."""
    DIM: tl.constexpr = META.DIM
    BLOCK_D: tl.constexpr = META.BLOCK_D
    PAGE: tl.constexpr = META.PAGE
    BLOCK_M: tl.constexpr = META.BLOCK_M
    BLOCK_N: tl.constexpr = META.BLOCK_N
    PRECISION: tl.constexpr = META.PRECISION
    # Consecutive programs read the same keys: row tiles vary fastest, then shares, heads, sequences.
    program = tl.program_id(0)
    tile = program % tiles
    split = program // tiles % splits
    pair = program // tiles // splits
    number = pair // heads
    head = pair - number * heads
    new_start = tl.load(offsets_ptr + number).to(tl.int64)
    new = (tl.load(offsets_ptr + number + 1) - new_start).to(tl.int32)
    start = tile * BLOCK_M
    if start >= new:
        return
    cached = tl.load(cached_ptr + number)
    pages_ptr = indices_ptr + tl.load(indptr_ptr + number)
    seen = new
    if META.HAS_TARGETS:
        seen = new - tl.load(num_targets_ptr + number)
    head64 = head.to(tl.int64)
    k_base = k_ptr + new_start * strides.k.row + head64 * strides.k.head
    v_base = v_ptr + new_start * strides.v.row + head64 * strides.v.head
    q = load_rows(
        q_ptr + new_start * strides.q.row + head64 * strides.q.head,
        start,
        new,
        strides.q.row,
        DIM,
        BLOCK_M,
        BLOCK_D,
        WHOLE=False,
    )
    last = tl.minimum(start + BLOCK_M, new) - 1
    end = (tl.minimum(last + 1, seen) + BLOCK_N - 1) // BLOCK_N
    own = end
    count = end
    if META.HAS_TARGETS:
        # The tile in which the history ends counts as a history tile, with the candidates in it.
        own = tl.maximum(tl.maximum(start, seen) // BLOCK_N, end)
        count += tl.maximum(tl.where(last >= seen, last // BLOCK_N + 1 - own, 0), 0)
    # This program's share: tiles [low, high) of the list above.
    full = cached // BLOCK_N
    tail = (cached + BLOCK_N - 1) // BLOCK_N
    share = (tail + count + splits - 1) // splits
    low = split * share
    high = low + share

    cache = Cache(pool_ptr=pool_ptr, pool_desc=pool_desc, pool_row=strides.pool, head=head, keys=cached)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first = tl.minimum(low, full)
    stop = tl.minimum(high, full)
    # A tile's page id is loaded one step ahead, so that the load of the tile does not wait for it.
    page = tl.load(pages_ptr + first * BLOCK_N // PAGE, mask=first < tail, other=0)
    if META.AHEAD:
        if first < stop:
            k = load_cached(cache, page, first * BLOCK_N, KEYS, META, WHOLE=True)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            weights = silu(scores, half_alpha, META.APPROXIMATE).to(q.dtype)
            following = tl.load(pages_ptr + (first + 1) * BLOCK_N // PAGE, mask=first + 1 < stop, other=0)
            for at in tl.range(first * BLOCK_N, (stop - 1) * BLOCK_N, BLOCK_N, disable_licm=True):
                next_page = tl.load(pages_ptr + (at + BLOCK_N) // PAGE)
                next_following = tl.load(pages_ptr + tl.minimum(at + 2 * BLOCK_N, (stop - 1) * BLOCK_N) // PAGE)
                k = load_cached(cache, following, at + BLOCK_N, KEYS, META, WHOLE=True)
                scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                v = load_cached(cache, page, at, VALUES, META, WHOLE=True)
                acc = tl.dot(weights, v, acc, input_precision=PRECISION)
                # Overlaps with the product above, which is not waited for until this is done.
                weights = silu(scores, half_alpha, META.APPROXIMATE).to(v.dtype)
                page = next_page
                following = next_following
            v = load_cached(cache, page, (stop - 1) * BLOCK_N, VALUES, META, WHOLE=True)
            acc = tl.dot(weights, v, acc, input_precision=PRECISION)
    else:
        for at in tl.range(first * BLOCK_N, stop * BLOCK_N, BLOCK_N, disable_licm=True):
            k = load_cached(cache, page, at, KEYS, META, WHOLE=True)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            v = load_cached(cache, page, at, VALUES, META, WHOLE=True)
            page = tl.load(pages_ptr + tl.minimum(at + BLOCK_N, (stop - 1) * BLOCK_N) // PAGE)
            weights = silu(scores, half_alpha, META.APPROXIMATE).to(v.dtype)
            acc = tl.dot(weights, v, acc, input_precision=PRECISION)

    if (full < tail) & (low <= full) & (full < high):
        page = tl.load(pages_ptr + full * BLOCK_N // PAGE)
        k = load_cached(cache, page, full * BLOCK_N, KEYS, META, WHOLE=False)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        v = load_cached(cache, page, full * BLOCK_N, VALUES, META, WHOLE=False)
        weights = silu(scores, half_alpha, META.APPROXIMATE).to(v.dtype)
        acc = tl.dot(weights, v, acc, input_precision=PRECISION)

    rows = start + tl.arange(0, BLOCK_M)[:, None]
    first = tl.maximum(low - tail, 0)
    stop = tl.minimum(high - tail, count)
    for index in tl.range(first, stop, num_stages=META.NEW_STAGES, disable_licm=True):
        # Tiles of the new history, then the rows' own candidates.
        at = tl.where(index < end, index, own + index - end) * BLOCK_N
        k = load_rows(k_base, at, new, strides.k.row, DIM, BLOCK_N, BLOCK_D, WHOLE=False)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        v = load_rows(v_base, at, new, strides.v.row, DIM, BLOCK_N, BLOCK_D, WHOLE=False)
        see = sees(
            rows,
            at + tl.arange(0, BLOCK_N)[None, :],
            prefix=0,
            seen=seen,
            window=0,
            CAUSAL=True,
            HAS_PREFIX=False,
            HAS_TARGETS=META.HAS_TARGETS,
            HAS_WINDOW=False,
        )
        weights = tl.where(see, silu(scores, half_alpha, META.APPROXIMATE), 0.0).to(v.dtype)
        acc = tl.dot(weights, v, acc, input_precision=PRECISION)

    out_base = (
        out_ptr + split.to(tl.int64) * strides.out.split + new_start * strides.out.row + head64 * strides.out.head
    )
    store_rows(
        base=out_base,
        first=start,
        count=new,
        stride=strides.out.row,
        tile=acc * scale,
        DIM=DIM,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_D,
    )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_paged_append(
    q_ptr,
    k_ptr,
    v_ptr,
    pool_ptr,
    offsets_ptr,
    cached_ptr,
    indptr_ptr,
    indices_ptr,
    num_targets_ptr,
    strides,
    tiles,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write keys and values of one head of a tile of new history rows into their pages; candidates are not written.

    With SILU, SiLU is applied to queries, keys and values of all new rows, in place and in the pages.
    """
    number = tl.program_id(0) // tiles
    first = tl.program_id(0) % tiles * BLOCK
    head = tl.program_id(1).to(tl.int64)
    start = tl.load(offsets_ptr + number).to(tl.int64)
    count = (tl.load(offsets_ptr + number + 1) - start).to(tl.int32)
    cached = tl.load(cached_ptr + number)
    pages_ptr = indices_ptr + tl.load(indptr_ptr + number)
    history = count
    if HAS_TARGETS:
        history -= tl.load(num_targets_ptr + number)
    if not SILU:
        count = history
    if first >= count:
        return
    k_base = k_ptr + start * strides.k.row + head * strides.k.head
    v_base = v_ptr + start * strides.v.row + head * strides.v.head
    k = load_rows(k_base, first, count, strides.k.row, DIM, BLOCK, BLOCK_D, WHOLE=False)
    v = load_rows(v_base, first, count, strides.v.row, DIM, BLOCK, BLOCK_D, WHOLE=False)
    rows = first + tl.arange(0, BLOCK)
    dims = tl.arange(0, BLOCK_D)
    if SILU:
        q_base = q_ptr + start * strides.q.row + head * strides.q.head
        q = load_rows(q_base, first, count, strides.q.row, DIM, BLOCK, BLOCK_D, WHOLE=False)
    page = tl.load(pages_ptr + (cached + rows) // PAGE, mask=rows < history, other=0).to(tl.int64)
    if SILU:
        k = silu(k.to(tl.float32), 0.5, APPROXIMATE=False).to(k.dtype)
        v = silu(v.to(tl.float32), 0.5, APPROXIMATE=False).to(v.dtype)
        q = silu(q.to(tl.float32), 0.5, APPROXIMATE=False).to(q.dtype)
        store_rows(
            base=k_base, first=first, count=count, stride=strides.k.row, tile=k, DIM=DIM, BLOCK=BLOCK, BLOCK_DIM=BLOCK_D
        )
        store_rows(
            base=v_base, first=first, count=count, stride=strides.v.row, tile=v, DIM=DIM, BLOCK=BLOCK, BLOCK_DIM=BLOCK_D
        )
        store_rows(
            base=q_base, first=first, count=count, stride=strides.q.row, tile=q, DIM=DIM, BLOCK=BLOCK, BLOCK_DIM=BLOCK_D
        )
    slot = page * (2 * PAGE) + (cached + rows) % PAGE
    to = (pool_ptr + head * DIM) + (slot[:, None] * strides.pool + dims[None, :])
    mask = (rows < history)[:, None] & (dims < DIM)[None, :]
    tl.store(to, k, mask=mask)
    tl.store(to + tl.cast(PAGE, tl.int64) * strides.pool, v, mask=mask)


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
    """Compute `out` [T, H, D] with the portable kernel, or with a workspace the partial sums in it.

    Args:
        q: [T, H, D], last dim contiguous, also for k and v.
        k: like q.
        v: like q.
        pool: [pages, 2, page_size, H, D], contiguous.
        out: like q, contiguous; every row of a sequence is written.
        step: sequences and pages, already checked.
        config: tiles and code path.
        alpha: factor of the scores.
        scaling_seqlen: divisor of the outputs.
        splits: into how many parts the keys are split, from 1.
        workspace: fp32, shaped as `dense.parts.workspace_shape`; None if `splits` is 1.
    """
    _, heads, dim = q.shape
    tiles = -(-step.max_new // config.block_m)
    page_size = pool.shape[2]
    block_d = block_of(dim)
    tma = config.loads == "tma" and _takes_tma(pool)
    described = descriptor(pool.view(-1, heads, dim), config.block_n, block_d) if tma else None
    if workspace is None:
        target, to = out, SplitStrides(split=0, row=heads * dim, head=dim)
    else:
        row, split, head = workspace.stride()[:3]
        target, to = workspace, SplitStrides(split=split, row=row, head=head)
    launch(
        hstu_paged_forward,
        (tiles * step.batch * heads * splits,),
        q_ptr=q,
        k_ptr=k,
        v_ptr=v,
        pool_ptr=pool,
        out_ptr=target,
        pool_desc=described,
        offsets_ptr=step.offsets,
        cached_ptr=step.cached,
        indptr_ptr=step.indptr,
        indices_ptr=step.indices,
        num_targets_ptr=step.num_targets,
        strides=ForwardStrides(q=RowStrides.of(q), k=RowStrides.of(k), v=RowStrides.of(v), pool=heads * dim, out=to),
        half_alpha=alpha / 2,
        scale=1 / scaling_seqlen if workspace is None else 1.0,
        heads=heads,
        tiles=tiles,
        splits=splits,
        META=ForwardMeta(
            DIM=dim,
            BLOCK_D=block_d,
            PAGE=page_size,
            HAS_TARGETS=step.num_targets is not None,
            TMA=tma,
            **config.flags(),
        ),
        num_warps=config.warps,
        num_stages=config.stages,
    )


def _takes_tma(pool: Tensor) -> bool:
    """Whether the pool can be read by TMA."""
    capability = capability_of(pool)
    aligned = pool.data_ptr() % 16 == 0 and pool.shape[4] * pool.element_size() % 16 == 0
    return (capability is None or capability >= (9, 0)) and aligned and pool.numel() > 0


def launch_append(k: Tensor, v: Tensor, pool: Tensor, step: Step, *, silu_with: Tensor | None = None) -> None:
    """Write the new history of k and v [T, H, D] into the pages of `pool`, without synchronizing with the device.

    Args:
        k: [T, H, D], last dim contiguous, as v.
        v: like k.
        pool: [pages, 2, page_size, H, D], contiguous.
        step: sequences, and pages for cached and new history; already checked.
        silu_with: queries like k: SiLU is applied in place to them, k and v first; None: only the pool is written.
    """
    _, heads, dim = k.shape
    tiles = -(-step.max_new // APPEND_ROWS)
    if tiles * step.batch * heads == 0:
        return
    q = k if silu_with is None else silu_with
    launch(
        hstu_paged_append,
        (tiles * step.batch, heads),
        q_ptr=q,
        k_ptr=k,
        v_ptr=v,
        pool_ptr=pool,
        offsets_ptr=step.offsets,
        cached_ptr=step.cached,
        indptr_ptr=step.indptr,
        indices_ptr=step.indices,
        num_targets_ptr=step.num_targets,
        strides=AppendStrides(q=RowStrides.of(q), k=RowStrides.of(k), v=RowStrides.of(v), pool=heads * dim),
        tiles=tiles,
        DIM=dim,
        BLOCK_D=block_of(dim),
        PAGE=pool.shape[2],
        HAS_TARGETS=step.num_targets is not None,
        SILU=silu_with is not None,
        BLOCK=APPEND_ROWS,
        num_warps=4,
    )
