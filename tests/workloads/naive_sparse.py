"""Block-sparse attention by its definition, pair by pair, sharing no code with the package."""

import torch


def visible(case, blocks):
    """Bool [B, H, Sq, Sk]: whether a query sees a key."""
    rows, columns = (int(size) for size in case.block.split("x"))
    seen = torch.zeros(case.batch, case.nheads, case.seqlen, case.seqlen_k, dtype=torch.bool)
    for i in range(blocks.shape[2]):
        for j in range(blocks.shape[3]):
            seen[:, :, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns] = blocks[:, :, i, j, None, None]
    if case.causal:
        own = torch.arange(case.seqlen)[:, None] + case.seqlen_k - case.seqlen
        seen &= torch.arange(case.seqlen_k)[None, :] <= own
    return seen


def attention(case, inputs, blocks=None):
    """out [B, Sq, H, D] and lse [B, H, Sq] in fp64; a row that sees nothing is 0 and -∞."""
    seen = visible(case, inputs.block_map if blocks is None else blocks)
    q, k, v = (x.double() for x in (inputs.q, inputs.k, inputs.v))
    repeats = case.nheads // case.nheads_kv
    k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / case.headdim**0.5
    lse = scores.masked_fill(~seen, -torch.inf).logsumexp(-1)
    weights = torch.where(seen, (scores - lse[..., None]).exp(), 0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse
