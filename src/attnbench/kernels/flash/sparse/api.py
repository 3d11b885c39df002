"""Block-sparse softmax attention, forward: each block of queries sees the blocks of keys that a map lists.

    S = c Q Kᵀ        P = softmax(S, keys of blocks that are not in the map at -∞)        O = P V

The map says it by blocks, for each query head; `causal` hides single keys as well.  Letters: `sparse.problem`.
Takes bf16 and fp16 (fp32 for tests) and dims 1 to 128.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.sparse.config import Shape, SparseConfig, default_config, fault, nearest
from attnbench.kernels.flash.sparse.forward import launch_sparse
from attnbench.kernels.flash.sparse.lists import BlockLists, lists_of
from attnbench.kernels.flash.sparse.portable.forward import flash_sparse_forward
from attnbench.kernels.flash.sparse.problem import WHO, SparseProblem, sparse_problem_of, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled

__all__ = [
    "BlockLists",
    "SparseConfig",
    "config_for",
    "flash_sparse_attention",
    "launch_sparse",
    "make_lists",
    "sparse_problem_of",
]


def make_lists(
    block_map: Tensor,
    q: Tensor,
    k: Tensor,
    *,
    block: tuple[int, int],
    causal: bool = False,
    config: SparseConfig | str | None = None,
    validate: bool = False,
) -> BlockLists:
    """Turn a map into the lists that the kernels walk: two launches, good for every call with these lengths.

    Args:
        block_map: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)], any strides.
        q: [B, Sq, H, D]; of q and k shapes alone count.
        k: [B, Sk, G, D].
        block: queries and keys of a block, one of `problem.BLOCKS`.
        causal: as the calls that use them; blocks that it hides are not listed.
        config: as the calls that use them: some take several rows of the map together.
        validate: look into the map too, and wait for the device.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.
    """
    problem = sparse_problem_of(q, k, k, block=block, causal=causal)
    chosen = config_for(config, q, k, k, problem)
    _check_device(q)
    return _listed(block_map, q, k, problem, chosen, validate)


def _listed(
    given: Tensor | BlockLists, q: Tensor, k: Tensor, problem: SparseProblem, config: SparseConfig, validate: bool
) -> BlockLists:
    if isinstance(given, BlockLists):  # the launch checks whose they are
        return given
    rows = problem.block[0]
    lists = lists_of(given, q, k, problem, share=config.share(rows), unit=config.unit(rows))
    if validate:
        values = given.contiguous().view(torch.uint8)
        if values.numel() and (largest := int(values.max())) > 1:
            raise wrong("block_map", largest, "is no truth value", "0 and 1")
    return lists


def config_for(
    given: SparseConfig | str | None, q: Tensor, k: Tensor, v: Tensor, problem: SparseProblem
) -> SparseConfig:
    """The configuration of a call: the one given, if it is valid for the shape, or the tuned default.

    Raises:
        ValueError: it cannot be read or used; the line says why, and which valid one is nearest.
    """
    shape = _shape(q, problem)
    if given is None:
        return default_config(shape, described=_described(q, k, v))
    if not isinstance(given, str | SparseConfig):
        raise wrong("config", repr(given), "is no configuration", "a SparseConfig, its name or None")
    text = given if isinstance(given, str) else given.short
    # A name is judged as for an H200 where there is no card.
    valid = Shape(
        dim=shape.dim,
        block_q=shape.block_q,
        block_k=shape.block_k,
        item_bytes=shape.item_bytes,
        capability=shape.capability if shape.capability != (0, 0) else (9, 0),
    )
    try:
        config = SparseConfig.parse(given) if isinstance(given, str) else given
        found = fault(config, valid)
        if found:
            raise ValueError(f"is not valid, {found[0]}: it {found[1]}")
    except ValueError as why:
        raise ValueError(f"{WHO}: config={text} {why}; the nearest valid one is {nearest(text, valid)}") from None
    return config


def _shape(q: Tensor, problem: SparseProblem) -> Shape:
    return Shape(
        dim=q.shape[-1],
        block_q=problem.block[0],
        block_k=problem.block[1],
        item_bytes=q.element_size(),
        capability=capability_of(q) or (0, 0),
    )


def _described(*tensors: Tensor) -> bool:
    """Whether tensor maps can describe these for the kernel of sm_90."""
    if capability_of(tensors[0]) != (9, 0):
        return False
    from attnbench.kernels.shared.hopper import is_rows

    return all(is_rows(x) for x in tensors)


def _check_device(q: Tensor) -> None:
    if isinstance(flash_sparse_forward, triton.JITFunction) and not takes_compiled(q):
        raise wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")


def flash_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_map: Tensor | BlockLists,
    *,
    block: tuple[int, int],
    causal: bool = False,
    scale: float | None = None,
    config: SparseConfig | str | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend to the blocks of keys that a map lists; forward only, and no gradient passes through.

    Nothing waits for the device unless `validate` is set, so a call can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        block_map: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)]; the last blocks may be shorter.  Or the lists of one.
        block: queries and keys of a block: (128, 128), (128, 64), (64, 128) or (64, 64).
        causal: besides, no key after a query's own position; the last query meets the last key.
        scale: of the scores; None: 1 / sqrt(D).
        config: launch configuration, or its name, such as "m128n128w8s2-ws-deep-lazy"; None: the tuned default.
        validate: look into the map too, and wait for the device.

    Returns:
        out, shaped as q, contiguous; and lse, fp32 [B, H, Sq], the logarithm of each row's sum: -∞ for a query that
        sees no key, whose out is 0.

    Raises:
        ValueError: an argument cannot be used; the one line names it, its value and what is accepted.  A configuration
            of the Hopper path is refused on other cards, dims and tensors; no other runs in its place.
    """
    problem = sparse_problem_of(q, k, v, block=block, causal=causal, scale=scale)
    chosen = config_for(config, q, k, v, problem)
    _check_device(q)
    lists = _listed(block_map, q, k, problem, chosen, validate)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(problem.batch, problem.heads, problem.seqlen_q, dtype=torch.float32, device=q.device)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        launch_sparse(q, k, v, out, lse, lists, problem, chosen)
    return out, lse
