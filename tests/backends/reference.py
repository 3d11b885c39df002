"""A small reference implementation in fp64 that shares no code with the package."""

import torch


def attention(q, k, v, *, causal=False, window=None, scale=None):
    """One sequence: q [Sq, H, D], k [Sk, G, D], v [Sk, G, Dv] -> [Sq, H, Dv]."""
    left, right = window or (-1, -1)
    queries, keys, group = len(q), len(k), q.shape[1] // k.shape[1]
    here = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    seen = (key >= here - left) | (left < 0)
    seen &= (key <= here + right) | (right < 0)
    seen &= (key <= here) | (not causal)
    scores = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(group, 1)) * (scale or q.shape[2] ** -0.5)
    weights = scores.masked_fill(~seen, -1e30).softmax(-1) * seen
    return torch.einsum("hij,jhd->ihd", weights, v.repeat_interleave(group, 1))


def dense(q, k, v, **how):
    """[B, S, H, D]."""
    return torch.stack([attention(*part, **how) for part in zip(q, k, v, strict=True)])


def packed(q, k, v, offsets_q, offsets_k, **how):
    """[T, H, D] with the offsets of each sequence."""
    parts = zip(
        *(x.split(at.diff().tolist()) for x, at in ((q, offsets_q), (k, offsets_k), (v, offsets_k))), strict=True
    )
    return torch.cat([attention(*part, **how) for part in parts])


def expected(case, inputs):
    """out and, where the case has a backward, dq, dk and dv, in fp64 and the canonical layout."""
    q, k, v = (x.detach().double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    how = {"causal": case.causal, "window": case.window}
    out = packed(q, k, v, inputs.cu_seqlens_q, inputs.cu_seqlens_k, **how) if case.packed else dense(q, k, v, **how)
    if case.mode == "fwd":
        return {"out": out.detach()}
    grads = torch.autograd.grad(out, (q, k, v), inputs.dout.double())
    return {"out": out.detach()} | dict(zip(("dq", "dk", "dv"), grads, strict=True))
