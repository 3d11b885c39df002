"""Calls of the paged HSTU kernels: checks, configurations, and the cached launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.paged.configs import (
    PagedConfig,
    default_config,
    hopper_config,
    hopper_fault,
    nearest_config,
)
from attnbench.kernels.hstu.paged.forward import launch_forward, programs_of, splits_of, workspace_shape
from attnbench.kernels.hstu.paged.portable import APPEND_ROWS, hstu_paged_forward, launch_append
from attnbench.kernels.hstu.paged.problem import LARGEST_COUNT, Step, check_step, check_values, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled
from attnbench.kernels.shared.hopper import is_rows
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of, rows_in
from attnbench.kernels.shared.limits import LARGEST_FACTOR, as_float, check_flags, is_whole
from attnbench.kernels.shared.tiling import block_of

LARGEST_GRID = 2**31
"Limit of programs along the first axis of a grid (CUDA programming guide, compute capabilities)."
ATTENTION, APPEND, SILU_APPEND = "hstu_paged_attention", "hstu_paged_append", "hstu_paged_silu_append"


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    step: Step,
    scaling_seqlen: int,
    alpha: float | None,
    splits: int | None,
    config: PagedConfig | str | None,
    *,
    validate: bool = False,
) -> Tensor:
    """The output for arguments as of `hstu_paged_attention`; a call seen before is repeated, a new one is checked.

    Raises:
        ValueError: as `hstu_paged_attention` says.
    """
    found = _attended(
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
    assert isinstance(found, Tensor)
    return found


def attend_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    step: Step,
    scaling_seqlen: int,
    alpha: float | None,
    splits: int | None,
    config: PagedConfig | str | None,
) -> Tensor | Parts:
    """The same, but where keys are split it returns the parts, not their sum.

    Raises:
        ValueError: as `hstu_paged_attention` says.
    """
    return _attended(
        q=q,
        k=k,
        v=v,
        pool=pool,
        step=step,
        scaling_seqlen=scaling_seqlen,
        alpha=alpha,
        splits=splits,
        config=config,
        summed=False,
    )


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    step: Step,
    scaling_seqlen: int,
    alpha: float | None,
    splits: int | None,
    config: PagedConfig | str | None,
    *,
    summed: bool = True,
    validate: bool = False,
) -> Tensor | Parts:
    tensors, bounds = (q, k, v, pool, *table_of(step)), bounds_of(step)
    key = facts_of(*tensors, jagged=JAGGED), exact(*bounds, scaling_seqlen, alpha, splits, config), summed
    call = _attentions.get(key)
    if call is None or validate is not False:
        check_flags(ATTENTION, validate=validate)
        check_step(ATTENTION, {"q": q, "k": k, "v": v}, pool, step)
        check_numbers(scaling_seqlen, alpha, splits)
        if validate:
            check_values(ATTENTION, q.shape[0], pool, step, appends=False)
        check_device(ATTENTION, q)
        config = named(config) if isinstance(config, str) else config
        config = default_forward(q, k, v, pool) if config is None else config
        _check_config(config, q, k, v, pool)
        splits = splits_of(q, step, config) if splits is None else splits
        if (programs := programs_of(q, step, config, splits)) >= LARGEST_GRID:
            raise wrong(ATTENTION, "splits", splits, f"gives {programs} programs", f"under {LARGEST_GRID}")
        alpha = q.shape[2] ** -0.5 if alpha is None else float(alpha)
        numbers = {"alpha": alpha, "scaling_seqlen": scaling_seqlen, "splits": splits}
        # In the parts a head is padded to its tile's columns; only the sum kernel packs narrower heads.
        parts = not summed and splits > 1 and block_of(q.shape[2]) == q.shape[2]
        run = partial(_run_attention, bounds, config, numbers, parts)
        call = _attentions.keep(key, _Attention(Launches(run), parts, config.hopper))
    (out,) = call.launches(*tensors)
    assert out is not None
    return Parts(out, 1 / scaling_seqlen, call.hopper) if call.parts else out


class _Attention(NamedTuple):
    """A cached call."""

    launches: Launches
    parts: bool
    "whether it returns the parts of the output"
    hopper: bool
    "whether they come from the Hopper kernel"


def append(
    k: Tensor, v: Tensor, pool: Tensor, step: Step, *, silu_with: Tensor | None = None, validate: bool = False
) -> None:
    """Append by a cached call, or by a new one that is checked; `silu_with`: the q of `hstu_paged_silu_append`.

    Raises:
        ValueError: as `hstu_paged_append` says.
    """
    tensors, bounds = (k, v, pool, silu_with, *table_of(step)), bounds_of(step)
    key = facts_of(*tensors, jagged=APPENDED), _appended(bounds)
    launches = _appends.get(key)
    if launches is None or validate is not False:
        check_flags(APPEND, validate=validate)
        given = {"k": k, "v": v} if silu_with is None else {"q": silu_with, "k": k, "v": v}
        check_step(APPEND if silu_with is None else SILU_APPEND, given, pool, step)
        for name, x in given.items() if silu_with is not None else ():
            if any(extent > 1 and not apart for extent, apart in zip(x.shape, x.stride(), strict=True)):
                said = "has overlapping rows", "rows that do not overlap, as they are overwritten"
                raise wrong(SILU_APPEND, f"{name}.stride", x.stride(), *said)
        if validate:
            check_values(APPEND, k.shape[0], pool, step, appends=True)
        check_device(APPEND, k)
        launches = _appends.keep(key, Launches(partial(_run_append, bounds)))
    launches(*tensors)


_attentions: Kept[_Attention] = Kept()
_appends: Kept[Launches] = Kept()


class StepTensors(NamedTuple):
    """Fields of a `Step` that are tensors."""

    offsets: Tensor
    cached: Tensor
    indptr: Tensor
    indices: Tensor
    num_targets: Tensor | None


JAGGED, APPENDED = (
    tuple(place for place, name in enumerate((*given, *StepTensors._fields)) if name in ("q", "k", "v", "indices"))
    for given in (("q", "k", "v", "pool"), ("k", "v", "pool", "q"))
)
"Positions, in the arguments of both calls, of the tensors whose length differs from step to step."


class StepBounds(NamedTuple):
    """Fields of a `Step` that are numbers."""

    max_new: int
    max_cached: int


def table_of(step: Step) -> tuple[Tensor | None, ...]:
    """Tensors of a step, in the order of `StepTensors`; None for what the object does not have."""
    return tuple(getattr(step, name, None) for name in StepTensors._fields)


def bounds_of(step: Step) -> StepBounds:
    """Bounds of a step; -1 for what the object does not have."""
    return StepBounds(*(getattr(step, name, -1) for name in StepBounds._fields))


def step_of(bounds: StepBounds, table: Sequence[Any]) -> Step:
    """The step of these bounds, and of tensors as in `StepTensors`."""
    return Step(**StepTensors(*table)._asdict(), **bounds._asdict())


def _run_attention(
    bounds: StepBounds,
    config: PagedConfig,
    numbers: dict[str, Any],
    parts: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    *table: Tensor | None,
) -> Results:
    out = None if parts else empty((rows_in(q), *q.shape[1:]), q)
    shape = workspace_shape(q, numbers["splits"])
    workspace = None if shape is None else empty((rows_in(q), *shape[1:]), q, torch.float32)
    launch_forward(q, k, v, pool, out, step_of(bounds, table), config, workspace=workspace, **numbers)
    return (workspace if parts else out,)


def _appended(bounds: StepBounds) -> object:
    """What the launch of an append depends on: its tiles of new rows; of invalid bounds, the bounds themselves."""
    if all(is_whole(bound) and 0 <= bound <= LARGEST_COUNT for bound in bounds):
        return -(-bounds.max_new // APPEND_ROWS)
    return exact(*bounds)


def _run_append(
    bounds: StepBounds, k: Tensor, v: Tensor, pool: Tensor, silu_with: Tensor | None, *table: Tensor | None
) -> Results:
    launch_append(k, v, pool, step_of(bounds, table), silu_with=silu_with)
    return ()


def check_numbers(scaling_seqlen: int, alpha: float | None, splits: int | None) -> None:
    """Refuse numbers that cannot be used.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    if not is_whole(scaling_seqlen) or not 1 <= scaling_seqlen <= LARGEST_COUNT:
        accepted = f"a whole number from 1 to {LARGEST_COUNT}"
        raise wrong(ATTENTION, "scaling_seqlen", repr(scaling_seqlen)[:40], "cannot be used", accepted)
    if splits is not None and (not is_whole(splits) or not 1 <= splits <= 1024):
        raise wrong(ATTENTION, "splits", repr(splits), "cannot be used", "a whole number from 1 to 1024, or None")
    found = 0.0 if alpha is None else as_float(alpha)
    if isinstance(alpha, Tensor) or not isinstance(found, float) or not abs(found) <= LARGEST_FACTOR:
        accepted = f"a number of at most {LARGEST_FACTOR}, or None"
        raise wrong(ATTENTION, "alpha", repr(alpha)[:40], "cannot be used", accepted)


def default_forward(q: Tensor, k: Tensor, v: Tensor, pool: Tensor) -> PagedConfig:
    """Default for these tensors on their card: the Hopper kernel's if it supports them, otherwise the portable one's."""
    shape = _capability(q), q.element_size(), q.shape[2], pool.shape[2]
    hopper = hopper_config(*shape) if all(map(is_rows, (q, k, v, pool.flatten(0, 2)))) else None
    return hopper or default_config(*shape)


def check_config(config: Any, q: Tensor, pool: Tensor) -> None:
    """Refuse a configuration that cannot run on this card, in this precision, or with these dims and pages.

    Raises:
        ValueError: naming the field, its value and what is accepted.
    """
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


def _check_config(config: Any, q: Tensor, k: Tensor, v: Tensor, pool: Tensor) -> None:
    check_config(config, q, pool)
    if not config.hopper:
        return
    for name, x in (("q", q), ("k", k), ("v", v), ("pool", pool.flatten(0, 2))):
        if x.numel() and not is_rows(x):
            raise wrong(
                ATTENTION,
                f"{name}.stride",
                x.stride(),
                "is not a multiple of 16 bytes, as order=ws requires",
                "an aligned tensor, or another order",
            )


def named(text: str) -> PagedConfig:
    """The configuration with this name.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    try:
        return PagedConfig.parse(text)
    except ValueError as why:
        said, _, accepted = str(why).partition("; ")
        raise wrong(
            ATTENTION, "config", text, said, f"{accepted}; the nearest valid one is {nearest_config(text)}"
        ) from None


def check_device(who: str, x: Tensor) -> None:
    """Refuse CPU tensors where the kernels are compiled and not interpreted.

    Raises:
        ValueError: naming the device and what is accepted.
    """
    if isinstance(hstu_paged_forward, triton.JITFunction) and not takes_compiled(x):
        raise wrong(who, "pool.device", x.device, "has no compiled kernels", "a CUDA device")


def _capability(x: Tensor) -> tuple[int, int]:
    compiled = isinstance(hstu_paged_forward, triton.JITFunction)
    return (capability_of(x) if compiled else None) or (0, 0)
