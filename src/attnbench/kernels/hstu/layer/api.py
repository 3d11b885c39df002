"""Elementwise and row-wise operations of an HSTU ranking model, one kernel launch each; forward only.

Computed in fp32, results rounded once.  Tensors are bf16, fp16 or fp32; all tensors of a call share one dtype and one
device; indices are int32.  No call synchronizes with the device, so calls can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.dense.parts import AT_ONCE
from attnbench.kernels.hstu.layer.portable import hstu_embed, hstu_gate, hstu_norm, hstu_pick, hstu_silu, hstu_tower
from attnbench.kernels.shared.card import takes_compiled
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of, launch, rows_in
from attnbench.kernels.shared.limits import as_float, check_flags
from attnbench.kernels.shared.tiling import block_of

__all__ = ["embed", "gate", "norm", "pick", "silu", "tower"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST = 16384
"Most columns of a row: one program holds the whole row in registers."
LARGEST_GRID = 2**31
SILU_BLOCK = 1024
TOWER_ROWS, TOWER_IN, TOWER_OUT = 32, 128, 32
"Most rows, inputs and outputs of a program."


def embed(ids: Tensor, positions: Tensor, table: Tensor, places: Tensor, *, scale: float) -> Tensor:
    """Look up token embeddings, scale them and add position embeddings.

    Args:
        ids: int32 [rows], row numbers in `table`.
        positions: int32 [rows], row numbers in `places`.
        table: [tokens, dim], contiguous.
        places: [positions, dim], contiguous.
        scale: factor of the token embedding.

    Returns:
        [rows, dim].

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    scale, tensors = as_float(scale), (table, ids, positions, places)
    key = "embed", facts_of(*tensors, jagged=(1, 2)), exact(scale)
    launches = _calls.get(key)
    if launches is None:
        _check("hstu_embed", {"table": table, "places": places}, {"ids": ids, "positions": positions}, scale=scale)
        _same("hstu_embed", "places", places.shape[1], table.shape[1])
        _same("hstu_embed", "positions", len(positions), len(ids))
        launches = _calls.keep(key, Launches(partial(_run_embed, scale)))
    return _only(launches(*tensors))


def _run_embed(scale: float, table: Tensor, ids: Tensor, positions: Tensor, places: Tensor) -> Results:
    out = empty((rows_in(ids), table.shape[1]), table)
    if out.numel():
        launch(
            hstu_embed,
            (rows_in(ids),),
            ids_ptr=ids,
            positions_ptr=positions,
            table_ptr=table,
            places_ptr=places,
            out_ptr=out,
            scale=scale,
            **_block(table),
        )
    return (out,)


def norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """LayerNorm of each row.

    Args:
        x: [rows, dim], contiguous.
        weight: [dim].
        bias: [dim].
        eps: added to the variance.

    Returns:
        [rows, dim].

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    eps = as_float(eps)
    key = "norm", facts_of(x, weight, bias, jagged=(0,)), exact(eps)
    launches = _calls.get(key)
    if launches is None:
        _check("hstu_norm", {"x": x, "weight": _row(weight), "bias": _row(bias)}, {}, eps=eps)
        for name, given in (("weight", weight), ("bias", bias)):
            _same("hstu_norm", name, len(given), x.shape[1])
        launches = _calls.keep(key, Launches(partial(_run_norm, eps)))
    return _only(launches(x, weight, bias))


def _run_norm(eps: float, x: Tensor, weight: Tensor, bias: Tensor) -> Results:
    out = empty((rows_in(x), x.shape[1]), x)
    if out.numel():
        launch(hstu_norm, (rows_in(x),), x_ptr=x, weight_ptr=weight, bias_ptr=bias, out_ptr=out, eps=eps, **_block(x))
    return (out,)


def silu(x: Tensor) -> Tensor:
    """SiLU in place.

    Args:
        x: [rows, columns], last dim contiguous; overwritten.

    Returns:
        x.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    key = "silu", facts_of(x, jagged=(0,))
    launches = _calls.get(key)
    if launches is None:
        _check("hstu_silu", {"x": x}, {}, strided="x")
        if len(x) > 1 and x.stride(0) < x.shape[1]:
            raise _wrong(
                "hstu_silu",
                "x.stride",
                x.stride(),
                "has overlapping rows",
                "rows that do not overlap, as x is overwritten",
            )
        launches = _calls.keep(key, Launches(_run_silu))
    launches(x)
    return x


def _run_silu(x: Tensor) -> Results:
    if x.numel():
        grid = rows_in(x), -(-x.shape[1] // SILU_BLOCK)
        launch(hstu_silu, grid, x_ptr=x, row_stride=x.stride(0), columns=x.shape[1], BLOCK=SILU_BLOCK, num_warps=4)
    return ()


def gate(
    a: Tensor | Parts, u: Tensor, weight: Tensor, bias: Tensor, *, eps: float, whole: bool, count: Tensor | None = None
) -> Tensor:
    """LayerNorm of the attention output, gated by SiLU(u): the input of a layer's output product.

    Args:
        a: [rows, dim] output of attention, contiguous; or its parts, which are summed here with bitwise the same result.
        u: [rows, dim], last dim contiguous.
        weight: [dim] of the norm.
        bias: [dim] of the norm.
        eps: of the norm.
        whole: the paper's layer, LN(a) s with s = SiLU(u); otherwise Meta's [s, a, LN(a) s].
        count: int32 [1], how many rows of `a` are valid, from the first; the others are read as 0.  None: all.

    Returns:
        [rows, dim], or [rows, 3 dim] of Meta's layer.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    parts = a if isinstance(a, Parts) else None
    given: Any = a if parts is None else parts.sums
    scale, shuffled = (1.0, False) if parts is None else (parts.scale, parts.shuffled)
    eps, tensors = as_float(eps), (u, given, weight, bias, count)
    key = "gate", facts_of(*tensors, jagged=(0, 1)), exact(eps, whole, parts is None, scale, shuffled)
    launches = _calls.get(key)
    if launches is None:
        check_flags("hstu_gate", whole=whole)
        rows = {"u": u, "weight": _row(weight), "bias": _row(bias)}
        values = rows if parts is not None else {"a": given, **rows}
        _check("hstu_gate", values, {} if count is None else {"count": count}, strided="u", eps=eps, scale=scale)
        if parts is not None:
            _check_parts(given, u)
        if count is not None:
            _same("hstu_gate", "count", len(count), 1)
        for name, x in rows.items():
            _same("hstu_gate", name, x.shape[1], math.prod(given.shape[1 if parts is None else 2 :]))
        _same("hstu_gate", "u", len(u), len(given))
        launches = _calls.keep(key, Launches(partial(_run_gate, eps, whole, scale, shuffled)))
    return _only(launches(*tensors))


def _check_parts(sums: Tensor, u: Tensor) -> None:
    if sums.dtype != torch.float32 or sums.dim() != 4 or not sums.is_contiguous() or sums.device != u.device:
        said = f"{sums.dtype}{list(sums.shape)}"
        raise _wrong("hstu_gate", "a.sums", said, "are no parts", "float32 [rows, parts, heads, dim], contiguous")


def _run_gate(
    eps: float,
    whole: bool,
    scale: float,
    shuffled: bool,
    u: Tensor,
    a: Tensor,
    weight: Tensor,
    bias: Tensor,
    count: Tensor | None,
) -> Results:
    out = empty((rows_in(u), u.shape[1] * (1 if whole else 3)), u)
    if out.numel():
        split = a.dim() == 4
        launch(
            hstu_gate,
            (rows_in(u),),
            a_ptr=a,
            u_ptr=u,
            weight_ptr=weight,
            bias_ptr=bias,
            out_ptr=out,
            count_ptr=count,
            u_row=u.stride(0),
            eps=eps,
            parts=a.shape[1] if split else 1,
            scale=scale,
            WHOLE=whole,
            COUNTED=count is not None,
            SPLIT=split,
            SHUFFLED=shuffled,
            AT_ONCE=AT_ONCE[True],
            **_block(u),
        )
    return (out,)


def pick(x: Tensor, rows: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Gather rows and divide each by its L2 norm.

    Args:
        x: [n, dim], contiguous.
        rows: int32 [rows], row numbers in `x`.
        eps: lower bound of the norm.

    Returns:
        [rows, dim].

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    eps = as_float(eps)
    key = "pick", facts_of(x, rows, jagged=(0, 1)), exact(eps)
    launches = _calls.get(key)
    if launches is None:
        _check("hstu_pick", {"x": x}, {"rows": rows}, eps=eps)
        launches = _calls.keep(key, Launches(partial(_run_pick, eps)))
    return _only(launches(x, rows))


def _run_pick(eps: float, x: Tensor, rows: Tensor) -> Results:
    out = empty((rows_in(rows), x.shape[1]), x)
    if out.numel():
        launch(hstu_pick, (rows_in(rows),), x_ptr=x, rows_ptr=rows, out_ptr=out, eps=eps, **_block(x))
    return (out,)


def tower(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU(x) Wᵀ + b for all towers, each with its own columns of x and its own weights; for layers with few outputs.

    Args:
        x: [rows, towers · inputs], contiguous.
        weight: [towers, outputs, inputs], contiguous.
        bias: [towers, outputs], contiguous.

    Returns:
        [rows, towers · outputs].

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    key = "tower", facts_of(x, weight, bias, jagged=(0,))
    launches = _calls.get(key)
    if launches is None:
        if isinstance(weight, Tensor) and weight.dim() != 3:
            raise _wrong("hstu_tower", "weight.shape", tuple(weight.shape), "does not fit", "[towers, outputs, inputs]")
        flat = weight.flatten(0, 1) if isinstance(weight, Tensor) and weight.is_contiguous() else weight
        _check("hstu_tower", {"x": x, "weight": flat, "bias": bias}, {})
        _same("hstu_tower", "x", x.shape[1], weight.shape[0] * weight.shape[2])
        if bias.shape != weight.shape[:2]:
            raise _wrong("hstu_tower", "bias.shape", tuple(bias.shape), "does not fit", str(tuple(weight.shape[:2])))
        launches = _calls.keep(key, Launches(_run_tower))
    return _only(launches(x, weight, bias))


def _run_tower(x: Tensor, weight: Tensor, bias: Tensor) -> Results:
    towers, outputs, inputs = weight.shape
    out = empty((rows_in(x), towers * outputs), x)
    block_in, block_out = (min(most, block_of(n)) for most, n in ((TOWER_IN, inputs), (TOWER_OUT, outputs)))
    if out.numel():
        launch(
            hstu_tower,
            ((rows_in(x) + (TOWER_ROWS - 1)) // TOWER_ROWS, towers, -(-outputs // block_out)),
            x_ptr=x,
            weight_ptr=weight,
            bias_ptr=bias,
            out_ptr=out,
            rows=rows_in(x),
            IN=inputs,
            OUT=outputs,
            BLOCK=TOWER_ROWS,
            BLOCK_IN=block_in,
            BLOCK_OUT=block_out,
            num_warps=4,
        )
    return (out,)


_calls: Kept[Launches] = Kept()


def _only(results: Results) -> Tensor:
    (out,) = results
    assert out is not None
    return out


def _block(x: Tensor) -> dict[str, int]:
    block = triton.next_power_of_2(x.shape[1])
    return {"DIM": x.shape[1], "BLOCK": block, "num_warps": max(1, min(8, block // 256))}


def _row(x: Any) -> Any:
    """A vector as a matrix of one row; `_check` refuses what is not a tensor."""
    return x[None] if isinstance(x, Tensor) else x


def _check(
    who: str, values: dict[str, Tensor], indices: dict[str, Tensor], strided: str = "", **numbers: object
) -> None:
    for name, x in {**values, **indices}.items():
        if not isinstance(x, Tensor):
            raise _wrong(who, name, repr(x)[:40], f"is of type {type(x).__name__}", "a tensor")
    for name, number in numbers.items():
        if not isinstance(number, float) or not math.isfinite(number) or (name == "eps" and number < 0):
            accepted = "a finite number from 0" if name == "eps" else "a finite number"
            raise _wrong(who, name, repr(number)[:40], "cannot be used", accepted)
    first = next(iter(values.values()))
    for name, x in values.items():
        if x.dim() != 2 or not 1 <= x.shape[1] <= LARGEST:
            raise _wrong(who, f"{name}.shape", tuple(x.shape), "does not fit", f"rows of 1 to {LARGEST} columns")
        if x.dtype not in DTYPES or x.dtype != first.dtype:
            raise _wrong(who, f"{name}.dtype", x.dtype, "does not fit", "bfloat16, float16 or float32, all the same")
        if not (x.is_contiguous() or (name == strided and x.stride(1) == 1)):
            raise _wrong(who, f"{name}.stride", x.stride(), "has gaps", "rows one after another")
    for name, x in indices.items():
        if x.dtype != torch.int32 or x.dim() != 1 or not x.is_contiguous() or len(x) >= LARGEST_GRID:
            raise _wrong(who, name, f"{x.dtype}{list(x.shape)}", "are no indices", "int32 in one dim, contiguous")
    for name, x in {**values, **indices}.items():
        if x.device != first.device:
            raise _wrong(who, f"{name}.device", x.device, "does not fit", str(first.device))
        _check_device(who, name, x)


def _check_device(who: str, name: str, x: Tensor) -> None:
    if not takes_compiled(x) and isinstance(hstu_pick, triton.JITFunction):
        raise _wrong(who, f"{name}.device", x.device, "has no compiled kernels", "a CUDA device")


def _same(who: str, name: str, count: int, wanted: int) -> None:
    if count != wanted:
        raise _wrong(who, f"{name}.shape", count, "does not fit", str(wanted))


def _wrong(who: str, name: str, value: object, why: str, accepted: str) -> ValueError:
    return ValueError(f"{who}: {name}={value} {why}; {accepted}")
