"""An HSTU ranking model for one request in fp64, written out from the weights by name: the reference."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding, layer_norm, silu


def plain_logits(config, weights, request):
    """[T, tasks] in fp64: context, then item, action, …, all rows of the sequence at once."""
    w = {name: weight.double() for name, weight in weights.items()}
    features, length = len(config.context), 2 * len(request.items)
    ids = []
    for feature, value in enumerate(request.context):
        ids.append(config.items + config.actions + sum(config.context[:feature]) + int(value))
    for item, action in zip(request.items, request.actions, strict=True):
        ids += [int(item), config.items + int(action)]
    ids += [int(candidate) for candidate in request.candidates]
    seen, rows = features + length, len(ids)
    x = embedding(torch.tensor(ids, dtype=torch.int64), w["tokens.table"])
    if "tokens.down.weight" in w:
        x = x @ w["tokens.down.weight"].T + w["tokens.down.bias"]
    places = torch.tensor([min(i, seen) for i in range(rows)], dtype=torch.int64)
    x = x * config.hidden**0.5 + embedding(places, w["tokens.positions"])
    mask = torch.tensor([(j <= i and j < seen) or j == i for i in range(rows) for j in range(rows)]).view(rows, rows)
    for number in range(config.layers):
        x = x + _layer(config, {name.removeprefix(f"layers.{number}."): weight for name, weight in w.items()}, x, mask)
    x = x[seen:]
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-6)
    found = []
    for tower in range(config.towers):
        y = x
        for place in range(len(config.head)):
            y = y @ w[f"towers.weights.{place}"][tower].T + w[f"towers.biases.{place}"][tower]
            y = y.relu() if place + 1 < len(config.head) else y
        found.append(y)
    return torch.cat(found, dim=1)


def _layer(config, w, x, mask):
    normed = layer_norm(x, (config.hidden,), w["norm.weight"], w["norm.bias"], config.eps)
    wide = normed @ w["uvqk.weight"].T + w["uvqk.bias"]
    wide = silu(wide) if config.variant == "hstu" else wide
    u, v, q, k = wide.chunk(4, dim=1)
    parts = []
    for head in range(config.heads):
        one = slice(head * config.dim, (head + 1) * config.dim)
        weights = silu(q[:, one] @ k[:, one].T * config.dim**-0.5) * mask
        parts.append(weights @ v[:, one] / config.scaling_seqlen)
    a = torch.cat(parts, dim=1)
    normed = layer_norm(a, a.shape[1:], w["norm_out.weight"], w["norm_out.bias"], config.eps)
    if config.variant == "hstu":
        return (normed * u) @ w["out.weight"].T
    return torch.cat([silu(u), a, normed * silu(u)], dim=1) @ w["out.weight"].T
