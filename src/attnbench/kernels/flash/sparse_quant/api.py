"""Block-sparse softmax attention in 8 bits, forward: the map of `flash.sparse`, the arithmetic of `flash.quant`.

    S = c Q (K - mean K)ᵀ        P = softmax(S, keys of blocks that are not in the map at -∞)        O = P V

Q and K are rounded to int8, V and P to e4m3, sums of P V to fp32 at each block of keys.  Takes bf16 and fp16, dims 1 to
128, which are padded to 64 or 128.

The mean of K and the scales of V are those of all rows of a head, listed or not: values of a block that nobody lists
move roundings, and one that is not finite makes NaN as in `flash.quant.api`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, results_of
from attnbench.kernels.flash.quant.prepare import Quantised, allocate, launch_prepare, launch_quantise, launch_smooth
from attnbench.kernels.flash.sparse.lists import BlockLists, lists_from, lists_of, of_lists
from attnbench.kernels.flash.sparse.problem import SparseProblem
from attnbench.kernels.flash.sparse_quant.config import FORWARD, Shape, SparseQuantConfig, default_config
from attnbench.kernels.flash.sparse_quant.forward import launch_sparse_quant
from attnbench.kernels.flash.sparse_quant.portable.forward import flash_sparse_quant_forward
from attnbench.kernels.flash.sparse_quant.problem import WHO, problems_of, said_here, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled
from attnbench.kernels.shared.kept import Kept, Launches, Results, exact, facts_of

__all__ = [
    "BlockLists",
    "Quantised",
    "SparseQuantConfig",
    "allocate",
    "config_for",
    "flash_sparse_quant_attention",
    "launch_prepare",
    "launch_quantise",
    "launch_smooth",
    "launch_sparse_quant",
    "listed",
    "problems_of",
]


def config_for(given: SparseQuantConfig | str | None, q: Tensor, problem: SparseProblem) -> SparseQuantConfig:
    """The configuration of a call: the one given, if it is valid for the shape, or the default.

    Raises:
        ValueError: it cannot be read or used; the line says why, and which valid one is nearest.
    """
    capability = capability_of(q)
    dim, (block_q, block_k) = q.shape[-1], problem.block
    if given is None:
        return default_config(Shape(dim=dim, block_q=block_q, block_k=block_k, capability=capability or (0, 0)))
    # A name is judged as for an H200 where there is no card.
    return FORWARD.given(WHO, given, Shape(dim=dim, block_q=block_q, block_k=block_k, capability=capability or (9, 0)))


def listed(
    given: Tensor | BlockLists, q: Tensor, k: Tensor, problem: SparseProblem, *, validate: bool = False
) -> BlockLists:
    """The lists of a map, or those that are given; the launch checks whose these are.

    Raises:
        ValueError: the map does not fit, or has values but 0 and 1; the one line says which.
    """
    if isinstance(given, BlockLists):
        return given
    with said_here():
        lists = lists_of(given, q, k, problem)
    if validate:
        values = given.contiguous().view(torch.uint8)
        if values.numel() and (largest := int(values.max())) > 1:
            raise wrong("block_map", largest, "is no truth value", "0 and 1")
    return lists


def _check_device(q: Tensor) -> None:
    if isinstance(flash_sparse_quant_forward, triton.JITFunction) and not takes_compiled(q):
        raise wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")
    capability = capability_of(q)
    if capability and capability < (8, 9):
        raise wrong("q.device", f"sm_{capability[0]}{capability[1]}", "does not multiply e4m3", "sm_89 or later")


def flash_sparse_quant_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_map: Tensor | BlockLists,
    *,
    block: tuple[int, int],
    causal: bool = False,
    scale: float | None = None,
    config: SparseQuantConfig | str | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend in 8 bits to the blocks of keys that a map lists; forward only, and no gradient passes through.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        block_map: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)]; the last blocks may be shorter.  Or the lists of one, by
            `flash.sparse.api.make_lists`, a row of the map each.
        block: queries and keys of a block: (128, 128), (128, 64), (64, 128) or (64, 64).
        causal: besides, no key after a query's own position; the last query meets the last key.
        scale: of the scores; None: 1 / sqrt(D).
        config: launch configuration, or its name, such as "m128n128w8s4-ws-beside"; None: the default.
        validate: look into the map too, and wait for the device.

    Returns:
        out, shaped as q, contiguous; and lse, fp32 [B, H, Sq], the logarithm of each row's sum: -∞ for a query that
        sees no key, whose out is 0.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.  A configuration
            of the Hopper path is refused on other cards and dims; no other runs in its place.
    """
    scale = None if scale is None else float(scale)
    sizes = exact(*block) if isinstance(block, tuple | list) else object()
    key = facts_of(q, k, v), sizes, exact(bool(causal), scale, config)
    call = CALLS.get(key)
    if call is None or validate:
        problem, dense = problems_of(q, k, v, block=block, causal=causal, scale=scale)
        chosen = config_for(config, q, problem)
        _check_device(q)
        call = CALLS.keep(key, Call(problem, dense, chosen))
    out, lse = call(q, k, v, listed(block_map, q, k, call.problem, validate=validate))
    assert out is not None
    assert lse is not None
    return out, lse


class Call:
    """A call without its tensors: the problem, checked, the configuration, and the launches by what the lists are."""

    __slots__ = ("config", "dense", "launches", "problem")

    def __init__(self, problem: SparseProblem, dense: Problem, config: SparseQuantConfig) -> None:
        self.problem, self.dense, self.config = problem, dense, config
        self.launches: Kept[Launches] = Kept()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lists: BlockLists) -> Results:
        """Out and lse."""
        tensors, made_for = of_lists(lists)
        key = facts_of(*tensors), made_for
        launches = self.launches.get(key)
        if launches is None:
            run = partial(_run, self.problem, self.dense, self.config, made_for)
            launches = self.launches.keep(key, Launches(run))
        return launches(q, k, v, *tensors)


CALLS: Kept[Call] = Kept()


def _run(
    problem: SparseProblem,
    dense: Problem,
    config: SparseQuantConfig,
    made_for: tuple[Any, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *lists: Tensor | None,
) -> Results:
    out, lse = results_of(q, q.shape[-1], dense)
    made = allocate(q, k, dense)
    launch_prepare(q, k, v, made, dense)
    launch_sparse_quant(made, out, lse, lists_from(lists, made_for), problem, config)
    return out, lse
