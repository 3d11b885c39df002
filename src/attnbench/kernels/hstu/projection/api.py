"""The wide product of an HSTU layer with bias, SiLU and append, in one launch; forward only.

    [u, v, q, k] = x Wᵀ + b          of the paper's layer then SiLU of v, q and k; u's is the gate's
    8 rows · dim · heads · head dim FLOPs

It stands for a product of cuBLAS, `hstu.layer.silu` and `hstu_paged_append`: results are rounded to the precision of x
behind the bias, and again behind SiLU, as by these three.  The product's sum is in fp32 but in another order than
cuBLAS's, so single results are another rounding.  Pages have the bits of the keys and values that are returned.  With one
configuration a row's bits depend on no other row; the default follows from the number of rows.
bf16, fp16 and fp32; nothing waits for the device, so a call can be captured in a CUDA graph.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attnbench.kernels.hstu.paged.calls import bounds_of, step_of, table_of
from attnbench.kernels.hstu.paged.problem import DTYPES, Step, check_step, wrong
from attnbench.kernels.hstu.projection.config import ProjectionConfig, default_config
from attnbench.kernels.hstu.projection.portable import hstu_projection, launch_projection
from attnbench.kernels.shared.card import capability_of, processors, takes_compiled
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of, rows_in

__all__ = ["Projected", "ProjectionConfig", "project"]

WHO = "hstu_project"
LARGEST = 2**24
"Columns of x, and of the product."
LARGEST_GRID = 2**31


class Projected(NamedTuple):
    """Parts of one tensor [rows, 4 heads · dim]."""

    u: Tensor
    "[rows, heads · dim]"
    q: Tensor
    "[rows, heads, dim], as k and v"
    k: Tensor
    v: Tensor


def project(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    heads: int,
    silu: bool = True,
    pool: Tensor | None = None,
    step: Step | None = None,
    config: ProjectionConfig | str | None = None,
    early: bool = False,
) -> Projected:
    """The wide product of a layer, and keys and values of the new history into their pages; candidates' never.

    Args:
        x: [rows, dim], normalised, contiguous.  Rows behind those of the step's sequences are computed too, and go to
            no page.
        weight: [4 heads · head dim, dim], contiguous: columns u, v, q, k of the product.
        bias: [4 heads · head dim].
        heads: of queries, keys and values.
        silu: whether v, q and k are SiLU of the product (the paper's layer); u never is.
        pool: [pages, 2, page_size, heads, head dim] of this layer, contiguous; changed.  None: there are no pages.
        step: sequences, and pages for cached and new history; given where the pool is.
        config: launch configuration, or its short form, such as "m128n128k64w8s4-tma"; None: the default.  One that is
            given is never replaced by another.
        early: launch it while the kernel before it on this stream runs, where loads are by the tensor memory accelerator:
            until that has ended it only brings weights to the L2 (`hstu.layer`'s norm lets it go when told to lead).

    Returns:
        u, q, k and v.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.
    """
    silu, early, table = bool(silu), bool(early), table_of(step)  # type: ignore[arg-type]  # None has no tensors
    tensors, bounds = (x, weight, bias, pool, *table), bounds_of(step)  # type: ignore[arg-type]
    key = facts_of(*tensors, jagged=JAGGED), exact(*bounds, heads, silu, config, early)
    launches = _calls.get(key)
    if launches is None:
        _check(x, weight, bias, heads)
        _check_pages(x, weight, heads, pool, step)
        config = _named(config)
        if config is not None:
            _check_config(config, x, weight)
        launches = _calls.keep(key, Launches(partial(_run, config, silu, early, bounds if step is not None else None)))
    (out,) = launches(*tensors)
    assert out is not None
    wide = out.shape[1] // 4
    u, *vqk = out.split(wide, dim=1)
    v, q, k = (part.view(-1, heads, wide // heads) for part in vqk)
    return Projected(u=u, q=q, k=k, v=v)


JAGGED = (0, 7)
"Of the tensors of a call those with other rows in every step, by place: x, and the entries of `indices`."
_calls: Kept[Launches] = Kept()


def _run(
    config: ProjectionConfig | None,
    silu: bool,
    early: bool,
    bounds: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    pool: Tensor | None,
    *table: Tensor | None,
) -> Results:
    out = empty((rows_in(x), weight.shape[0]), x)
    if out.numel():
        step = None if bounds is None else step_of(bounds, table)
        found = _default(x, weight) if config is None else config
        early = early and found.loads == "tma" and isinstance(hstu_projection, triton.JITFunction)
        launch_projection(x, weight, bias, out, pool, step, found, silu=silu, early=early)
    return (out,)


def _default(x: Tensor, weight: Tensor) -> ProjectionConfig:
    compiled = isinstance(hstu_projection, triton.JITFunction)
    capability = (capability_of(x) if compiled else None) or (0, 0)
    columns, tma = weight.shape[0], _takes_tma(x) and _takes_tma(weight)
    return default_config(capability, x.element_size(), rows_in(x), columns, processors(x), tma=tma)


def _takes_tma(x: Tensor) -> bool:
    """Whether the tensor memory accelerator can read a matrix."""
    return x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0


def _check(x: Any, weight: Any, bias: Any, heads: Any) -> None:
    for name, given, dims in (("x", x, 2), ("weight", weight, 2), ("bias", bias, 1)):
        if not isinstance(given, Tensor):
            raise wrong(WHO, name, repr(given)[:40], f"is of type {type(given).__name__}", "a tensor")
        if given.dim() != dims:
            raise wrong(WHO, f"{name}.shape", tuple(given.shape), "does not fit", f"{dims} dims")
        if given.dtype not in DTYPES or given.dtype != x.dtype:
            raise wrong(WHO, f"{name}.dtype", given.dtype, "does not fit", "bfloat16, float16 or float32, all the same")
        if not given.is_contiguous():
            raise wrong(WHO, f"{name}.stride", given.stride(), "has gaps", "rows one after another")
        if given.device != x.device:
            raise wrong(WHO, f"{name}.device", given.device, "does not fit", str(x.device))
    columns, dim = weight.shape
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1:
        raise wrong(WHO, "heads", repr(heads)[:40], "cannot be used", "a whole number from 1")
    if not columns or columns % (4 * heads) or columns > LARGEST:
        raise wrong(WHO, "weight.shape", (columns, dim), "does not fit", f"4 · {heads} heads of equal dims")
    if not 1 <= dim <= LARGEST or columns * dim >= 2**31:
        raise wrong(WHO, "weight.shape", (columns, dim), "does not fit", "1 to 2**31 numbers")
    if x.shape[1] != dim:
        raise wrong(WHO, "x.shape", tuple(x.shape), "does not fit", f"[rows, {dim}], as of the weight")
    if len(x) * columns >= LARGEST_GRID:
        raise wrong(WHO, "x.shape", tuple(x.shape), "has too many rows", f"under 2**31 results of {columns} columns")
    if tuple(bias.shape) != (columns,):
        raise wrong(WHO, "bias.shape", tuple(bias.shape), "does not fit", str((columns,)))
    _check_device(x)


def _check_device(x: Tensor) -> None:
    if isinstance(hstu_projection, triton.JITFunction) and not takes_compiled(x):
        raise wrong(WHO, "x.device", x.device, "has no compiled kernels", "a CUDA device")


def _check_pages(x: Tensor, weight: Tensor, heads: int, pool: Any, step: Any) -> None:
    if (pool is None) != (step is None):
        missing, there = ("pool", "step") if pool is None else ("step", "pool")
        raise wrong(WHO, missing, None, f"does not fit a {there}", "both or neither")
    if pool is not None:
        # Keys as they will be: shape, precision and place are asked of them.
        check_step(WHO, {"k": x.new_empty(len(x), heads, weight.shape[0] // 4 // heads)}, pool, step)


def _named(config: Any) -> ProjectionConfig | None:
    if isinstance(config, str):
        try:
            return ProjectionConfig.parse(config)
        except ValueError as why:
            said, _, accepted = str(why).partition("; ")
            raise wrong(WHO, "config", config, said, accepted or f"such as {ProjectionConfig.EXAMPLE}") from None
    if config is not None and not isinstance(config, ProjectionConfig):
        accepted = "a ProjectionConfig, its short form, or None"
        raise wrong(WHO, "config", repr(config)[:40], f"is of type {type(config).__name__}", accepted)
    return config


def _check_config(config: ProjectionConfig, x: Tensor, weight: Tensor) -> None:
    if config.loads != "tma":
        return
    capability = capability_of(x)
    if capability is not None and capability < (9, 0):
        raise wrong(WHO, "config.loads", "tma", f"is not there on sm_{capability[0]}{capability[1]}", "pointer")
    if x.dtype == torch.float32:
        raise wrong(WHO, "config.loads", "tma", "takes no fp32, which is multiplied exactly", "pointer")
    for name, given in (("x", x), ("weight", weight)):
        if given.numel() and not _takes_tma(given):
            said = "is no multiple of 16 bytes, as loads=tma needs"
            raise wrong(WHO, f"{name}.stride", given.stride(), said, "an aligned tensor, or loads=pointer")
