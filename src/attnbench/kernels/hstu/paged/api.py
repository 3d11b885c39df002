"""HSTU attention of a serving step over a paged cache, and the append to it.

    with c cached keys, m new history rows and T candidates of a sequence:
    history row i sees the cached keys and the new ones up to itself; a candidate all c + m keys and itself
    O = SiLU(α Q Kᵀ) ∘ M · V / scaling_seqlen

`problem` says how pages and sequences are given.  With P = m c + m (m + 1) / 2 + T (c + m + 1) visible pairs of a
sequence and head the forward is 4 P D FLOPs.  Workspace: none, or fp32 [T, splits, H, D] where keys are split.
Takes bf16, fp16 and fp32, dims 1 to 256, pages of 32, 64 and 128 keys.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from attnbench.kernels.hstu.paged.configs import (
    PagedConfig,
    default_config,
    hopper_config,
    hopper_fault,
    nearest_config,
)
from attnbench.kernels.hstu.paged.forward import launch_forward, programs_of, splits_of, workspace_shape
from attnbench.kernels.hstu.paged.portable import hstu_paged_forward, launch_append
from attnbench.kernels.hstu.paged.problem import PAGE_SIZES, Step, check_step, check_values, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled
from attnbench.kernels.shared.hopper import is_rows
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of

__all__ = [
    "PAGE_SIZES",
    "PagedConfig",
    "Step",
    "default_forward",
    "hstu_paged_append",
    "hstu_paged_attention",
    "launch_append",
    "launch_forward",
    "splits_of",
    "workspace_shape",
]

LARGEST_GRID = 2**31
"Programs along the first axis of a grid (CUDA programming guide, compute capabilities)."
ATTENTION, APPEND = "hstu_paged_attention", "hstu_paged_append"


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
    tensors, bounds = (q, k, v, pool, *_table(step)), _bounds(step)
    key = facts_of(*tensors), exact(*bounds, scaling_seqlen, alpha, splits, config)
    launches = _attentions.get(key)
    if launches is None or validate:
        check_step(ATTENTION, {"q": q, "k": k, "v": v}, pool, step)
        _check_numbers(scaling_seqlen, alpha, splits)
        if validate:
            check_values(ATTENTION, q.shape[0], pool, step, appends=False)
        _check_device(ATTENTION, q)
        config = _named(config) if isinstance(config, str) else config
        config = default_forward(q, k, v, pool) if config is None else config
        _check_config(config, q, k, v, pool)
        splits = splits_of(q, step, config) if splits is None else splits
        if (programs := programs_of(q, step, config, splits)) >= LARGEST_GRID:
            raise wrong(ATTENTION, "splits", splits, f"gives {programs} programs", f"under {LARGEST_GRID}")
        alpha = q.shape[2] ** -0.5 if alpha is None else alpha
        numbers = {"alpha": alpha, "scaling_seqlen": scaling_seqlen, "splits": splits}
        launches = _attentions.keep(key, Launches(partial(_run_attention, bounds, config, numbers)))
    (out,) = launches(*tensors)
    assert out is not None
    return out


_attentions: Kept[Launches] = Kept()
_appends: Kept[Launches] = Kept()
TABLE = ("offsets", "cached", "indptr", "indices", "num_targets")
"Fields of a `Step` that are tensors."


def _table(step: Step) -> tuple[Tensor | None, ...]:
    return tuple(getattr(step, name, None) for name in TABLE)


def _bounds(step: Step) -> tuple[int, int]:
    return getattr(step, "max_new", -1), getattr(step, "max_cached", -1)


def _step_of(bounds: tuple[int, int], table: tuple[Any, ...]) -> Step:
    return Step(**dict(zip(TABLE, table, strict=True)), max_new=bounds[0], max_cached=bounds[1])


def _run_attention(
    bounds: tuple[int, int],
    config: PagedConfig,
    numbers: dict[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    *table: Tensor | None,
) -> Results:
    out = empty(q.shape, q)
    shape = workspace_shape(q, numbers["splits"])
    workspace = None if shape is None else empty(shape, q, torch.float32)
    launch_forward(q, k, v, pool, out, _step_of(bounds, table), config, workspace=workspace, **numbers)
    return (out,)


def _run_append(bounds: tuple[int, int], k: Tensor, v: Tensor, pool: Tensor, *table: Tensor | None) -> Results:
    launch_append(k, v, pool, _step_of(bounds, table))
    return ()


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
    tensors, bounds = (k, v, pool, *_table(step)), _bounds(step)
    key = facts_of(*tensors), exact(*bounds)
    launches = _appends.get(key)
    if launches is None or validate:
        check_step(APPEND, {"k": k, "v": v}, pool, step)
        if validate:
            check_values(APPEND, k.shape[0], pool, step, appends=True)
        _check_device(APPEND, k)
        launches = _appends.keep(key, Launches(partial(_run_append, bounds)))
    launches(*tensors)


def _check_numbers(scaling_seqlen: int, alpha: float | None, splits: int | None) -> None:
    if type(scaling_seqlen) is not int or scaling_seqlen < 1:
        raise wrong(ATTENTION, "scaling_seqlen", repr(scaling_seqlen), "cannot be used", "a whole number from 1")
    if splits is not None and (type(splits) is not int or not 1 <= splits <= 1024):
        raise wrong(ATTENTION, "splits", repr(splits), "cannot be used", "a whole number from 1 to 1024, or None")
    if alpha is not None and (
        isinstance(alpha, bool) or not isinstance(alpha, int | float) or not -float("inf") < alpha < float("inf")
    ):
        raise wrong(ATTENTION, "alpha", repr(alpha)[:40], "cannot be used", "a finite number, or None")


def default_forward(q: Tensor, k: Tensor, v: Tensor, pool: Tensor) -> PagedConfig:
    """Default for these tensors on their card: of the kernel for Hopper if that takes them, else the portable."""
    shape = _capability(q), q.element_size(), q.shape[2], pool.shape[2]
    hopper = hopper_config(*shape) if all(map(is_rows, (q, k, v, pool.flatten(0, 2)))) else None
    return hopper or default_config(*shape)


def _check_config(config: Any, q: Tensor, k: Tensor, v: Tensor, pool: Tensor) -> None:
    if not isinstance(config, PagedConfig):
        raise wrong(
            ATTENTION,
            "config",
            repr(config)[:40],
            f"is of type {type(config).__name__}",
            "a PagedConfig, its short form, or None",
        )
    if not config.hopper:
        if config.block_n > pool.shape[2]:
            raise wrong(
                ATTENTION,
                "config.block_n",
                config.block_n,
                f"is over the {pool.shape[2]} keys of a page",
                "tiles in one page",
            )
        return
    fault = hopper_fault(config, capability=capability_of(q), item_bytes=q.element_size(), dim=q.shape[2])
    if fault:
        raise wrong(ATTENTION, "config.order", config.order, fault, "another order")
    for name, x in (("q", q), ("k", k), ("v", v), ("pool", pool.flatten(0, 2))):
        if x.numel() and not is_rows(x):
            raise wrong(
                ATTENTION,
                f"{name}.stride",
                x.stride(),
                "is no multiple of 16 bytes, as order=ws needs",
                "an aligned tensor, or another order",
            )


def _named(text: str) -> PagedConfig:
    try:
        return PagedConfig.parse(text)
    except ValueError as why:
        said, _, accepted = str(why).partition("; ")
        raise wrong(
            ATTENTION, "config", text, said, f"{accepted}; the nearest valid one is {nearest_config(text)}"
        ) from None


def _check_device(who: str, x: Tensor) -> None:
    if isinstance(hstu_paged_forward, triton.JITFunction) and not takes_compiled(x):
        raise wrong(who, "pool.device", x.device, "has no compiled kernels", "a CUDA device")


def _capability(x: Tensor) -> tuple[int, int]:
    compiled = isinstance(hstu_paged_forward, triton.JITFunction)
    return (capability_of(x) if compiled else None) or (0, 0)
