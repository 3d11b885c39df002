"""Seeded inputs of a `ServingCase`: the model, and two consecutive requests of each user.

Weights are the same for every seed: they belong to the case's model, or come from its checkpoint.  The seed determines
users and their requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from attnbench.dtypes import torch_dtype
from attnbench.errors import unknown
from attnbench.machine.memory import available_memory
from attnbench.models.hstu_ranking.checkpoint import check, load
from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.synthetic import draw_ranks, hashed
from attnbench.workloads.attention.kinds import PLAIN
from attnbench.workloads.given_files import path_of
from attnbench.workloads.hstu_serving.case import WHO, ServingCase

WEIGHTS_SEED = 0
MINUTE = 60
_MODELS: WeakValueDictionary[tuple[ModelConfig, str | None, str, str], HstuRanking] = WeakValueDictionary()
"Models in use, so that two sets of inputs of a case share one."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class ServingInputs:
    """A model and the requests of a batch, or of a series of them."""

    case: ServingCase
    model: HstuRanking
    users: tuple[int, ...]
    items: Tensor
    "int64 [users, items of the longest history], in host memory like every part of a request"
    actions: Tensor
    "int64 [users, items of the longest history]"
    candidates: Tensor
    "int64 [users, num_candidates]"
    context: Tensor
    "int64 [users, features]"

    def tensors(self) -> dict[str, Tensor]:
        """Requests and weights.  Embedding tables are omitted: no step writes to them, and some have gigabytes."""
        weights = {name: weight for name, weight in self.model.named_parameters() if not name.startswith("tokens.")}
        return weights | {name: getattr(self, name) for name in ("items", "actions", "candidates", "context")}

    def steps(self) -> list[list[Request]]:
        """Return the requests of each step; the arrays are views of the tensors."""
        case = self.case
        return [[self._request(one.user, case.items(case.history_of(one))) for one in step] for step in case.steps]

    def requests(self) -> list[Request]:
        """Return the requests of all steps, one step after another."""
        return [request for step in self.steps() for request in step]

    def before(self) -> list[Request]:
        """Return the requests that fill the cache: no candidates, and a history of the tokens to be found cached."""
        items = self.case.items(self.case.found)
        return [self._request(number, items, candidates=0) for number in range(self.case.users)]

    def _request(self, number: int, items: int, candidates: int | None = None) -> Request:
        times: np.ndarray = np.arange(items, dtype=np.int64) * MINUTE
        return Request(
            user=self.users[number],
            items=self.items[number, :items].numpy(),
            actions=self.actions[number, :items].numpy(),
            candidates=self.candidates[number, :candidates].numpy(),
            context=self.context[number].numpy(),
            times=times,
            now=items * MINUTE,
        )


def make_inputs(case: ServingCase, *, seed: int, kind: str, device: str | torch.device) -> ServingInputs:
    """Make the inputs of a case.

    Args:
        case: the problem.
        seed: of users and requests; different seeds have different users.
        kind: of items: normal, with the popularity of the synthetic users; uniform; zeros: always the same one.
        device: of the model, meta for one without memory; requests are in host memory.

    Raises:
        UsageError: the kind is unknown.
    """
    if kind not in PLAIN:
        raise unknown(WHO, "input", kind, PLAIN)
    config, drawn = case.config, np.random.default_rng([seed, *case.id.encode()])
    count, length = case.users, max(case.items(case.history_of(visit)) for step in case.steps for visit in step)

    def some(size: int, each: int) -> Tensor:
        shape = (count, each)
        if kind == "zeros":
            return torch.zeros(shape, dtype=torch.int64)
        if kind == "normal" and size == config.items:
            return torch.from_numpy(hashed(draw_ranks(drawn, count * each), size).reshape(shape))
        return torch.from_numpy(drawn.integers(0, size, shape))

    features = [some(size, 1) for size in config.context]
    return ServingInputs(
        case=case,
        model=_model(case, device),
        users=tuple(_users(seed, count)),
        items=some(config.items, length),
        actions=some(config.actions, length),
        candidates=some(config.items, case.num_candidates),
        context=torch.cat(features, dim=1) if features else torch.zeros((count, 0), dtype=torch.int64),
    )


def check_weights(config: ModelConfig, checkpoint: str) -> None:
    """Refuse a checkpoint that a model could not load, by its header alone.

    Raises:
        UsageError: it is not there, is no safetensors file, is cut short, or has another model's weights.
    """
    check(HstuRanking(config, device="meta"), path_of(WHO, "checkpoint", checkpoint))


def _check_memory(case: ServingCase, device: str | torch.device) -> None:
    """Refuse tables that do not fit in memory, before any memory is allocated.

    Raises:
        MemoryError: with the sizes.
    """
    wanted = case.table_bytes
    if torch.device(device).type == "cpu":
        free = available_memory()
        if free is None:
            return
        room = free // 2
    else:
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = free = torch.cuda.mem_get_info(device)[0] + kept
    if wanted > room:
        theirs = "; half of it may be theirs" * (room < free)
        raise MemoryError(
            f"the tables of model {case.model} take {wanted / 1e9:.1f} GB, {free / 1e9:.1f} GB are free{theirs}"
        )


def _users(seed: int, count: int) -> Sequence[int]:
    return range(seed << 20, (seed << 20) + count)


def _model(case: ServingCase, device: str | torch.device) -> HstuRanking:
    key = (case.config, case.checkpoint, case.dtype, str(device))
    found = _MODELS.get(key)
    if found is None:
        has_memory = torch.device(device).type != "meta"
        if has_memory:
            _check_memory(case, device)
        found = HstuRanking(case.config, seed=WEIGHTS_SEED, dtype=torch_dtype(case.dtype), device=device)
        if has_memory and case.checkpoint is not None:
            load(found, path_of(WHO, "checkpoint", case.checkpoint))
        _MODELS[key] = found
    return found
