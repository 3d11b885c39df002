"""Block-sparse softmax attention, forward: each block of queries sees the blocks of keys that a map lists.

    S = c Q Kᵀ        P = softmax(S, keys of blocks that are not in the map at -∞)        O = P V

The map selects blocks for each query head; `causal` masks single keys as well.  Letters: `sparse.problem`.
Takes bf16 and fp16 (fp32 for tests) and dims 1 to 128.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.flash.sparse.calls import call, check_device, config_for, listed
from attnbench.kernels.flash.sparse.config import SparseConfig
from attnbench.kernels.flash.sparse.forward import launch_sparse
from attnbench.kernels.flash.sparse.lists import BlockLists, of_lists
from attnbench.kernels.flash.sparse.operators import FORWARD, LISTED
from attnbench.kernels.flash.sparse.problem import WHO, sparse_problem_of
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.operators import cast, is_followed, refuse_followed

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
    if is_followed(block_map, q, k):
        raise ValueError("make_lists: is called in what is compiled; lists made before, or a map")
    check_flags("make_lists", causal=causal, validate=validate)
    q, k = cast(q, k)
    problem = sparse_problem_of(q, k, k, block=block, causal=causal)
    chosen = config_for(config, q, k, k, problem)
    check_device(q)
    return listed(block_map, q, k, problem, chosen, validate)


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
    if is_followed(q, k, v):
        check_flags(WHO, causal=causal, validate=validate)
        refuse_followed(WHO, validate=validate)
        name = config if config is None or isinstance(config, str) else config.short
        found: tuple[Tensor, Tensor]
        if isinstance(block_map, BlockLists):
            tensors, made_for = of_lists(block_map)
            found = LISTED(q, k, v, *tensors, *made_for, block, causal, scale, name)
        else:
            found = FORWARD(q, k, v, block_map, block, causal, scale, name)
        return found
    q, k, v = cast(q, k, v)
    return call(
        q=q, k=k, v=v, block_map=block_map, block=block, causal=causal, scale=scale, config=config, validate=validate
    )
