"""The cost of a step on the host, counted: no Python per token, one copy to the device, no value read back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.graphs import StepGraphs
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.staging import Sizes, Staging
from waiting import calls_of

SMALL = config_of("small")
NONE = np.empty(0, dtype=np.int64)


def requests_of(batch, items, candidates):
    return [
        Request(
            user=user,
            items=np.arange(items),
            actions=np.zeros(items, np.int64),
            candidates=np.arange(candidates),
            context=NONE,
        )
        for user in range(batch)
    ]


@pytest.mark.parametrize("cached", [True, False])
def test_the_host_makes_as_many_calls_for_long_histories_as_for_short_ones(cached):
    """Ids are checked, compared and copied by passes over memory."""
    model = HstuRanking(SMALL, dtype=torch.float32)
    counts = {}
    for items in (100, 3000):
        cache = model.make_cache(pages=2 * 4 * 128, page_size=64)
        users = list(range(4))
        before = model.histories(requests_of(4, items if cached else 0, 0), cache)
        cache.commit(cache.allocate(users, before, [0] * 4, cache.lookup(users, before)), before)
        requests = requests_of(4, items + 32, 128)
        staging = Staging(SMALL, Sizes(4, 4 * 6400, 512, 1000, 6400, 6400), torch.device("cpu"))

        def step(cache=cache, requests=requests, staging=staging, users=users):
            histories = model.histories(requests, cache)
            found = cache.allocate(users, histories, [128] * 4, cache.lookup(users, histories))
            staging.fill(requests, histories, found)
            cache.commit(found, histories)

        _, counts[items] = calls_of(step)
    assert counts[3000] <= counts[100] + 8
    assert counts[100] < 4 * 200


class Watched(TorchDispatchMode):
    """Names of operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("graph", [True, False])
def test_a_step_reads_no_value_back_from_the_device(graph):
    model = HstuRanking(SMALL, dtype=torch.float32)
    cache = model.make_cache(pages=64, page_size=64, host_pages=64)
    graphs = StepGraphs(model, cache=cache, attention="reference")
    with Watched() as watched:
        for items in (20, 25):
            if graph:
                graphs(requests_of(2, items, 5))
            else:
                model(requests_of(2, items, 5), cache=cache, attention="reference")
    assert "addmm" in watched.names
    assert not {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"} & set(watched.names)
