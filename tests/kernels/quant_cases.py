"""Quantised attention written out plainly: the recipe of `flash.quant` in torch, exact attention, and inputs of its tests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from attnbench.workloads.attention.kinds import fill

LOG2_E = 1.4426950408889634
PEAK = 8.807354922057604
TILE = 128


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Tensors of one call; packed where there are offsets."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool = False
    cu_q: torch.Tensor | None = None
    cu_k: torch.Tensor | None = None
    block_map: torch.Tensor | None = None
    block: tuple[int, int] = (128, 128)

    @property
    def options(self) -> dict[str, object]:
        """Keyword arguments of `flash_quant_attention` beside its configuration."""
        if self.cu_q is None:
            return {"causal": self.causal}
        most = (max(after - before for before, after in pairwise(cu.tolist())) for cu in (self.cu_q, self.cu_k))
        names = "max_seqlen_q", "max_seqlen_k"
        offsets = {"cu_seqlens_q": self.cu_q, "cu_seqlens_k": self.cu_k}
        return {"causal": self.causal} | offsets | dict(zip(names, most, strict=True))


def inputs_of(
    seqlen: int = 200,
    seqlen_k: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    heads_kv: int = 0,
    dim: int = 64,
    causal: bool = False,
    kind: str = "normal",
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    device: str = "cpu",
    block: tuple[int, int] | None = None,
    density: float = 0.5,
) -> Inputs:
    """Values drawn on the CPU, of a kind of the workload; with blocks, a random map of them."""
    seqlen_k = seqlen if seqlen_k is None else seqlen_k
    generator = torch.Generator().manual_seed(seed)

    shapes = {
        "q": (batch, seqlen, heads),
        "k": (batch, seqlen_k, heads_kv or heads),
        "v": (batch, seqlen_k, heads_kv or heads),
    }
    q, k, v = (fill(kind, name, torch.empty(*shape, dim), generator) for name, shape in shapes.items())
    q, k, v = (x.to(dtype).to(device) for x in (q, k, v))
    if block is None:
        return Inputs(q=q, k=k, v=v, causal=causal)
    shape = batch, heads, -(-seqlen // block[0]), -(-seqlen_k // block[1])
    block_map = (torch.rand(shape, generator=generator) < density).to(device)
    return Inputs(q=q, k=k, v=v, causal=causal, block_map=block_map, block=block)


def packed_of(lengths: list[tuple[int, int]], **options: object) -> Inputs:
    """Sequences of so many queries and keys behind one another."""
    drawn = inputs_of(max(1, sum(q for q, _ in lengths)), max(1, sum(k for _, k in lengths)), **options)
    starts = [torch.tensor([0, *side], dtype=torch.int32).cumsum(0).int() for side in zip(*lengths, strict=True)]
    q, k, v = (x[0, : starts[which][-1]] for x, which in ((drawn.q, 0), (drawn.k, 1), (drawn.v, 1)))
    cu_q, cu_k = (start.to(q.device) for start in starts)
    return Inputs(q=q, k=k, v=v, causal=drawn.causal, cu_q=cu_q, cu_k=cu_k)


def sequences(inputs: Inputs) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """q, k and v of each sequence as [heads, rows, dims] in fp64, each query head with keys of its own."""
    if inputs.cu_q is None:
        parts = list(zip(inputs.q, inputs.k, inputs.v, strict=True))
    else:
        spans = zip(pairwise(inputs.cu_q.tolist()), pairwise(inputs.cu_k.tolist()), strict=True)
        parts = [(inputs.q[a:b], inputs.k[c:d], inputs.v[c:d]) for (a, b), (c, d) in spans]
    repeats = inputs.q.shape[-2] // inputs.k.shape[-2]
    return [
        (q.double().transpose(0, 1), *(x.double().transpose(0, 1).repeat_interleave(repeats, 0) for x in (k, v)))
        for q, k, v in parts
    ]


def together(inputs: Inputs, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and lse of sequences as a call returns them."""
    outs, sums = [out.transpose(0, 1) for out, _ in parts], [lse for _, lse in parts]
    if inputs.cu_q is None:
        return torch.stack(outs), torch.stack(sums)
    return torch.cat(outs), torch.cat(sums, 1)[None]


def visible(inputs: Inputs, number: int, queries: int, keys: int) -> torch.Tensor:
    """[Sq, Sk], with a map [heads, Sq, Sk]: which keys each query of a sequence sees."""
    device = inputs.q.device
    place = torch.arange(queries, device=device)[:, None] + keys - queries
    see = (torch.arange(keys, device=device)[None] <= place) | (not inputs.causal)
    if inputs.block_map is not None:
        rows, columns = inputs.block
        blocks = inputs.block_map[number].repeat_interleave(rows, 1).repeat_interleave(columns, 2)
        see = see & blocks[:, :queries, :keys]
    return see


def truth_of(inputs: Inputs, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact output and lse in fp64."""
    parts = []
    for number, (q, k, v) in enumerate(sequences(inputs)):
        see = visible(inputs, number, q.shape[1], k.shape[1])
        scores = (q @ k.mT * (scale or q.shape[-1] ** -0.5)).masked_fill(~see, -torch.inf)
        lse = scores.logsumexp(-1) if k.shape[1] else scores.new_full(scores.shape[:-1], -torch.inf)
        parts.append((torch.exp(scores - lse[..., None]).masked_fill(~see, 0.0) @ v, lse))
    return together(inputs, parts)


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """Rounded to e4m3, larger ones to its largest."""
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).double()


def rounded(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Whole numbers of a scale."""
    return (x / scale).round().clamp(-127, 127)


def sample_of(keys: int) -> torch.Tensor:
    """Rows whose mean is subtracted from K: one of each stratum of 2, 4 or 8 rows, all of under 1024 keys."""
    log2 = min(3, max(1, keys // 512).bit_length() - 1)
    strata = torch.arange(keys >> log2)
    bits = strata * 0x9E3779B1 & 0xFFFFFFFF
    bits = (bits ^ bits >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    return (strata << log2) + (bits >> 29) % (1 << log2)


def mean_of(k: torch.Tensor) -> torch.Tensor:
    """[heads, 1, dims]: what is subtracted from the keys of each head, 0 without keys."""
    sample = sample_of(k.shape[1]).to(k.device)
    return k[:, sample].sum(1, keepdim=True) / max(1, len(sample))


def key_scales(k: torch.Tensor) -> torch.Tensor:
    """[heads, keys, 1]: of four in each tile of 128 keys, those of the same (n % 8) // 2 have one."""
    heads, keys, _ = k.shape
    sizes = torch.nn.functional.pad(k.abs().amax(-1), (0, -keys % TILE)).view(heads, -1, TILE // 8, 4, 2)
    shared = (sizes.amax((2, 4), keepdim=True).clamp(min=2.0**-60) / 127).expand(sizes.shape)
    return shared.reshape(heads, -1)[:, :keys, None]


def recipe_of(
    inputs: Inputs, scale: float | None = None, *, tile: int = TILE, backwards: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse by the kernels' recipe: what rounding to 8 bits alone makes of it.

    Args:
        inputs: of the call.
        scale: of the scores; None: 1 / sqrt(D).
        tile: keys at a time, as weights are rounded in units of the largest so far.
        backwards: from the last tile to the first.
    """
    parts = []
    for number, (q, k, v) in enumerate(sequences(inputs)):
        (heads, queries, dim), keys = q.shape, k.shape[1]
        mean = mean_of(k)
        q_scale = q.abs().amax(-1, keepdim=True).clamp(min=2.0**-60) / 127
        k_scale = key_scales(k - mean)
        v_scale = (v.abs().amax(1, keepdim=True) if keys else v.new_zeros(heads, 1, dim)).clamp(min=2.0**-60) / 448
        factor = (scale or dim**-0.5) * LOG2_E
        scores = rounded(q, q_scale) @ rounded(k - mean, k_scale).mT * (q_scale * factor) * k_scale.mT
        scores = scores.masked_fill(~visible(inputs, number, queries, keys), -torch.inf)
        most = scores.new_full((heads, queries, 1), -torch.inf)
        sums, out = torch.zeros_like(most), q.new_zeros(heads, queries, dim)
        starts = range(0, keys, tile)
        for start in reversed(starts) if backwards else starts:
            part = scores[:, :, start : start + tile]
            new = torch.maximum(most, part.amax(-1, keepdim=True))
            pivot = torch.where(new == -torch.inf, 0.0, new)
            weights, kept = torch.exp2(part - pivot + PEAK), torch.exp2(most - pivot)
            sums = sums * kept + weights.sum(-1, keepdim=True)
            out = out * kept + e4m3(weights) @ e4m3(v[:, start : start + tile] / v_scale)
            most = new
        empty = sums == 0
        total = torch.where(empty, 1.0, sums)
        lse = (most + total.log2() - PEAK + (q * mean).sum(-1, keepdim=True) * factor) / LOG2_E
        parts.append((out / total * v_scale, torch.where(empty, -torch.inf, lse)[..., 0]))
    return together(inputs, parts)


def e4m3_of(inputs: Inputs) -> torch.Tensor:
    """Output with q, k and v in e4m3, a scale for each head and sequence, as FlashAttention 3 has it; sums are exact."""
    parts = []
    for number, qkv in enumerate(sequences(inputs)):
        scales = [x.abs().amax((1, 2), keepdim=True) / 448 for x in qkv]
        q, k, v = (e4m3(x / scale) * scale for x, scale in zip(qkv, scales, strict=True))
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(
            ~visible(inputs, number, q.shape[1], k.shape[1]), -torch.inf
        )
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        parts.append((e4m3(weights * 256) / 256 @ v / weights.sum(-1, keepdim=True), scores.logsumexp(-1)))
    return together(inputs, parts)[0]


def distance(found: torch.Tensor, right: torch.Tensor) -> float:
    """Relative L1: Σ|x - t| / Σ|t|; 0 of nothing."""
    return float((found.double() - right).abs().sum() / right.abs().sum().clamp(min=1e-300))


def held(
    inputs: Inputs,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    scale: float | None = None,
    off: float = 0.05,
    **order: object,
) -> None:
    """Demand that results are those of the recipe, up to a value that falls to the other side of a rounding step."""
    want, want_lse = recipe_of(inputs, scale, **order)
    right, right_lse = truth_of(inputs, scale)
    assert out.isfinite().all()
    assert distance(out, want) <= 0.006
    assert distance(out, right) <= off
    assert distance(out, right) <= 1.1 * distance(want, right) + 0.003  # of the output's own rounding
    # One value of q or k on the other side of a rounding step moves a row whose weight lies on few keys.
    moved = torch.where(lse.double() == want_lse, 0.0, (lse.double() - want_lse).abs())  # equal: also -inf, of no key
    assert moved.isfinite().all()
    assert (moved > 5e-3 + 1e-4 * want_lse.abs()).double().mean() <= 0.002
    assert moved.max() <= 0.02
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-2, atol=0.1)


def quantised(inputs: Inputs, made: Any) -> Any:
    """Fill what `prepare.allocate` gave as the two launches of the preparation do; rows that are no sequence's are odd."""
    for x in (made.q, made.k, made.v):
        x.view(torch.uint8).fill_(0x7F)
    for x in (made.q_scale, made.q_shift, made.k_scale, made.v_scale):
        x.fill_(torch.nan)
    made.counter.zero_()
    repeats, at_q, at_k = made.q.shape[0] // made.k.shape[0], 0, 0
    starts = range(inputs.q.shape[0]) if inputs.cu_q is None else (inputs.cu_q[:-1].tolist(), inputs.cu_k[:-1].tolist())
    order = torch.tensor([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])
    places = (torch.arange(0, TILE, 16)[:, None] + order).flatten()
    for number, (q, k, v) in enumerate(sequences(inputs)):
        (_, queries, dim), keys = q.shape, k.shape[1]
        k, v = k[::repeats], v[::repeats]
        if inputs.cu_q is not None:
            at_q, at_k = (
                (side[number] + number * pad) // pad * pad for side, pad in zip(starts, (64, TILE), strict=True)
            )
        q_rows, k_rows = -(-queries // 64) * 64, -(-keys // TILE) * TILE
        mean = mean_of(k)
        q_scale = q.abs().amax(-1, keepdim=True).clamp(min=2.0**-60) / 127
        k_scale = key_scales(k - mean)
        v_scale = (v.abs().amax(1, keepdim=True) if keys else v.new_zeros(v.shape[0], 1, dim)).clamp(min=2.0**-60) / 448
        factor = dim**-0.5 * LOG2_E
        for x, rows, at, values in (
            (made.q, q_rows, at_q, rounded(q, q_scale)),
            (made.k, k_rows, at_k, rounded(k - mean, k_scale)),
        ):
            x[:, at : at + rows] = 0
            x[:, at : at + values.shape[1], :dim] = values.to(torch.int8)
        made.q_scale[:, at_q : at_q + queries] = (q_scale * factor)[..., 0].float()
        shift = (q * mean.repeat_interleave(repeats, 0)).sum(-1) * factor
        made.q_shift[:, at_q : at_q + queries] = shift.float()
        for tile in range(k_rows // TILE):
            part = slice(tile * TILE, (tile + 1) * TILE)
            scales = torch.nn.functional.pad(k_scale[:, part, 0], (0, TILE - k_scale[:, part].shape[1]))
            made.k_scale[:, at_k // TILE + tile] = (
                scales.view(-1, TILE // 8, 4, 2).amax((1, 3)).clamp(min=2.0**-67).float()
            )
            values = torch.zeros(v.shape[0], TILE, made.v.shape[2], dtype=torch.double)
            values[:, : v[:, part].shape[1], :dim] = e4m3(v[:, part] / v_scale)
            made.v[:, at_k // TILE + tile] = values[:, places].transpose(1, 2).to(torch.float8_e4m3fn)
        made.v_scale[number] = 0
        made.v_scale[number, :, :dim] = v_scale[:, 0].float()
        at_q, at_k = at_q + q_rows, at_k + k_rows
    return made
