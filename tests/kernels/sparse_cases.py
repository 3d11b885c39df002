"""Block-sparse attention written out plainly in fp64, and the inputs of its tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Tensors and a map of one call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    block_map: torch.Tensor
    block: tuple[int, int]
    causal: bool


def inputs_of(
    seqlen: int = 200,
    seqlen_k: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    heads_kv: int = 0,
    dim: int = 64,
    block: tuple[int, int] = (64, 64),
    density: float = 0.5,
    causal: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    device: str = "cpu",
) -> Inputs:
    """Normal values and a random map, drawn on the CPU; density 1 is a full one."""
    seqlen_k = seqlen if seqlen_k is None else seqlen_k
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, seqlen, heads, dim, generator=generator)
    k, v = (torch.randn(batch, seqlen_k, heads_kv or heads, dim, generator=generator) for _ in "kv")
    shape = batch, heads, -(-seqlen // block[0]), -(-seqlen_k // block[1])
    block_map = torch.rand(shape, generator=generator) < density
    q, k, v = (x.to(dtype).to(device) for x in (q, k, v))
    return Inputs(q=q, k=k, v=v, block_map=block_map.to(device), block=block, causal=causal)


def visible(inputs: Inputs) -> torch.Tensor:
    """[B, H, Sq, Sk]: which keys each query sees."""
    (_, queries, _, _), keys = inputs.q.shape, inputs.k.shape[1]
    see = inputs.block_map.repeat_interleave(inputs.block[0], 2).repeat_interleave(inputs.block[1], 3)
    see = see[:, :, :queries, :keys]
    if inputs.causal:
        place = torch.arange(queries, device=see.device)[:, None] + keys - queries
        see = see & (torch.arange(keys, device=see.device)[None] <= place)
    return see


def truth_of(inputs: Inputs, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, Sq, H, D] and lse [B, H, Sq] in fp64: keys that are not seen have no value at all."""
    q, k, v = (x.double().transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    see = visible(inputs)
    scores = (q @ k.mT * (scale or q.shape[-1] ** -0.5)).masked_fill(~see, -torch.inf)
    lse = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    weights = torch.exp(scores - lse[..., None]).masked_fill(~see, 0.0)
    seen = see.any(2)[..., None]
    return (weights @ torch.where(seen, v, 0.0)).transpose(1, 2), lse


def held(inputs: Inputs, out: torch.Tensor, lse: torch.Tensor, scale: float | None = None) -> None:
    """Demand that a kernel's results are the oracle's, up to what a 16-bit evaluation is off by."""
    want, want_lse = truth_of(inputs, scale)
    step = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}[inputs.q.dtype]
    torch.testing.assert_close(out.double(), want, rtol=4 * step, atol=4 * step)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=2e-5)


def listed(inputs: Inputs, *, share: int = 1, unit: int = 0) -> dict[str, torch.Tensor | None]:
    """The tensors of `BlockLists`, made one block after the other; what is behind a list's last is not looked at."""
    (batch, queries, heads, _), keys = inputs.q.shape, inputs.k.shape[1]
    see, bk = visible(inputs), inputs.block[1]
    unit = unit or inputs.block[0]
    units, columns = -(-queries // unit), inputs.block_map.shape[3]
    own = torch.zeros(batch, heads, units, columns, dtype=torch.bool)
    for row in range(units):
        for column in range(columns):
            tile = see[:, :, row * unit : (row + 1) * unit, column * bk : (column + 1) * bk]
            own[:, :, row, column] = tile.any(-1).any(-1)
    lists = -(-units // share)
    indices, places = (torch.full((batch, heads, n, columns), 10**6, dtype=torch.int32) for n in (lists, units))
    items = []
    for b in range(batch):
        for h in range(heads):
            for number in range(lists):
                rows = range(number * share, min((number + 1) * share, units))
                blocks = [column for column in range(columns) if own[b, h, rows.start : rows.stop, column].any()]
                indices[b, h, number, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
                for row in rows:
                    mine = [place for place, column in enumerate(blocks) if own[b, h, row, column]]
                    places[b, h, row, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
                last = number * share * unit + keys - queries + 1 if inputs.causal else keys
                whole = sum((column + 1) * bk <= min(last, keys) for column in blocks)
                items.append(((b * heads + h) * lists + number, len(blocks), whole))
    items.sort(key=lambda item: -item[1])
    return {
        "counts": own.sum(-1, dtype=torch.int32),
        "indices": indices,
        "places": places if share > 1 else None,
        "items": torch.tensor(items, dtype=torch.int32).reshape(-1, 3),
    }
