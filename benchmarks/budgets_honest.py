"""Right implementations, each rounding in its own places and order: what `budgets.py` holds against the budget.

All of them take the tensors of one problem and give its outputs in the problem's precision; numpy has no part in it
and no kernel is needed, so that any CPU runs them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention, silu

from attnbench.workloads.attention.oracle import Rule, visible
from attnbench.workloads.hstu import oracle_bsa, parts
from attnbench.workloads.hstu.oracle import visible as hstu_visible

LOG2_E = 1 / math.log(2)
Outputs = dict[str, Tensor]


def mask_of(case: Any) -> Tensor:
    """Bool [Sq, Sk] of a dense problem of softmax attention."""
    band = Rule.of(case).band(case.seqlen, case.seqlen_k)
    return visible(range(case.seqlen), range(case.seqlen_k), band, torch.device("cpu"))


def softmax_implementations(case: Any) -> dict[str, Callable[[Any, Any, random.Random], Outputs]]:
    """By name, called with case, inputs and a source of chance."""
    found: dict[str, Callable[[Any, Any, random.Random], Outputs]] = {
        "eager": eager,
        "flash": flash,
        "split": lambda *given: flash(*given, split=True),
        "sdpa-math": sdpa_math,
    }
    # torch's fused attention of a CPU takes one size of head.
    return found | ({"sdpa-flash": sdpa_flash} if case.headdim == case.headdim_v else {})


def heads_of(case: Any, x: Tensor) -> Tensor:
    """[B, Sk, G, D] as [B, H, Sk, D], a KV head for each query head."""
    return x.transpose(1, 2).repeat_interleave(case.group_size, 1)


def laid_out(case: Any, dtype: Any, out: Tensor, dq: Tensor | None = None, *of_keys: Tensor) -> Outputs:
    """Outputs of [B, H, rows, size]; gradients of keys are summed over the query heads of a KV head."""
    found = {"out": out.to(dtype).transpose(1, 2)}
    if dq is not None:
        found["dq"] = dq.to(dtype).transpose(1, 2)
        for name, x in zip(("dk", "dv"), of_keys, strict=True):
            summed = x.float().unflatten(1, (case.nheads_kv, case.group_size)).sum(2)
            found[name] = summed.to(dtype).transpose(1, 2)
    return found


def sdpa_math(case: Any, inputs: Any, chance: random.Random) -> Outputs:
    """torch's own, unfused, gradients by autograd."""
    return _sdpa(case, inputs, SDPBackend.MATH)


def sdpa_flash(case: Any, inputs: Any, chance: random.Random) -> Outputs:
    """torch's own, fused: exponentials that are off by several steps, 16-bit gradients added up in 16 bits."""
    return _sdpa(case, inputs, SDPBackend.FLASH_ATTENTION)


def _sdpa(case: Any, inputs: Any, kind: SDPBackend) -> Outputs:
    tensors = [
        x.detach().transpose(1, 2).clone().requires_grad_(case.has_backward) for x in (inputs.q, inputs.k, inputs.v)
    ]
    mask = mask_of(case)
    with sdpa_kernel([kind]):
        out = scaled_dot_product_attention(
            *tensors, attn_mask=None if mask.all() else mask, enable_gqa=case.group_size > 1
        )
        out = out.masked_fill(~mask.any(-1)[:, None], 0.0)
        found = {"out": out.detach().transpose(1, 2)}
        if case.has_backward:
            grads = torch.autograd.grad(out, tensors, inputs.dout.transpose(1, 2))
            # Of rows without keys torch's gradients are NaN.
            found |= {f"d{name}": x.transpose(1, 2).nan_to_num(0.0) for name, x in zip("qkv", grads, strict=True)}
    return found


def stored_product(a: Tensor, b: Tensor) -> Tensor:
    """Summed in fp32 and stored in the precision of the operands."""
    return (a.float() @ b.float()).to(a.dtype)


def eager(case: Any, inputs: Any, chance: random.Random) -> Outputs:
    """Everything stored in the case's precision; queries and keys in an order of its own."""
    dtype = inputs.q.dtype
    order = torch.Generator().manual_seed(chance.randrange(2**31))
    rows, columns = (torch.randperm(n, generator=order) for n in (case.seqlen, case.seqlen_k))
    back_rows, back_columns = rows.argsort(), columns.argsort()
    q = inputs.q.transpose(1, 2)[:, :, rows]
    k, v = (heads_of(case, x)[:, :, columns] for x in (inputs.k, inputs.v))
    mask = mask_of(case)[rows][:, columns]
    s = stored_product(q, k.mT) * case.scale
    p = s.float().masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0).to(dtype)
    out = stored_product(p, v)[:, :, back_rows]
    if not case.has_backward:
        return laid_out(case, dtype, out)
    do = inputs.dout.transpose(1, 2)[:, :, rows]
    weighted = p.float() * stored_product(do, v.mT).float()
    ds = (weighted - p.float() * weighted.sum(-1, keepdim=True)).to(dtype)
    dq, dk = stored_product(ds, k) * case.scale, stored_product(ds.mT, q) * case.scale
    return laid_out(
        case, dtype, out, dq[:, :, back_rows], dk[:, :, back_columns], stored_product(p.mT, do)[:, :, back_columns]
    )


class Online:
    """Softmax of some keys tile by tile in fp32, in powers of e or of 2."""

    def __init__(self, case: Any, inputs: Any, chance: random.Random) -> None:
        self.dtype, self.case = inputs.q.dtype, case
        self.q = inputs.q.transpose(1, 2).float()
        self.k, self.v = (heads_of(case, x).float() for x in (inputs.k, inputs.v))
        self.mask, self.chance = mask_of(case), chance
        self.base2, self.early, self.back = (chance.random() < share for share in (0.6, 0.3, 0.3))
        self.block = chance.choice([1 if case.seqlen_k < 64 else 8, 16, 32, 64, 128])
        self.exp, self.log = (torch.exp2, torch.log2) if self.base2 else (torch.exp, torch.log)
        self.factor = torch.tensor(case.scale * (LOG2_E if self.base2 else 1.0), dtype=torch.float32)

    def blocks(self, keys: range) -> list[slice]:
        """Tiles of these keys in this one's order."""
        found = [slice(at, min(at + self.block, keys.stop)) for at in range(keys.start, keys.stop, self.block)]
        return found[::-1] if self.back else found

    def attend(self, keys: range) -> tuple[Tensor, Tensor]:
        """Output and logarithm of the sum (of the base) over some keys."""
        lead = self.q.shape[:3]
        top, total = torch.full((*lead, 1), -math.inf), torch.zeros(*lead, 1)
        acc = torch.zeros(*lead, self.v.shape[-1])
        late = torch.ones(()) if self.early else self.factor
        for at in self.blocks(keys):
            s = (self.q @ self.k[:, :, at].mT).masked_fill(~self.mask[:, at], -math.inf)
            s = s * self.factor if self.early else s
            above = torch.maximum(top, s.amax(-1, keepdim=True))
            pivot = torch.where(above == -math.inf, 0.0, above * late)
            p, before = self.exp(s * late - pivot), self.exp(top * late - pivot)
            total = total * before + p.sum(-1, keepdim=True)
            acc = acc * before + p.to(self.dtype).float() @ self.v[:, :, at]
            top = above
        pivot = torch.where(top == -math.inf, 0.0, top * late)
        return acc / torch.where(total == 0, 1.0, total), pivot + self.log(total)


def flash(case: Any, inputs: Any, chance: random.Random, split: bool = False) -> Outputs:
    """Online softmax in tiles, weights stored in the case's precision; the backward from the stored logarithm.

    Args:
        case: the problem.
        inputs: its tensors.
        chance: base, tiles, their order.
        split: keys in parts, whose outputs are added by their logarithms, as for one query of many keys.
    """
    work = Online(case, inputs, chance)
    count = chance.choice([2, 3, 8]) if split else 1
    cuts = [case.seqlen_k * i // count for i in range(count + 1)]
    pieces = [work.attend(range(a, b)) for a, b in pairwise(cuts) if b > a]
    top = torch.stack([lse for _, lse in pieces]).amax(0)
    top = torch.where(top == -math.inf, 0.0, top)
    shares = [work.exp(lse - top) for _, lse in pieces]
    total = torch.stack(shares).sum(0)
    out = sum(share * piece for share, (piece, _) in zip(shares, pieces, strict=True))
    out = (out / torch.where(total == 0, 1.0, total)).to(work.dtype)
    if not case.has_backward:
        return laid_out(case, work.dtype, out)
    return laid_out(
        case, work.dtype, out, *backward(work, inputs.dout.transpose(1, 2).float(), out.float(), top + work.log(total))
    )


def backward(work: Online, do: Tensor, out: Tensor, lse: Tensor, delta: Tensor | None = None) -> list[Tensor]:
    """DQ, dK, dV of each query head, weights recomputed from the logarithm as fp32 stores it."""
    chance, case = work.chance, work.case
    if work.base2 and chance.random() < 0.7:
        lse = (lse / LOG2_E) * LOG2_E  # stored natural
    delta = (do * out).sum(-1, keepdim=True) if delta is None else delta
    dq, dk, dv = (torch.zeros_like(x) for x in (work.q, work.k, work.v))
    begins, rows = chance.random() < 0.4, chance.choice([16, 64, 128])
    columns = work.blocks(range(case.seqlen_k))
    chance.shuffle(columns)  # as atomics have it
    for of in columns:
        for start in range(0, case.seqlen, rows):
            at = slice(start, start + rows)
            s = work.q[:, :, at] @ work.k[:, :, of].mT
            own = lse[:, :, at]
            # A product that begins at -lse / scale, or one from which lse is taken.
            s = (s + -(own / work.factor)) * work.factor if begins else s * work.factor - own
            p = work.exp(s.masked_fill(~work.mask[at, of] | (own == -math.inf), -math.inf))
            ds = (p * (do[:, :, at] @ work.v[:, :, of].mT - delta[:, :, at])).to(work.dtype).float()
            dq[:, :, at] += ds @ work.k[:, :, of]
            dk[:, :, of] += ds.mT @ work.q[:, :, at]
            dv[:, :, of] += p.to(work.dtype).float().mT @ do[:, :, at]
    kept = (lambda x: x.to(work.dtype).float()) if chance.random() < 0.3 else (lambda x: x)
    return [dq * case.scale, kept(dk * case.scale), kept(dv)]


def hstu_implementations(variant: str) -> dict[str, Callable[[Any, Any, random.Random], Outputs]]:
    """The same for HSTU attention."""
    return {
        kind: lambda case, inputs, chance, kind=kind: hstu(variant, case, inputs, chance, kind)
        for kind in ("eager", "kernel")
    }


def branches_of(variant: str, case: Any, inputs: Any) -> Iterator[tuple[int, str, Any, Tensor]]:
    """Number of a sequence, name of a branch, its shape and its mask [1 or H, queries, keys]."""
    chosen = None
    if variant == "hstu-bsa":
        chosen = parts.by_sequence(case, "q", oracle_bsa.select_blocks(case, inputs))
    for number, shape in enumerate(case.sequences):
        rows = range(shape.queries)
        if chosen is None:
            yield number, "dense", shape, hstu_visible(case, shape, rows, inputs.q.device)[None]
            continue
        for branch in case.branches:
            mask = oracle_bsa.branch_mask(case, shape, rows, branch, chosen[number].transpose(0, 1))
            yield number, branch, shape, mask if mask.dim() == 3 else mask[None]


def hstu(variant: str, case: Any, inputs: Any, chance: random.Random, kind: str) -> Outputs:
    """Branches of all sequences, added in fp32.

    Args:
        variant: hstu or hstu-bsa.
        case: the problem.
        inputs: its tensors.
        chance: tiles, their order, how SiLU is computed.
        kind: eager stores everything in the case's precision, a kernel only weights.
    """
    sources = {
        name: parts.by_sequence(case, name, x)
        for name, x in inputs.tensors().items()
        if name in ("q", "k", "v", "gates", "dout")
    }
    names = parts.output_names(case, variant)
    total = {name: torch.zeros(shape) for name, shape in parts.output_shapes(case, variant).items()}
    views = {name: parts.by_sequence(case, name, x) for name, x in total.items()}
    for number, branch, shape, mask in branches_of(variant, case, inputs):
        q, k, v = (sources[name][number].transpose(0, 1) for name in ("q", "k", "v"))
        coarse = branch == "compressed"
        if coarse:
            k, v = (oracle_bsa.block_means(x, shape, case) for x in (k, v))
        gate: Any = 1.0
        if "gates" in sources and branch != "dense":
            which = case.branches.index(branch)
            gate = sources["gates"][number].transpose(0, 1)[:, :, which : which + 1].float()
        scale = (case.block_size if coarse else 1) / case.scaling_seqlen
        do = sources["dout"][number].transpose(0, 1) if case.has_backward else None
        one = _branch(q, k, v, None if do is None else (do.float() * gate).to(do.dtype), mask, case.alpha, chance, kind)
        views["out"][number].add_((one["out"] * gate * scale).transpose(0, 1))
        for name in names[1:4]:
            grad = one[name] * scale * (1.0 if name == "dv" else case.alpha)
            if coarse and name != "dq":
                grad = oracle_bsa.spread(grad, shape, case)
            views[name][number].add_(grad.transpose(0, 1))
        if "dgates" in names:
            assert do is not None
            dgate = (do.float() * (one["out"] * scale)).sum(-1)
            views["dgates"][number][..., case.branches.index(branch)] = dgate.transpose(0, 1)
    return {name: x.to(inputs.q.dtype) for name, x in total.items()}


def _branch(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor | None, mask: Tensor, alpha: float, chance: random.Random, kind: str
) -> Outputs:
    """SiLU attention without the factors of the results, fp32 [heads, rows, size]."""
    keep = (lambda x: x.to(q.dtype).float()) if kind == "eager" else (lambda x: x)
    whole = kind == "eager" or chance.random() < 0.2
    size = k.shape[1] if whole else chance.choice([8, 16, 64])
    tanh = chance.random() < 0.5
    q_, k_, v_ = q.float(), k.float(), v.float()
    sums = {"out": torch.zeros(*q.shape[:2], v.shape[2])}
    if do is not None:
        sums |= {"dq": torch.zeros_like(q_), "dk": torch.zeros_like(k_), "dv": torch.zeros_like(v_)}
    tiles = [slice(at, at + size) for at in range(0, k.shape[1], max(1, size))]
    chance.shuffle(tiles)
    for at in tiles:
        s = keep(q_ @ k_[:, at].mT * alpha)
        half = s / 2
        sigmoid = (1 + half.tanh()) / 2 if tanh else s.sigmoid()
        a = (half + half * half.tanh() if tanh else silu(s)).masked_fill(~mask[:, :, at], 0.0).to(q.dtype).float()
        sums["out"] += a @ v_[:, at]
        if do is not None:
            slope = sigmoid * (1 + s * (1 - sigmoid))
            ds = (keep(do.float() @ v_[:, at].mT) * slope).masked_fill(~mask[:, :, at], 0.0).to(q.dtype).float()
            sums["dq"] += ds @ k_[:, at]
            sums["dk"][:, at] = ds.mT @ q_
            sums["dv"][:, at] = a.mT @ do.float()
    return {name: keep(x) for name, x in sums.items()}
