"""HSTU attention pair by pair in Python, from its definition, for autograd to differentiate."""

from __future__ import annotations

import torch


def silu(x):
    return x / (1 + torch.exp(-x))


def sees(case, shape, i, j):
    """Whether row i of a sequence sees row j."""
    prefix, seen, window = shape.prefix, shape.length - shape.targets, case.max_attn_len
    if i < prefix:
        return j < seen
    if i == j:
        return True
    if j >= seen or (case.causal and j > i):
        return False

    def place(x):
        x = min(x, seen)
        return x if prefix == 0 else 0 if x < prefix else x - prefix + 1

    return window is None or (place(i) - place(j) <= window and (case.causal or place(j) - place(i) <= window))


def dense(case, q, k, v):
    """Out [Tq, H, Dv] of packed q, k, v."""
    out, row, base = [], 0, 0
    for shape in case.sequences:
        for i in range(shape.length - shape.queries, shape.length):
            total = torch.zeros_like(v[:1].sum(0))
            for j in range(shape.length):
                if sees(case, shape, i, j):
                    score = (q[row] * k[base + j]).sum(-1, keepdim=True) * case.alpha
                    total = total + silu(score) * v[base + j] / case.scaling_seqlen
            out.append(total)
            row += 1
        base += shape.length
    return torch.stack(out) if out else v.new_zeros(0, *v.shape[1:])


def blocks_of(case, shape, q_row, k, head):
    """Blocks one query selects, as a sorted list; `k` are the rows of its sequence, `q_row` is (position, q)."""
    position, q = q_row
    history, size = shape.length - shape.targets, case.block_size
    if history == 0:
        return []
    local = min(position, history - 1) // size
    heads = range(case.nheads) if case.selection == "shared" else [head]

    def score(block):
        return sum(float(q[h] @ k[block * size : (block + 1) * size, h].mean(0)) * case.alpha for h in heads)

    ranked = sorted(range(local), key=lambda block: (-score(block), block))
    return sorted([local, *ranked[: case.block_counts - 1]])


def ranker(case, shape, i, row):
    """The query that selects for row i, query `row`: itself, or the item that an action belongs to."""
    history, first = shape.length - shape.targets, shape.length - shape.queries
    return row - 1 if case.pairs and i % 2 == 1 and i < history and i - 1 >= first else row


def sparse(case, q, k, v, gates):
    """Out [Tq, H, Dv] of the block-sparse function."""
    out, row, base = [], 0, 0
    size = case.block_size
    for shape in case.sequences:
        ks, vs = k[base : base + shape.length], v[base : base + shape.length]
        history = shape.length - shape.targets
        for i in range(shape.length - shape.queries, shape.length):
            heads = []
            for h in range(case.nheads):

                def term(key, value, h=h, row=row):
                    return silu(case.alpha * (q[row, h] @ key)) * value / case.scaling_seqlen

                nothing = torch.zeros_like(vs[0, h])
                whole = [range(b * size, (b + 1) * size) for b in range(history // size) if (b + 1) * size - 1 <= i]
                branches = [
                    sum(
                        (size * term(ks[list(block), h].mean(0), vs[list(block), h].mean(0)) for block in whole),
                        nothing,
                    )
                ]
                chosen = blocks_of(case, shape, (i, q[ranker(case, shape, i, row)].detach()), ks.detach(), h)
                picked = [j for j in range(history) if j <= i and j // size in chosen]
                branches.append(sum((term(ks[j, h], vs[j, h]) for j in picked + [i] * (i >= history)), nothing))
                if case.local_window is not None:
                    near = [j for j in range(history) if j <= i and min(i, history) - j < case.local_window]
                    branches.append(sum((term(ks[j, h], vs[j, h]) for j in near + [i] * (i >= history)), nothing))
                weights = [1] * len(branches) if gates is None else gates[row, h]
                heads.append(sum((weight * branch for weight, branch in zip(weights, branches, strict=True)), nothing))
            out.append(torch.stack(heads))
            row += 1
        base += shape.length
    return torch.stack(out) if out else v.new_zeros(0, *v.shape[1:])


def gradients(function, case, inputs):
    """Out and the gradients of a function of (q, k, v[, gates]), in fp64, by autograd."""
    names = ["q", "k", "v"] + ["gates"] * (function is sparse and inputs.gates is not None)
    leaves = {name: getattr(inputs, name).double().requires_grad_() for name in names}
    out = function(case, *(leaves.get(name) for name in (("q", "k", "v", "gates") if function is sparse else names)))
    # An empty or unused tensor has a gradient of zeros.
    found = torch.autograd.grad(
        (out * inputs.dout.double()).sum() + sum(0 * leaf.sum() for leaf in leaves.values()), list(leaves.values())
    )
    return {"out": out.detach()} | {f"d{name}": tensor for name, tensor in zip(names, found, strict=True)}
