"""Block-sparse softmax attention in 8 bits, forward: the map of `flash.sparse`, the arithmetic of `flash.quant`.

    S = c Q (K - m)ᵀ        P = softmax(S, keys of blocks that are not in the map at -∞)        O = P V

Q and K are rounded to int8, V and P to e4m3; the sum of P V is accumulated in fp32 after each block of keys.  Supports
bf16 and fp16, dims 1 to 128, padded to 64 or 128.

m, the mean of a sample of K, and the scales of V are computed from the rows of a head, listed or not: values of a block
that no row lists affect the rounding of the others, and an infinity or NaN in it has the effect that `flash.quant.api`
describes; a row sees the tiles of 128 keys of which it lists a block.
"""

from __future__ import annotations

from torch import Tensor

from attnbench.kernels.flash.problem import lse_shape
from attnbench.kernels.flash.quant.prepare import Quantised, allocate, launch_prepare, launch_quantise, launch_smooth
from attnbench.kernels.flash.sparse.lists import BlockLists, of_lists
from attnbench.kernels.flash.sparse_quant.calls import call, config_for, listed
from attnbench.kernels.flash.sparse_quant.config import SparseQuantConfig
from attnbench.kernels.flash.sparse_quant.forward import launch_sparse_quant
from attnbench.kernels.flash.sparse_quant.operators import FORWARD, LISTED
from attnbench.kernels.flash.sparse_quant.problem import WHO, problems_of
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.operators import cast, needs_operator, refuse_in_operator

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
    "lse_shape",
    "problems_of",
]


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
    """Attention in 8 bits to the blocks of keys that a map selects; forward only, without gradients.

    Unless `validate` is set the call does not synchronize with the device, so it can be captured in a CUDA graph.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        block_map: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)]; the last blocks may be shorter.  Or lists of
            `flash.sparse.api.make_lists`, one for each row of the map.
        block: queries and keys of a block: (128, 128), (128, 64), (64, 128) or (64, 64).
        causal: also hide keys after a query's own position; the last query sees the last key.
        scale: factor of the scores; None: 1 / sqrt(D).
        config: launch configuration, or its name, such as "m128n128w8s4-ws-beside"; None: the default.
        validate: also check the values of the map, which synchronizes with the device.

    Returns:
        out, shaped as q, contiguous; and lse, fp32 [B, H, Sq], the logarithm of each row's sum: -∞ for a query that
        sees no key, whose out is 0.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.  A configuration
            of the Hopper path is refused on other cards and dims; it is not replaced by another.
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
