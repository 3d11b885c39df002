"""Sizes of an HSTU ranking model, and the named configurations.

Can be imported without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.errors import UsageError, refusal, unknown

WHO = "hstu-ranking"
VARIANTS = ("hstu", "stu")
ACTION_DIM, ACTION_HIDDEN = 8, 256
"Widths of the action embedding and of its MLP, in models that add the action to its item (DLRMv3)."
RECENCY_REASON = (
    "counts positions and times back from the request, so the keys and values of every cached token "
    "change with each request"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A model's sizes; frozen.

    Raises:
        UsageError: a field is invalid; the message names it.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    dim: int
    "of a head's queries, keys and values"
    variant: str = "hstu"
    "hstu: SiLU on u, v, q, k, output of LN(a) u (the paper, NVIDIA); stu: SiLU on u, output of u, a, LN(a) u (Meta)"
    items: int
    "item vocabulary"
    actions: int
    "action vocabulary"
    context: tuple[int, ...] = ()
    "vocabularies of the context features, one token each at the front of the sequence"
    max_history: int
    "maximum items of a history, each with its action"
    max_candidates: int
    head: tuple[int, ...]
    "layer sizes of a tower that scores the candidates, outputs last"
    towers: int = 1
    "number of towers; outputs times towers are the tasks"
    embedding_dim: int | None = None
    "width of the tables; None: `hidden`, and no projection after them"
    recency: bool = False
    """one token per history item with its action added (MLPerf's DLRMv3), positions and times counted back from the
    request; otherwise item, action, item, … with absolute positions"""
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for field in (
            "layers",
            "hidden",
            "heads",
            "dim",
            "items",
            "actions",
            "max_history",
            "max_candidates",
            "towers",
        ):
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise UsageError(refusal(WHO, field, value, "cannot be used", "a whole number from 1"))
        if self.variant not in VARIANTS:
            raise unknown(WHO, "variant", self.variant, VARIANTS)
        if not self.head:
            raise UsageError(refusal(WHO, "head", self.head, "has no outputs", "at least one size"))

    @property
    def tasks(self) -> int:
        """Logits per candidate."""
        return self.head[-1] * self.towers

    @property
    def item_tokens(self) -> int:
        """Tokens per history item: two for item and action, or one for both."""
        return 1 if self.recency else 2

    @property
    def history_tokens(self) -> int:
        """Maximum tokens of context and history."""
        return len(self.context) + self.max_history * self.item_tokens

    @property
    def scaling_seqlen(self) -> int:
        """Divisor of the attention: a constant of the model, independent of the batch."""
        return self.history_tokens + self.max_candidates

    @property
    def vocabulary(self) -> int:
        """Rows of the table that context, items and actions share."""
        return self.items + self.actions + sum(self.context)

    @property
    def width(self) -> int:
        """Columns of the table."""
        return self.hidden if self.embedding_dim is None else self.embedding_dim

    @property
    def table_numbers(self) -> int:
        """Numbers in the tables of tokens and positions, most of what a large model has in memory."""
        return self.vocabulary * self.width + self.history_tokens * self.hidden

    def check_cache(self) -> None:
        """Refuse a cache for a model in which it would give wrong scores.

        Raises:
            UsageError: with the reason.
        """
        if self.recency:
            raise UsageError(refusal(WHO, "cache", self.name, RECENCY_REASON, "no cache with this model"))


CONFIGS = {
    one.name: one
    for one in (
        # NVIDIA/recsys-examples, examples/hstu/inference/benchmark: the model of its inference benchmark.
        ModelConfig(
            name="bench",
            layers=8,
            hidden=1024,
            heads=4,
            dim=256,
            items=10_000,
            actions=128,
            max_history=8192,
            max_candidates=1024,
            head=(128, 10, 1),
            towers=3,
        ),
        # NVIDIA/recsys-examples, examples/hstu/inference/configs/kuairand_1k_inference_ranking.gin; context: user,
        # activity, follows, fans, friends, days since registration.
        ModelConfig(
            name="kuairand",
            layers=3,
            hidden=512,
            heads=4,
            dim=128,
            items=1_000_000,
            actions=256,
            context=(1000, 9, 10, 10, 9, 9),
            max_history=4096,
            max_candidates=1024,
            head=(512, 8),
        ),
        # mlcommons/inference, recommendation/dlrm_v3/configs.py; its 1e9 items and 1e7 users are hashed to
        # tables that fit a GPU.
        ModelConfig(
            name="dlrm-v3",
            layers=5,
            hidden=512,
            heads=4,
            dim=128,
            variant="stu",
            items=10_000_000,
            actions=256,
            context=(1_000_000,),
            max_history=16384 - 2048 - 1,
            max_candidates=2048,
            head=(512, 1),
            recency=True,
            eps=1e-6,
        ),
        # `bench` with fewer and smaller layers, which a CPU scores in milliseconds.
        ModelConfig(
            name="small",
            layers=2,
            hidden=64,
            heads=2,
            dim=32,
            items=10_000,
            actions=128,
            max_history=4096,
            max_candidates=1024,
            head=(128, 10, 1),
            towers=3,
        ),
        ModelConfig(
            name="tiny",
            layers=2,
            hidden=32,
            heads=2,
            dim=16,
            items=50,
            actions=8,
            context=(7, 3),
            max_history=100,
            max_candidates=20,
            head=(16, 2),
            towers=2,
        ),
    )
}


def config_of(name: str) -> ModelConfig:
    """Return the configuration with this name.

    Raises:
        UsageError: there is no configuration of that name.
    """
    if name not in CONFIGS:
        raise unknown(WHO, "model", name, CONFIGS)
    return CONFIGS[name]
