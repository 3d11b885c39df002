"""The ranking model against an fp64 version: without a cache, with one, and in every state of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbench.errors import UsageError
from attnbench.models.hstu_ranking import model as model_of
from attnbench.models.hstu_ranking.config import CONFIGS, ModelConfig, config_of
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import Request, history_ids
from kernels.interpreter import interpreted

from .plain_ranking import plain_logits

TINY = config_of("tiny")
EPS = {torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def request(user, length, candidates=3, *, seed=0, **more):
    drawn = np.random.default_rng([seed, user])
    given = {
        "context": np.array([user % 7, 2]),
        "items": drawn.integers(0, 50, 120)[:length],
        "actions": drawn.integers(0, 8, 120)[:length],
        "candidates": np.random.default_rng([9, user]).integers(0, 50, candidates),
    }
    return Request(user=user, **given | more)


def truth_of(model, requests):
    return torch.cat([plain_logits(model.config, model.state_dict(), one) for one in requests])


def held(model, found, requests):
    """Within twice what the model without a cache is off by, and some steps of rounding."""
    truth, plain = truth_of(model, requests), model(requests)
    assert found.shape == truth.shape
    assert found.dtype == model.dtype
    if not found.numel():
        return
    off = (found.double() - truth).abs().max()
    budget = 2 * (plain.double() - truth).abs().max() + 16 * EPS[model.dtype] * truth.abs().max()
    assert off <= budget, (off, budget)
    if model.dtype != torch.bfloat16 and any(len(one.items) and len(one.candidates) for one in requests):
        # The budget tells a right cache from a wrong one: with other histories scores are much further away.
        other = truth_of(model, [replace(one, items=(one.items + 1) % 50) for one in requests])
        assert (other - truth).abs().max() > 20 * budget


@pytest.mark.parametrize("variant", ["hstu", "stu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_without_a_cache_it_is_what_is_written_out(variant, dtype):
    model = HstuRanking(replace(TINY, variant=variant), seed=3, dtype=dtype)
    requests = [request(1, 20, 5), request(2, 0, 2), request(3, 1, 0), request(4, 40, 1)]
    held(model, model(requests), requests)


@pytest.mark.parametrize(
    "change",
    [{"embedding_dim": 48}, {"context": ()}, {"head": (2,), "towers": 1}],
    ids=lambda change: next(iter(change)),
)
def test_other_shapes(change):
    model = HstuRanking(replace(TINY, **change), dtype=torch.float64)
    requests = [request(1, 20, 5, **({"context": np.empty(0, np.int64)} if change.get("context") == () else {}))]
    held(model, model(requests), requests)


# With two features a history of h items has 2 + 2 h tokens: 15 items fill a page of 32.
GROWTH = {
    "around-a-page": [14, 15, 16, 30, 31, 32],
    "an-item-at-a-time": [30, 31, 32, 33],
    "nothing-new": [20, 20, 20],
    "from-nothing": [0, 0, 1, 50],
}


@pytest.mark.parametrize("name", GROWTH)
@pytest.mark.parametrize(
    ("variant", "dtype"), [("hstu", torch.bfloat16), ("hstu", torch.float32), ("stu", torch.float64)], ids=str
)
def test_with_a_cache_it_is_the_same(name, variant, dtype):
    model = HstuRanking(replace(TINY, variant=variant), seed=1, dtype=dtype)
    cache = model.make_cache(pages=12, page_size=32, poison=True)
    before = 0
    for step, length in enumerate(GROWTH[name]):
        requests = [request(1, length, step % 4), request(2, 3 * step, 2)]
        held(model, model(requests, cache=cache), requests)
        assert cache.users == {1: 2 * length + 2, 2: 6 * step + 2}
        before += 2 * length + 6 * step + 4
    assert cache.counts.tokens == before
    assert cache.counts.hit > 0


def test_after_eviction_reload_failure_and_recomputation():
    model = HstuRanking(TINY, seed=2, dtype=torch.float32)
    for host_pages in (0, 20):
        cache = model.make_cache(pages=5, page_size=32, host_pages=host_pages, poison=True)
        for user, length in ((1, 40), (2, 30), (1, 41), (3, 60), (1, 44), (2, 31)):
            requests = [request(user, length)]
            held(model, model(requests, cache=cache), requests)
        assert cache.counts.evicted_users >= 3
        assert (cache.counts.host_hit > 0) == (host_pages > 0)
        shrunk, changed = [request(2, 12)], [request(2, 31, seed=5)]
        held(model, model(shrunk, cache=cache), shrunk)
        held(model, model(changed, cache=cache), changed)
        moved = [request(2, 35, seed=5, context=np.array([0, 1]))]
        held(model, model(moved, cache=cache), moved)
        assert cache.counts.stale_users >= 3


def test_a_step_that_failed_leaves_no_trace():
    model = HstuRanking(TINY, dtype=torch.float32)
    cache = model.make_cache(pages=9, page_size=32, poison=True)
    first, longer = [request(1, 20)], [request(1, 33)]
    model(first, cache=cache)
    with pytest.raises(UsageError, match="attention=fast is not known"):
        model(longer, cache=cache, attention="fast")
    assert cache.users == {1: 42}
    held(model, model(longer, cache=cache), longer)
    assert cache.counts.failed_steps == 1


@pytest.mark.parametrize("cached", [False, True])
def test_a_score_depends_on_no_other_candidate_and_no_neighbour(cached):
    model = HstuRanking(TINY, dtype=torch.float64)
    whole = request(1, 20, 6)

    def score(requests):
        cache = model.make_cache(pages=20, page_size=32, poison=True) if cached else None
        if cached:
            model([replace(one, items=one.items[:9], actions=one.actions[:9]) for one in requests], cache=cache)
        return model(requests, cache=cache)

    alone = score([whole])
    for candidate in range(6):
        one = replace(whole, candidates=whole.candidates[candidate : candidate + 1])
        torch.testing.assert_close(score([one]), alone[candidate : candidate + 1], rtol=1e-12, atol=1e-12)
    beside = score([request(2, 33, 7), whole, request(3, 1, 1)])
    torch.testing.assert_close(beside[7:13], alone, rtol=1e-12, atol=1e-12)


def test_kernels_give_what_plain_torch_gives():
    """Both kernels in Triton's interpreter, with a cache and without."""
    pytest.importorskip("triton")
    config = replace(TINY, layers=1, heads=1, context=())
    model = HstuRanking(config, dtype=torch.float32)
    none = np.empty(0, np.int64)
    with interpreted("attnbench.kernels.hstu.paged.api", "attnbench.kernels.hstu.dense.api"):
        for attention in ("paged", "gathered"):
            cache = model.make_cache(pages=7, page_size=32, poison=True)
            for lengths in ((15, 2), (17, 2)):
                requests = [request(1, lengths[0], context=none), request(2, lengths[1], 1, context=none)]
                held(model, model(requests, cache=cache, attention=attention), requests)
            held(model, model(requests, attention=attention), requests)
            assert cache.counts.hit == 34


RECENCY = ModelConfig(
    name="small-dlrm",
    layers=2,
    hidden=32,
    heads=2,
    dim=16,
    variant="stu",
    items=50,
    actions=8,
    context=(7,),
    max_history=60,
    max_candidates=9,
    head=(16, 1),
    recency=True,
    eps=1e-6,
)


def test_a_model_that_counts_back_scores_and_takes_no_cache():
    model = HstuRanking(RECENCY, dtype=torch.float64)
    one = replace(request(1, 20, 4), context=np.array([3]), times=np.arange(20) * 1000, now=20_000)
    scores = model([one])
    assert scores.shape == (4, 1)
    alone = model(
        [
            replace(one, candidates=one.candidates[2:3]),
            replace(one, user=2, items=one.items[:5], actions=one.actions[:5], times=one.times[:5]),
        ]
    )
    torch.testing.assert_close(alone[:1], scores[2:3], rtol=1e-12, atol=1e-12)
    for other in (
        replace(one, now=900_000),
        replace(one, actions=(one.actions + 1) % 8),
        replace(one, items=one.items[::-1].copy()),
        replace(one, context=np.array([4])),
    ):
        assert (model([other]) - scores).abs().max() > 1e-6
    for refused in (
        lambda: model.make_cache(pages=4),
        lambda: model([one], cache=HstuRanking(TINY).make_cache(pages=4)),
    ):
        with pytest.raises(UsageError, match="cache=small-dlrm counts positions and times back from the request"):
            refused()


def test_weights_follow_the_seed():
    first, again, other = (HstuRanking(TINY, seed=seed).state_dict() for seed in (4, 4, 5))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_the_published_sizes():
    bench, kuairand, dlrm = (CONFIGS[name] for name in ("bench", "kuairand", "dlrm-v3"))
    assert (bench.tasks, kuairand.tasks, dlrm.tasks) == (3, 8, 1)
    assert kuairand.history_tokens == 6 + 8192
    assert dlrm.scaling_seqlen == 16384
    assert bench.scaling_seqlen == 2 * 8192 + 1024
    with pytest.raises(UsageError, match="model=bunch is not known; one of bench, dlrm-v3, kuairand, small, tiny"):
        config_of("bunch")
    for wrong in ({"layers": 0}, {"variant": "mine"}, {"head": ()}):
        with pytest.raises(UsageError, match=f"hstu-ranking: {next(iter(wrong))}="):
            replace(TINY, **wrong)


BAD = {
    "user=1 is in the batch twice; each user once": [request(1, 2), request(1, 3)],
    "items[3]=50 is outside the vocabulary; 0 to 49": [request(1, 5, items=np.array([1, 2, 3, 50, -1]))],
    "candidates[0]=-1 is outside the vocabulary; 0 to 49": [replace(request(1, 5), candidates=np.array([-1]))],
    "actions[1]=8 is outside the vocabulary; 0 to 7": [request(1, 2, actions=np.array([7, 8]))],
    "context[1]=3 is outside the vocabulary; 0 to 2": [request(1, 2, context=np.array([1, 3]))],
    "len(actions)=1 does not fit; 2": [request(1, 2, actions=np.array([7]))],
    "len(context)=3 does not fit; 2": [request(1, 2, context=np.array([1, 1, 1]))],
    "len(items)=101 is over the model's; at most 100": [request(1, 101)],
    "len(candidates)=21 is over the model's; at most 20": [request(1, 1, 21)],
    "candidates=[1, 2] is no array; a numpy array": [replace(request(1, 2), candidates=[1, 2])],
    "items=int64[] has no dim; an array of one dim": [request(1, 2, items=np.array(5))],
    "user=[1] is no number of a user; a whole number": [replace(request(1, 2), user=[1])],
    "user=nan is no number of a user; a whole number": [replace(request(1, 2), user=float("nan"))],
    "user=True is no number of a user; a whole number": [request(2, 2), replace(request(1, 2), user=True)],
    "items=float64[2] are no ids; whole numbers in one dim": [request(1, 2, items=np.array([1.0, 2.0]))],
}


@pytest.mark.parametrize("said", BAD, ids=lambda said: said.split("=")[0])
def test_bad_requests_are_refused_in_one_line(said):
    model = HstuRanking(TINY)
    cache = model.make_cache(pages=9)
    with pytest.raises(UsageError) as refused:
        model(BAD[said], cache=cache)
    assert str(refused.value) == f"hstu-ranking: request {len(BAD[said]) - 1}: {said}"
    assert cache.counts.steps == 0


def test_times_and_foreign_caches_are_refused():
    model = HstuRanking(RECENCY)
    one = replace(request(1, 2), context=np.array([3]))
    with pytest.raises(UsageError, match=r"request 0: len\(times\)=None does not fit; 2"):
        model([one])
    with pytest.raises(UsageError, match="request 0: now=5 is before the history's end"):
        model([replace(one, times=np.array([1, 9]), now=5)])
    for times, now, said in (
        (np.array([0.5, 1]), 9, r"times=float64\[2\] are no seconds; whole numbers in one dim"),
        ([1, 2], 9, r"times=\[1, 2\] is no array; a numpy array"),
        (np.array([1, 2]), np.nan, "now=nan is no time; whole seconds under"),
        (np.array([-(2**63), 2]), 9, "times=-9223372036854775808 is no time; seconds above"),
    ):
        with pytest.raises(UsageError, match=f"request 0: {said}"):
            model([replace(one, times=times, now=now)])
    said = "hstu-ranking: cache=of 1 users was made for other weights; one that make_cache of this model made"
    first, second = HstuRanking(TINY), HstuRanking(TINY)
    cache = first.make_cache(pages=3)
    first([request(1, 2)], cache=cache)
    with pytest.raises(UsageError, match=said):
        second([request(1, 2)], cache=cache)
    first.load_state_dict(second.state_dict())
    with pytest.raises(UsageError, match=said):
        first([request(1, 2)], cache=cache)
    with pytest.MonkeyPatch.context() as patch:  # another model at the address of one that is no longer there
        patch.setattr(model_of, "id", lambda one: 7, raising=False)
        first, second = HstuRanking(TINY, seed=1), HstuRanking(TINY, seed=2)
        cache = first.make_cache(pages=3)
        with pytest.raises(UsageError, match="cache=of 0 users was made for other weights"):
            second([request(1, 2)], cache=cache)


def test_a_batch_of_nobody_and_arrays_of_nothing():
    model = HstuRanking(TINY)
    for cache in (None, model.make_cache(pages=3)):
        assert model([], cache=cache).shape == (0, 4)
        assert model(
            [
                Request(
                    user=1, items=np.array([]), actions=np.array([]), candidates=np.array([]), context=np.array([1, 1])
                )
            ],
            cache=cache,
        ).shape == (0, 4)


def test_ids_say_all_that_keys_depend_on():
    assert history_ids(TINY, request(1, 2, items=np.array([5, 6]), actions=np.array([0, 7]))).tolist() == [
        59,
        67,
        5,
        50,
        6,
        57,
    ]


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint64, ">i8"], ids=str)
def test_ids_of_any_whole_type_are_the_same_ids(kind):
    """Actions stand behind the items in one table: 250 + 7 does not fit 8 bits."""
    config = replace(TINY, items=250)
    one = request(1, 8, 3, actions=np.arange(8))
    other = replace(
        one, **{name: getattr(one, name).astype(kind) for name in ("items", "actions", "candidates", "context")}
    )
    assert history_ids(config, other).tolist() == history_ids(config, one).tolist()
    model = HstuRanking(config, dtype=torch.float32)
    assert torch.equal(model([other]), model([one]))


def test_times_of_any_whole_type_are_the_same_times():
    model = HstuRanking(RECENCY, dtype=torch.float32)
    one = replace(request(1, 4), context=np.array([3]), times=np.array([0, 50, 90, 120]), now=9000)
    for kind in (np.int8, np.uint64):
        assert torch.equal(model([replace(one, times=one.times.astype(kind))]), model([one]))
