"""`flash_attention` as an attention of Hugging Face's transformers, through its two public registries.

    from attnbench.kernels.compat.transformers import register

    register()
    model = AutoModelForCausalLM.from_pretrained(…, attn_implementation="attnbench")

It supports the masks of FlashAttention: causal or none, a window, padding, packed sequences.  Padding and packed
sequences are found by reading tensors, which synchronizes with the device, as in transformers' own FlashAttention; with
`cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k` nothing synchronizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.kernels.compat.arguments import only, refusal
from attnbench.kernels.flash.api import flash_attention

__all__ = ["NAME", "attend", "mask", "register"]

NAME = "attnbench"


class Packed(NamedTuple):
    """Arguments by which transformers describes packed sequences."""

    cu_seq_lens_q: Any
    cu_seq_lens_k: Any
    max_length_q: Any
    max_length_k: Any


PACKED = Packed._fields
_NOT_OURS = {
    "position_ids",
    "cache_position",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "num_items_in_batch",
}
"Arguments of a model that do not change attention, or are read separately."
_MASKS = {
    "causal_mask_function",
    "bidirectional_mask_function",
    "and_masks.<locals>.and_mask",
    "sliding_window_overlay.<locals>.inner_mask",
    "sliding_window_bidirectional_overlay.<locals>.inner_mask",
    "packed_sequence_mask_function.<locals>.inner_mask",
    "remap_positions_for_packed_sequence.<locals>.inner_mask",
}
"Functions of transformers.masking_utils whose masks follow from the other arguments of `attend`."


def register(name: str = NAME) -> None:
    """Register a name for `attn_implementation`.

    Args:
        name: any name without "flash", which transformers would take for an implementation of its own.

    Raises:
        ImportError: transformers is not installed, or passes other arguments to a mask than the tested version, 5.23.
    """
    import inspect

    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

    if not {"q_length", "q_offset", "mask_function"} <= inspect.signature(masking_utils.sdpa_mask).parameters.keys():
        raise ImportError(
            "masks of this transformers do not take q_length, q_offset and mask_function; 5.23 was tested"
        )
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **_given: Any,
) -> Tensor | None:
    """The mask that is passed to `attend`: of padding [B, keys], or None.

    Args:
        batch_size: sequences.
        q_length: queries.
        kv_length: keys.
        q_offset: positions before the first query; a tensor for a cache of fixed length.
        mask_function: of the pattern, composed of `_MASKS` alone; not examined during tracing.
        attention_mask: bool [B, keys so far], False where there is padding.

    Raises:
        ValueError: the mask is more than causal, a window and padding, or some keys are not written yet.
    """
    if mask_function is not None and not torch.compiler.is_compiling():
        for part in _parts(mask_function):
            if part not in _MASKS:
                raise refusal(NAME, "mask_function", part, "causal, a window, padding; 'sdpa' takes any mask")
    if isinstance(q_offset, Tensor):
        raise refusal(NAME, "past_key_values", "a cache of fixed length", "a DynamicCache, or 'sdpa'")
    if attention_mask is None:
        return None
    padding = attention_mask[:, -kv_length:]
    if padding.shape[1] != kv_length:
        raise refusal(NAME, "attention_mask", padding, f"[{batch_size}, {kv_length}], of all keys")
    return None if bool(padding.all()) else padding


def _parts(function: Callable[..., Any]) -> Iterator[str]:
    """Names of a mask function and of those that it is composed of."""
    yield getattr(function, "__qualname__", type(function).__name__)
    for cell in getattr(function, "__closure__", None) or ():
        held = cell.cell_contents
        for one in held if isinstance(held, tuple | list) else (held,):
            if callable(one) and not isinstance(one, Tensor):
                yield from _parts(one)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """Attention as a model calls it.

    Args:
        module: its `is_causal` is used if the argument is None.
        query: [B, H, Sq, D], of the last positions.
        key: [B, G, Sk, D].
        value: [B, G, Sk, Dv].
        attention_mask: result of `mask`.
        dropout: 0.0 alone.
        scaling: of the scores; None: 1 / sqrt(D).
        sliding_window: keys that a query sees, including itself; None: all.
        softcap: None alone.
        is_causal: no key after a query's own position.
        given: `PACKED` for packed sequences, `position_ids`, `deterministic`; others are refused unless None.

    Returns:
        [B, Sq, H, Dv], and None for weights.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    only(NAME, "dropout", dropout, 0.0)
    only(NAME, "softcap", softcap, None)
    if given.get("output_attentions"):
        raise refusal(NAME, "output_attentions", True, "False; 'eager' has weights")
    for name, other in given.items():
        if name not in _NOT_OURS and name not in PACKED and name != "deterministic":
            only(NAME, name, other, None)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options: dict[str, Any] = {"causal": causal, "scale": scaling}
    if given.get("deterministic") is not None:
        options["deterministic"] = given["deterministic"]
    if sliding_window is not None:
        options["window"] = (sliding_window - 1, 0 if causal else sliding_window - 1)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    packed = Packed(*(given.get(name) for name in PACKED))
    if attention_mask is not None:
        return _unpadded(q, k, v, attention_mask, options), None
    if _is_nothing(packed):
        packed = _starts(given.get("position_ids"), q, k) or packed
    if _is_nothing(packed):
        out, _ = flash_attention(q, k, v, **options)
        return out, None
    for name, one in zip(PACKED, packed, strict=True):
        if one is None:
            raise refusal(NAME, name, None, f"all of {', '.join(PACKED)}, or none")
    out = _attend_packed(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), packed, options)
    return out.view(*q.shape[:-1], v.shape[-1]), None


def _is_nothing(packed: Packed) -> bool:
    """Whether no argument was given; not by `==`, in which torch 2.11 cannot trace a tensor beside None."""
    return all(one is None for one in packed)


def _attend_packed(q: Tensor, k: Tensor, v: Tensor, packed: Packed, options: dict[str, Any]) -> Tensor:
    out, _ = flash_attention(
        q,
        k,
        v,
        cu_seqlens_q=packed.cu_seq_lens_q.int(),
        cu_seqlens_k=packed.cu_seq_lens_k.int(),
        max_seqlen_q=int(packed.max_length_q),
        max_seqlen_k=int(packed.max_length_k),
        **options,
    )
    return out


def _starts(position_ids: Tensor | None, q: Tensor, k: Tensor) -> Packed | None:
    """Starts of the sequences that are packed within rows; None if each row is one sequence."""
    batch, rows = q.shape[:2]
    if position_ids is None or position_ids.dim() != 2 or rows != k.shape[1] or rows < 2:
        return None
    if position_ids.is_meta:  # positions without values
        return None
    begins = torch.nn.functional.pad(position_ids.diff() != 1, (1, 0), value=True).expand(batch, rows)
    starts = begins.flatten().nonzero()[:, 0]
    if len(starts) == batch:
        return None
    starts = torch.cat([starts, starts.new_tensor([batch * rows])])
    return Packed(cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=rows, max_length_k=rows)


def _unpadded(q: Tensor, k: Tensor, v: Tensor, padding: Tensor, options: dict[str, Any]) -> Tensor:
    """Attention of padded sequences [B, S, H, D]; with causal or a window, padding rows are 0."""
    if padding.dim() != 2 or padding.shape != k.shape[:2]:
        raise refusal(NAME, "attention_mask", padding, f"{tuple(k.shape[:2])}, False where there is padding")
    seen_k = padding.bool()
    # If positions matter, the queries are the last of the keys' rows; otherwise they may belong to another sequence.
    own = options["causal"] or "window" in options
    seen_q = seen_k[:, -q.shape[1] :] if own else seen_k.new_ones(q.shape[:2])
    starts_q, starts_k = (torch.nn.functional.pad(seen.sum(1).cumsum(0), (1, 0)) for seen in (seen_q, seen_k))
    packed = Packed(starts_q, starts_k, max_length_q=q.shape[1], max_length_k=k.shape[1])
    attended = _attend_packed(q[seen_q], k[seen_k], v[seen_k], packed, options)
    out = attended.new_zeros((*q.shape[:-1], v.shape[-1]))
    out[seen_q] = attended
    return out
