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
from attnbench.kernels.shared.operators import cast, needs_operator, refuse_in_operator

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
    """Convert a map to the lists of blocks that the kernels read.  Two launches; valid for every call with these lengths.

    Args:
        block_map: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)], any strides.
        q: [B, Sq, H, D]; only the shapes of q and k are used.
        k: [B, Sk, G, D].
        block: queries and keys of a block, one of `problem.BLOCKS`.
        causal: as in the calls that will use the lists; blocks that it hides are not listed.
        config: as in these calls: some configurations process several rows of the map together.
        validate: also check the values of the map, which synchronizes with the device.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    if needs_operator(block_map, q, k):
        raise ValueError(
            "make_lists: is called in compiled code, or for meta tensors; lists made outside of it, or a map"
        )
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
    """Attention to the blocks of keys that a map selects; forward only, without gradients.

    Unless `validate` is set the call does not synchronize with the device, so it can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        block_map: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)]; the last blocks may be shorter.  Or lists of `make_lists`.
        block: queries and keys of a block: (128, 128), (128, 64), (64, 128) or (64, 64).
        causal: also hide keys after a query's own position; the last query sees the last key.
        scale: factor of the scores; None: 1 / sqrt(D).
        config: launch configuration, or its name, such as "m128n128w8s2-ws-deep-lazy"; None: the tuned default.
        validate: also check the values of the map, which synchronizes with the device.

    Returns:
        out, shaped as q, contiguous; and lse, fp32 [B, H, Sq], the logarithm of each row's sum: -∞ for a query that
        sees no key, whose out is 0.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.  A configuration
            of the Hopper path is refused on other cards, dims and tensors; it is not replaced by another.
    """
    if needs_operator(q, k, v):
        check_flags(WHO, causal=causal, validate=validate)
        refuse_in_operator(WHO, validate=validate)
        name = getattr(config, "short", config)
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
