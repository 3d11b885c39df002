"""A call of the block-sparse kernels in 8 bits: its configuration, its lists, and its launches."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, results_of
from attnbench.kernels.flash.quant.prepare import allocate, launch_prepare
from attnbench.kernels.flash.sparse.lists import BlockLists, ListTensors, MadeFor, lists_from, lists_of, of_lists
from attnbench.kernels.flash.sparse.problem import SparseProblem
from attnbench.kernels.flash.sparse_quant.config import FORWARD, Shape, SparseQuantConfig, default_config
from attnbench.kernels.flash.sparse_quant.forward import launch_sparse_quant
from attnbench.kernels.flash.sparse_quant.portable.forward import flash_sparse_quant_forward
from attnbench.kernels.flash.sparse_quant.problem import WHO, problems_of, refused_here, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled
from attnbench.kernels.shared.kept import Kept, Launches, Results, exact, facts_of
from attnbench.kernels.shared.limits import as_float, check_flags


def config_for(given: SparseQuantConfig | str | None, q: Tensor, problem: SparseProblem) -> SparseQuantConfig:
    """The configuration of a call: the one passed, if it is valid for the shape, otherwise the default.

    Raises:
        ValueError: it cannot be parsed or used; the message says why and names the nearest valid one.
    """
    capability = capability_of(q)
    dim, (block_q, block_k) = q.shape[-1], problem.block
    if given is None:
        return default_config(Shape(dim=dim, block_q=block_q, block_k=block_k, capability=capability or (0, 0)))
    # Without a card a name is checked as for an H200.
    return FORWARD.given(WHO, given, Shape(dim=dim, block_q=block_q, block_k=block_k, capability=capability or (9, 0)))


def listed(
    given: Tensor | BlockLists, q: Tensor, k: Tensor, problem: SparseProblem, *, validate: bool = False
) -> BlockLists:
    """The lists of a map, or the lists that were passed; the launch checks what these were made for.

    Raises:
        ValueError: the map does not fit, or has values other than 0 and 1; the message says which.
    """
    if isinstance(given, BlockLists):
        return given
    with refused_here():
        lists = lists_of(given, q, k, problem)
    if validate:
        values = given.contiguous().view(torch.uint8)
        if values.numel() and (largest := int(values.max())) > 1:
            raise wrong("block_map", largest, "is neither True nor False", "0 and 1")
    return lists


def check_device(q: Tensor) -> None:
    """Refuse CPU tensors where the kernels are compiled, and cards that do not multiply e4m3.

    Raises:
        ValueError: naming the device and what is accepted.
    """
    if isinstance(flash_sparse_quant_forward, triton.JITFunction) and not takes_compiled(q):
        raise wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")
    capability = capability_of(q)
    if capability and capability < (8, 9):
        raise wrong("q.device", f"sm_{capability[0]}{capability[1]}", "does not multiply e4m3", "sm_89 or later")


class Call:
    """A call without its tensors: its checked problem, its configuration, and the cached launches by kind of list."""

    __slots__ = ("config", "dense", "launches", "problem")

    def __init__(self, problem: SparseProblem, dense: Problem, config: SparseQuantConfig) -> None:
        self.problem, self.dense, self.config = problem, dense, config
        self.launches: Kept[Launches] = Kept()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lists: BlockLists) -> Results:
        """Compute out and lse."""
        tensors, made_for = of_lists(lists)
        key = facts_of(*tensors), made_for
        launches = self.launches.get(key)
        if launches is None:
            run = partial(_run, self.problem, self.dense, self.config, made_for)
            launches = self.launches.keep(key, Launches(run, ()))
        return launches(q, k, v, *tensors)


CALLS: Kept[Call] = Kept()


def _run(
    problem: SparseProblem,
    dense: Problem,
    config: SparseQuantConfig,
    made_for: MadeFor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *lists: Any,
) -> Results:
    out, lse = results_of(q, q.shape[-1], dense)
    made = allocate(q, k, dense)
    launch_prepare(q, k, v, made, dense)
    launch_sparse_quant(made, out, lse, lists_from(ListTensors(*lists), made_for), problem, config)
    return out, lse


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_map: Tensor | BlockLists,
    block: tuple[int, int],
    causal: bool,
    scale: float | None,
    config: SparseQuantConfig | str | None,
    *,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Check the arguments, those of `flash_sparse_quant_attention`, and compute attention.

    Raises:
        ValueError: as `flash_sparse_quant_attention`.
    """
    scale = None if scale is None else as_float(scale)
    sizes = exact(*block) if isinstance(block, tuple | list) else object()
    key = facts_of(q, k, v), sizes, exact(causal, scale, config)
    found = CALLS.get(key)
    if found is None or validate is not False:
        check_flags(WHO, causal=causal, validate=validate)
        problem, dense = problems_of(q, k, v, block=block, causal=causal, scale=scale)
        chosen = config_for(config, q, problem)
        check_device(q)
        found = CALLS.keep(key, Call(problem, dense, chosen))
    out, lse = found(q, k, v, listed(block_map, q, k, found.problem, validate=validate))
    assert out is not None
    assert lse is not None
    return out, lse
