"""A call of the block-sparse kernels: its configuration, its lists, and its launch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.sparse.config import FORWARD, Shape, SparseConfig, default_config
from attnbench.kernels.flash.sparse.forward import launch_sparse
from attnbench.kernels.flash.sparse.lists import BlockLists, ListTensors, MadeFor, lists_from, lists_of, of_lists
from attnbench.kernels.flash.sparse.portable.forward import flash_sparse_forward
from attnbench.kernels.flash.sparse.problem import WHO, SparseProblem, sparse_problem_of, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of
from attnbench.kernels.shared.limits import as_float, check_flags


def listed(
    given: Tensor | BlockLists, q: Tensor, k: Tensor, problem: SparseProblem, config: SparseConfig, validate: bool
) -> BlockLists:
    """The lists of a map, or the lists that were passed.

    Raises:
        ValueError: the map does not fit.
    """
    if isinstance(given, BlockLists):  # the launch checks what they were made for
        return given
    rows = problem.block_q
    lists = lists_of(given, q, k, problem, share=config.share(rows), unit=config.unit(rows))
    if validate:
        values = given.contiguous().view(torch.uint8)
        if values.numel() and (largest := int(values.max())) > 1:
            raise wrong("block_map", largest, "is neither True nor False", "0 and 1")
    return lists


def config_for(
    given: SparseConfig | str | None, q: Tensor, k: Tensor, v: Tensor, problem: SparseProblem
) -> SparseConfig:
    """The configuration of a call: the one passed, if it is valid for the shape, otherwise the tuned default.

    Raises:
        ValueError: it cannot be parsed or used; the message says why and names the nearest valid one.
    """
    shape = _shape(q, problem)
    if given is None:
        return default_config(shape, described=_described(q, k, v))
    # Without a card a name is checked as for an H200.
    return FORWARD.given(WHO, given, replace(shape, capability=capability_of(q) or (9, 0)))


def _shape(q: Tensor, problem: SparseProblem) -> Shape:
    return Shape(
        dim=q.shape[-1],
        block_q=problem.block_q,
        block_k=problem.block_k,
        item_bytes=q.element_size(),
        capability=capability_of(q) or (0, 0),
    )


def _described(*tensors: Tensor) -> bool:
    """Whether tensor maps can describe these tensors for the kernel of sm_90."""
    if capability_of(tensors[0]) != (9, 0):
        return False
    from attnbench.kernels.shared.hopper import is_rows

    return all(is_rows(x) for x in tensors)


def check_device(q: Tensor) -> None:
    """Refuse CPU tensors where the kernels are compiled, not interpreted.

    Raises:
        ValueError: naming the device and what is accepted.
    """
    if isinstance(flash_sparse_forward, triton.JITFunction) and not takes_compiled(q):
        raise wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")


class Call:
    """A call without its tensors: its checked problem, its configuration, and the cached launches by kind of list."""

    __slots__ = ("config", "launches", "problem")

    def __init__(self, problem: SparseProblem, config: SparseConfig) -> None:
        self.problem, self.config = problem, config
        self.launches: Kept[Launches] = Kept()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lists: BlockLists) -> Results:
        """Compute out and lse."""
        tensors, made_for = of_lists(lists)
        key = facts_of(*tensors), made_for
        launches = self.launches.get(key)
        if launches is None:
            run = partial(_run, self.problem, self.config, made_for)
            launches = self.launches.keep(key, Launches(run, ()))
        return launches(q, k, v, *tensors)


CALLS: Kept[Call] = Kept()


def _run(
    problem: SparseProblem, config: SparseConfig, made_for: MadeFor, q: Tensor, k: Tensor, v: Tensor, *tensors: Any
) -> Results:
    out, lse = empty(q.shape, q), empty((problem.batch, problem.heads, problem.seqlen_q), q, torch.float32)
    launch_sparse(
        q=q,
        k=k,
        v=v,
        out=out,
        lse=lse,
        lists=lists_from(ListTensors(*tensors), made_for),
        problem=problem,
        config=config,
    )
    return out, lse


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_map: Tensor | BlockLists,
    block: tuple[int, int],
    causal: bool,
    scale: float | None,
    config: SparseConfig | str | None,
    *,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Check the arguments, those of `flash_sparse_attention`, and compute attention.

    Raises:
        ValueError: as `flash_sparse_attention`.
    """
    scale = None if scale is None else as_float(scale)
    sizes = exact(*block) if isinstance(block, tuple | list) else object()
    key = facts_of(q, k, v), sizes, exact(causal, scale, config)
    found = CALLS.get(key)
    if found is None or validate is not False:
        check_flags(WHO, causal=causal, validate=validate)
        problem = sparse_problem_of(q, k, v, block=block, causal=causal, scale=scale)
        chosen = config_for(config, q, k, v, problem)
        check_device(q)
        found = CALLS.keep(key, Call(problem, chosen))
    lists = listed(block_map, q, k, found.problem, found.config, validate)
    out, lse = found(q, k, v, lists)
    assert out is not None
    assert lse is not None
    return out, lse
