"""What an HSTU ranking model is made of: token embeddings, HSTU layers in both published variants, the towers.

    hstu   [u, v, q, k] = SiLU(LN(x) W + b)                        out = x + (LN(a) u) W_o
    stu    [u, v, q, k] = LN(x) W + b, SiLU on u alone             out = x + [u, a, LN(a) u] W_o        a = attention

(hstu: Zhai et al. 2024, arXiv:2402.17152, and NVIDIA/recsys-examples; stu: meta-recsys/generative-recommenders.)
Inference alone: no dropout, no gradients.
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
"Of models that add the action to its item (DLRMv3)."


class Tokens(nn.Module):
    """Rows of tokens with absolute positions: x √d + P; all candidates stand behind the history, at one place."""

    def __init__(self, config: ModelConfig) -> None:
        """Tables and, where they are not as wide as the model, the product behind them."""
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
    """Rows of DLRMv3: item and category through an MLP, the action added, positions and times back from the request.

    MLPerf's data says an item's category; here it is the item's number modulo 128.
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
        """Weights; order of the wide product: u, v, q, k."""
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
        """[rows, hidden] to u [rows, heads · dim], before its SiLU, and q, k, v [rows, heads, dim].

        Without `silu` q, k and v are before theirs too, if they have one.
        """
        wide = self.heads * self.dim
        u, vqk = self.uvqk(operations.norm(x, self.norm)).split((wide, 3 * wide), dim=1)
        if self.whole and silu:
            vqk = operations.silu(vqk)
        v, q, k = vqk.split(wide, dim=1)
        q, k, v = (part.view(-1, self.heads, self.dim) for part in (q, k, v))
        return u, q, k, v

    def output(
        self,
        x: Tensor,
        u: Tensor,
        attended: Tensor | Parts,
        operations: Operations = PLAIN,
        count: Tensor | None = None,
    ) -> Tensor:
        """What the layer makes of its input [rows, hidden], u, and the output of attention [rows, heads, dim].

        The input may be overwritten.  `count` [1] says how many rows attention has an output for; None: all.
        """
        a = attended.flatten(1) if isinstance(attended, Tensor) else attended
        gated = operations.gate(a, u, self.norm_out, self.whole, count)
        return operations.add(x, gated, self.out.weight)


class Towers(nn.Module):
    """Logits of the candidates: rows of length one (LayerNorm, where times count back), then an MLP a tower."""

    def __init__(self, config: ModelConfig) -> None:
        """One MLP a tower; weights of all towers stand in one tensor, so that a product serves all."""
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden, eps=config.eps) if config.recency else None
        sizes = list(pairwise((config.hidden, *config.head)))
        self.weights = nn.ParameterList(torch.empty(config.towers, after, before) for before, after in sizes)
        self.biases = nn.ParameterList(torch.empty(config.towers, after) for _, after in sizes)

    def forward(self, x: Tensor, candidates: Tensor, operations: Operations = PLAIN) -> Tensor:
        """[rows, hidden], of which [candidates] are to be scored, to [candidates, tasks]."""
        x = operations.unit(x, candidates) if self.norm is None else self.norm(x.index_select(0, candidates))
        y = functional.linear(x, self.weights[0].flatten(0, 1), self.biases[0].flatten())
        for number in range(1, len(self.weights)):
            y = operations.tower(y, self.weights[number], self.biases[number])
        return y


def _mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Products with ReLU between them."""
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])
