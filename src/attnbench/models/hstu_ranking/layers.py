"""Modules of an HSTU ranking model: token embeddings, HSTU layers in both published variants, and the towers.

    hstu   [u, v, q, k] = SiLU(LN(x) W + b)                        out = x + (LN(a) u) W_o
    stu    [u, v, q, k] = LN(x) W + b, SiLU on u alone             out = x + [u, a, LN(a) u] W_o        a = attention

(hstu: Zhai et al. 2024, arXiv:2402.17152, and NVIDIA/recsys-examples; stu: meta-recsys/generative-recommenders.)
Inference only: no dropout, no gradients.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnbench.kernels.hstu.arguments import Parts
from attnbench.models.hstu_ranking.config import ACTION_DIM, ACTION_HIDDEN, ModelConfig
from attnbench.models.hstu_ranking.operations import PLAIN, Operations
from attnbench.models.hstu_ranking.rows import POSITIONS, TIME_BUCKETS, Rows

CATEGORIES = 128
"Item categories, in models that add the action to its item (DLRMv3)."


class Tokens(nn.Module):
    """Token embeddings with absolute positions: x √d + P; all candidates share the position after the history."""

    def __init__(self, config: ModelConfig) -> None:
        """Tables and, if they are not as wide as the model, a projection to its width."""
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.vocabulary, config.width))
        self.down = nn.Linear(config.width, config.hidden) if config.width != config.hidden else None
        self.positions = nn.Parameter(torch.empty(config.history_tokens + 1, config.hidden))

    def forward(self, rows: Rows, operations: Operations = PLAIN) -> Tensor:
        """[rows, hidden]."""
        if self.down is None:
            return operations.embed(rows.ids, rows.positions, self.table, self.positions)
        x = self.down(functional.embedding(rows.ids, self.table).to(self.positions.dtype))
        return x * x.shape[1] ** 0.5 + functional.embedding(rows.positions, self.positions)


class CountedBack(nn.Module):
    """Token embeddings of DLRMv3: an MLP of item and category, plus the action, with positions and times counted back
    from the request.

    MLPerf's data contains an item's category; here it is the item id modulo 128.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Tables and MLPs."""
        super().__init__()
        self.table = nn.Parameter(torch.empty(config.vocabulary, config.width))
        self.categories = nn.Parameter(torch.empty(CATEGORIES, config.width))
        self.item = _mlp((2 * config.width, config.hidden, config.hidden))
        self.actions = nn.Parameter(torch.empty(config.actions + 1, ACTION_DIM))
        self.action = _mlp((ACTION_DIM, ACTION_HIDDEN, config.hidden))
        self.positions = nn.Parameter(torch.empty(POSITIONS, config.hidden))
        self.times = nn.Parameter(torch.empty(TIME_BUCKETS, config.hidden))

    def forward(self, rows: Rows, operations: Operations = PLAIN) -> Tensor:
        """[rows, hidden]."""
        assert rows.actions is not None
        assert rows.times is not None
        item = torch.cat(
            [
                functional.embedding(rows.ids, self.table).to(self.positions.dtype),
                functional.embedding(rows.ids % CATEGORIES, self.categories),
            ],
            dim=1,
        )
        x = self.item(item) + self.action(functional.embedding(rows.actions, self.actions))
        x = x * x.shape[1] ** 0.5 + functional.embedding(rows.positions, self.positions)
        return x + functional.embedding(rows.times, self.times)


class Layer(nn.Module):
    """One HSTU layer."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the weights; the input projection has the columns of u, v, q, k in this order."""
        super().__init__()
        self.heads, self.dim, self.whole = config.heads, config.dim, config.variant == "hstu"
        wide = config.heads * config.dim
        self.norm = nn.LayerNorm(config.hidden, eps=config.eps)
        self.uvqk = nn.Linear(config.hidden, 4 * wide)
        self.norm_out = nn.LayerNorm(wide, eps=config.eps)
        self.out = nn.Linear(wide if self.whole else 3 * wide, config.hidden, bias=False)

    def project(
        self, x: Tensor, operations: Operations = PLAIN, *, silu: bool = True
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[rows, hidden] to u [rows, heads · dim], without its SiLU, and q, k, v [rows, heads, dim].

        With `silu` false, q, k and v are also without their SiLU, in models that have one.
        """
        wide = self.heads * self.dim
        uvqk = self.uvqk(operations.norm(x, self.norm))
        u, vqk = uvqk.narrow(1, 0, wide), uvqk.narrow(1, wide, 3 * wide)
        if self.whole and silu:
            vqk = operations.silu(vqk)
        v, q, k = vqk.view(-1, 3, self.heads, self.dim).unbind(1)  # half the host's time of `split` and three views
        return u, q, k, v

    def output(
        self,
        x: Tensor,
        u: Tensor,
        attended: Tensor | Parts,
        operations: Operations = PLAIN,
        count: Tensor | None = None,
    ) -> Tensor:
        """Return the layer's output from its input [rows, hidden], u, and the attention output [rows, heads, dim].

        The input may be overwritten.  `count` [1]: number of rows with valid attention output; None: all.
        """
        a = attended.flatten(1) if isinstance(attended, Tensor) else attended
        gated = operations.gate(a, u, self.norm_out, self.whole, count)
        return operations.add(x, gated, self.out.weight)


class Towers(nn.Module):
    """Logits of the candidates: rows of unit norm (LayerNorm in models with times counted back), then an MLP per tower."""

    def __init__(self, config: ModelConfig) -> None:
        """One MLP per tower; the weights of all towers are one tensor, so that one product computes all."""
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden, eps=config.eps) if config.recency else None
        sizes = list(pairwise((config.hidden, *config.head)))
        self.weights = nn.ParameterList(torch.empty(config.towers, after, before) for before, after in sizes)
        self.biases = nn.ParameterList(torch.empty(config.towers, after) for _, after in sizes)

    def forward(self, x: Tensor, candidates: Tensor, operations: Operations = PLAIN) -> Tensor:
        """From [rows, hidden], and the [candidates] rows to score, to [candidates, tasks]."""
        x = operations.unit(x, candidates) if self.norm is None else self.norm(x.index_select(0, candidates))
        y = functional.linear(x, self.weights[0].flatten(0, 1), self.biases[0].flatten())
        for number in range(1, len(self.weights)):
            y = operations.tower(y, self.weights[number], self.biases[number])
        return y


def _mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])
