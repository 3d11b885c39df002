"""A small reference that shares no code with the package: fp64, explicit loops over the visible keys."""

import torch


def lengths(case):
    return case.sequences


def attention(q, k, v, *, causal, window):
    """One sequence: q [Sq, H, D], k [Sk, G, D], v [Sk, G, Dv] -> [Sq, H, Dv]."""
    left, right = window or (-1, -1)
    queries, keys, group = len(q), len(k), q.shape[1] // k.shape[1]
    rows = []
    for i in range(queries):
        here = i + keys - queries
        first = 0 if left < 0 else max(0, here - left)
        last = keys - 1 if right < 0 else min(keys - 1, here + right)
        if causal:
            last = min(last, here)
        if last < first:
            rows.append(q.new_zeros(q.shape[1], v.shape[2]) + 0 * q[i].sum())
            continue
        ks = k[first : last + 1].repeat_interleave(group, 1)
        vs = v[first : last + 1].repeat_interleave(group, 1)
        weights = torch.einsum("hd,khd->hk", q[i], ks).div(q.shape[2] ** 0.5).softmax(-1)
        rows.append(torch.einsum("hk,khd->hd", weights, vs))
    return torch.stack(rows)


def expected(case, inputs):
    """out and, where the case has a backward, dq, dk and dv, in fp64 and the canonical layout."""
    q, k, v = (x.detach().double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    if case.packed:
        parts = zip(*(x.split([pair[n] for pair in case.sequences]) for x, n in ((q, 0), (k, 1), (v, 1))), strict=True)
        out = torch.cat([attention(*part, causal=case.causal, window=case.window) for part in parts])
    else:
        out = torch.stack([attention(*part, causal=case.causal, window=case.window)
                           for part in zip(q, k, v, strict=True)])
    if case.mode == "fwd":
        return {"out": out.detach()}
    grads = torch.autograd.grad(out, (q, k, v), inputs.dout.double(), allow_unused=True)
    return {"out": out.detach()} | dict(zip(("dq", "dk", "dv"), grads, strict=True))
