"""Errors that a checker has to find, planted in right results of softmax attention or in what computes them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from budgets_honest import Online, Outputs, backward, heads_of, laid_out, mask_of
from torch import Tensor

SCALE_OFF = 0.005


def answer(
    case: Any,
    inputs: Any,
    *,
    mask: Tensor | None = None,
    scale: float = 1.0,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rounded: Callable[[Tensor], Tensor] = lambda x: x,
    delta: bool = True,
    normal: bool = True,
) -> Outputs:
    """The exact outputs of a function that is bent, stored in the case's precision.

    Args:
        case: the problem.
        inputs: its tensors.
        mask: bool, broadcast to [B, H, Sq, Sk]; None: the case's.
        scale: factor of the scale.
        k: [B, H, Sk, D] instead of the keys.
        v: the same of the values.
        rounded: what becomes of every operand of a product.
        delta: gradients take delta off.
        normal: gradients' weights are divided by their sum.
    """
    q = inputs.q.transpose(1, 2).double()
    k, v = (heads_of(case, x).double() if bent is None else bent for x, bent in ((inputs.k, k), (inputs.v, v)))
    mask, scale, of = mask_of(case) if mask is None else mask, scale * case.scale, rounded
    s = (of(q) @ of(k).mT * scale).masked_fill(~mask, -math.inf)
    p = s.softmax(-1).nan_to_num(0.0)
    out = of(p) @ of(v)
    if not case.has_backward:
        return laid_out(case, inputs.q.dtype, out)
    do = inputs.dout.transpose(1, 2).double()
    if not normal:
        p = (s - s.amax(-1, keepdim=True)).exp().nan_to_num(0.0)
    ds = p * (of(do) @ of(v).mT - (do * out).sum(-1, keepdim=True) * delta)
    return laid_out(case, inputs.q.dtype, out, of(ds) @ of(k) * scale, of(ds).mT @ of(q) * scale, of(p).mT @ of(do))


def one_element(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """One element of one output has the value of one elsewhere."""
    found = {name: x.contiguous().clone() for name, x in right.items()}
    flat = found[chance.choice(list(found))].view(-1)
    at = chance.randrange(flat.numel())
    flat[at] = flat[(at + 1 + flat.numel() // 2) % flat.numel()]
    return found


def one_row(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """One row of one output is that of the row before."""
    found = {name: x.clone() for name, x in right.items()}
    x = found[chance.choice([name for name, x in found.items() if x.shape[1] > 1])]
    at = chance.randrange(1, x.shape[1])
    head = chance.randrange(x.shape[2])
    x[0, at, head] = x[0, at - 1, head]
    return found


def dropped_last_key(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """No query sees the last key."""
    mask = mask_of(case)
    mask[:, -1] = False
    return answer(case, inputs, mask=mask)


def mask_of_one_row(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """One query of one head does not see the last of its keys."""
    mask = mask_of(case).expand(case.batch, case.nheads, -1, -1).clone()
    mine = mask[0, chance.randrange(case.nheads), chance.randrange(case.seqlen)]
    mine[mine.nonzero()[-1]] = False
    return answer(case, inputs, mask=mask)


def scale_off(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """The softmax scale is off by half a percent."""
    return answer(case, inputs, scale=1 + SCALE_OFF)


def tf32(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """Operands of every product have the 10 digits of TF32."""

    def cut(x: Tensor) -> Tensor:
        mantissa, exponent = x.frexp()
        return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)

    return answer(case, inputs, rounded=cut)


def sums_in_bf16(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """The output is added up in bf16, 16 keys at a time."""
    work = Online(case, inputs, chance)
    s = (work.q @ work.k.mT * case.scale).masked_fill(~work.mask, -math.inf)
    p, out = s.softmax(-1).nan_to_num(0.0), torch.zeros(*work.q.shape[:3], work.v.shape[-1])
    for at in range(0, case.seqlen_k, 16):
        out = (out + p[..., at : at + 16] @ work.v[:, :, at : at + 16]).bfloat16().float()
    return right | laid_out(case, work.dtype, out)


def missing_head(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """One head of one output is 0."""
    found = {name: x.clone() for name, x in right.items()}
    x = found[chance.choice(list(found))]
    x[:, :, chance.randrange(x.shape[2])] = 0
    return found


def stale_tail(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """The last rows of the output, a part of a tile, are those of the tile before."""
    out = right["out"].clone()
    tail = min(case.seqlen // 2, case.seqlen % 16 or 16)
    out[:, -tail:] = out[:, -2 * tail : -tail]
    return right | {"out": out}


def no_delta(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """Gradients do not take rowsum(dO O) off."""
    return answer(case, inputs, delta=False)


def no_lse(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """Gradients' weights are not divided by their sum."""
    return answer(case, inputs, normal=False)


def lse_in_bf16(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """The stored logarithm has 16 bits."""
    work = Online(case, inputs, chance)
    out, lse = work.attend(range(case.seqlen_k))
    out = out.to(work.dtype)
    grads = backward(work, inputs.dout.transpose(1, 2).float(), out.float(), lse.bfloat16().float())
    return laid_out(case, work.dtype, out, *grads)


def other_kv_head(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """One query head reads the next KV head."""
    k, v = (heads_of(case, x).double() for x in (inputs.k, inputs.v))
    head = chance.randrange(case.nheads)
    other = (head + case.group_size) % case.nheads
    k[:, head], v[:, head] = k[:, other].clone(), v[:, other].clone()
    return answer(case, inputs, k=k, v=v)


def lost_part_of_dq(case: Any, inputs: Any, right: Outputs, chance: random.Random) -> Outputs:
    """DQ lacks what the last 16 keys give it, in one head."""
    work = Online(case, inputs, chance)
    s = (work.q @ work.k.mT * case.scale).masked_fill(~work.mask, -math.inf)
    p, do = s.softmax(-1).nan_to_num(0.0), inputs.dout.transpose(1, 2).float()
    dp = do @ work.v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    lost = ds[..., -16:] @ work.k[:, :, -16:] * case.scale
    dq = right["dq"].clone()
    head = chance.randrange(case.nheads)
    dq[:, :, head] = (dq[:, :, head].float() - lost[:, head]).to(dq.dtype)
    return right | {"dq": dq}


ANY: Mapping[str, Callable[[Any, Any, Outputs, random.Random], Outputs]] = {
    "one element is another's": one_element,
    "one row is the one before": one_row,
    "last key dropped": dropped_last_key,
    "one row's mask off by one": mask_of_one_row,
    "scale off by 0.5 %": scale_off,
    "head missing": missing_head,
    "tail of a tile stale": stale_tail,
    "one head reads another KV head": other_kv_head,
}
FP32 = {"TF32 products": tf32, "sums in bf16": sums_in_bf16}
BACKWARD = {
    "delta missing": no_delta,
    "weights without lse": no_lse,
    "lse in bf16": lse_in_bf16,
    "a part of dQ lost": lost_part_of_dq,
}


def planted(case: Any) -> dict[str, Callable[[Any, Any, Outputs, random.Random], Outputs]]:
    """The errors that a case can have."""
    return {**ANY, **(FP32 if case.dtype == "fp32" else {}), **(BACKWARD if case.has_backward else {})}
