"""Serving cases: refusals, exact work against counting, inputs by seed, the oracle and its allowed errors."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from attnbench.errors import UsageError
from attnbench.models.hstu_ranking.config import CONFIGS
from attnbench.workloads.base import Draw, load_workload
from attnbench.workloads.hstu_serving.work import attention_flops, pairs

WORKLOAD = load_workload("hstu-serving")
TINY = {"model": "tiny", "batch": 2, "num_candidates": 5, "cached": 62, "new_tokens": 8, "dtype": "fp32"}


def case(**values):
    return WORKLOAD.case(TINY | values)


BAD = {
    "batch=0 cannot be used": {"batch": 0},
    "num_candidates=0 cannot be used; a whole number from 1": {"num_candidates": 0},
    "num_candidates=21 is over what model=tiny scores; at most 20": {"num_candidates": 21},
    "cached=63 is no history of model=tiny; 2 of context and a multiple of 2 (an item and its action)": {"cached": 63},
    "cached=999 is no history of model=small; a multiple of 2 (an item and its action)": {
        "model": "small",
        "cached": 999,
    },
    "cached=1 is no history of model=tiny": {"cached": 1},
    "cached + new_tokens=65 is no history of model=tiny": {"new_tokens": 3},
    "cached + new_tokens=212 is over the history of model=tiny; at most 202": {"new_tokens": 150},
    "cached + new_tokens=0 leaves out the context of model=tiny; at least 2": {"cached": 0, "new_tokens": 0},
    "cache=ssd-hit is not known; one of gpu-hit, growth, host-hit, partial, pool": {"cache": "ssd-hit"},
    "cached + new_tokens of all visits=222 is over the history of model=tiny; at most 202": {
        "cache": "pool",
        "cached": 174,
    },
    "cached + new_tokens of all visits=206 is over the history of model=tiny; at most 202": {
        "cache": "growth",
        "visits": 18,
    },
    "visits=3 does not go with cache=gpu-hit; cache=growth": {"visits": 3},
    "visits=0 cannot be used; a whole number from 1 to 1024": {"visits": 0, "cache": "growth"},
    "visits=2000 cannot be used; a whole number from 1 to 1024": {"visits": 2000, "cache": "growth"},
    "new_tokens=0 does not go with cache=growth: nothing grows; 1 or more": {"cache": "growth", "new_tokens": 0},
    "pool_share=0.1 of what all users need is 1 pages, a step takes 4; at least 0.25": {
        "cache": "pool",
        "pool_share": 0.1,
    },
    "pool_share=0.5 does not go with cache=gpu-hit": {"pool_share": 0.5},
    "on_host_hit=recompute does not go with cache=gpu-hit, which has nothing in host memory; cache=host-hit": {
        "on_host_hit": "recompute"
    },
    "on_host_hit=both is not known; one of auto, recompute, reload": {"on_host_hit": "both", "cache": "host-hit"},
    "pool_share=1.5 cannot be used": {"pool_share": 1.5, "cache": "partial"},
    "pool_share=nan cannot be used": {"pool_share": float("nan"), "cache": "partial"},
    "checkpoint=7 names no file; a safetensors file": {"checkpoint": 7},
    "page_size=48 is not supported; one of 32, 64, 128": {"page_size": 48},
    "model=small-ish is not known": {"model": "small-ish"},
    "axis=seqlen is not known": {"seqlen": 4},
}


@pytest.mark.parametrize("said", BAD, ids=lambda said: said.split(" ")[0])
def test_what_cannot_be_is_refused_in_one_line(said):
    try:
        case(**BAD[said])
    except UsageError as refused:
        text = str(refused)
    assert text.startswith(("hstu-serving: ", "hstu-ranking: "))
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"cache": "host-hit"},
        {"cache": "host-hit", "on_host_hit": "auto"},
        {"cache": "partial", "pool_share": 0.3},
        {"cache": "pool", "pool_share": 0.9},
        {"cache": "growth"},
        {"cache": "growth", "visits": 5},
        {"cached": 0},
        {"page_size": 128, "dtype": "bf16"},
    ],
    ids=str,
)
def test_a_case_is_read_back_from_its_data_and_from_its_flags(model, values):
    context = len(CONFIGS[model].context)
    even = context % 2
    one = WORKLOAD.case(
        {"model": model, "cached": 64 + even, "new_tokens": 8 + even * (values.get("cached") == 0)}
        | values
        | {"num_candidates": 3}
    )
    assert WORKLOAD.case(one.to_dict()) == one
    words = WORKLOAD.flags(one)
    axes = {axis.name: axis for axis in WORKLOAD.axes}
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    assert WORKLOAD.case({name: axes[name].parse(text) for name, text in zip(names, words[1::2], strict=True)}) == one
    assert len({one.id, replace(one, batch=7).id, replace(one, num_candidates=2).id}) == 3


def test_what_a_step_finds_is_whole_items():
    assert case().found == 62
    assert case(cache="host-hit").found == 62
    for share, found in ((0.5, 30), (0.99, 60), (0.02, 0), (0.04, 2), (1, 62)):
        assert case(cache="partial", pool_share=share).found == found
    assert case(cache="host-hit", on_host_hit="recompute").id == "tiny-b2-t5-c62-n8-host-hit-recompute-p64-fp32"
    assert case(cached=0).found == 0


def visible(found, history, candidates):
    rows = range(found, history + candidates)
    return sum(1 for i in rows for j in range(history + candidates) if (j <= i and j < history) or j == i)


@pytest.mark.parametrize(("found", "history", "candidates"), [(0, 1, 1), (62, 70, 5), (0, 33, 4), (7, 7, 3)])
def test_pairs_are_those_of_the_mask(found, history, candidates):
    assert pairs(found, history - found, candidates) == visible(found, history, candidates)


@pytest.mark.parametrize("model", ["tiny", "small", "dlrm-v3"])
def test_work_is_what_the_products_of_a_step_take(model, monkeypatch):
    """Counted by torch itself over a step of a small model of the same kind."""
    from torch.utils.flop_counter import FlopCounterMode

    from attnbench.models.hstu_ranking import config as configs

    small = replace(
        CONFIGS[model],
        layers=2,
        hidden=32,
        heads=2,
        dim=16,
        items=50,
        actions=8,
        max_history=100,
        max_candidates=20,
        context=tuple(min(size, 9) for size in CONFIGS[model].context),
    )
    monkeypatch.setitem(configs.CONFIGS, model, small)
    one = case(model=model, batch=1, cached=0, new_tokens=21 if model == "dlrm-v3" else 20)
    inputs = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu")
    with FlopCounterMode(display=False) as counter:
        inputs.model(inputs.requests())
    # Plain attention multiplies with hidden keys, too.
    rows, wide = one.history + one.num_candidates, 32
    hidden = small.layers * 4 * wide * (rows * rows - pairs(0, one.history, one.num_candidates))
    assert WORKLOAD.work(one).flops == counter.get_total_flops() - hidden
    assert attention_flops(one) == small.layers * 4 * wide * pairs(0, one.history, one.num_candidates)


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_a_series_has_all_users_each_at_most_once_a_step(batch):
    one = case(cache="pool", batch=batch, cached=30)
    counts = [0] * one.users
    for step in one.steps:
        assert len({visit.user for visit in step}) == len(step) == batch
        for visit in step:
            assert visit.earlier == counts[visit.user]
            counts[visit.user] += 1
    assert len(one.steps) == 8
    assert one.users == 4 * batch
    assert min(counts) == 1
    assert max(counts) > 2
    assert one.needed_pages == sum(-(-(30 + 8 * count) // 64) for count in counts)
    assert WORKLOAD.work(one).flops > 8 * WORKLOAD.work(replace(one, cache="gpu-hit", pool_share=None)).flops


def test_histories_grow_step_by_step_and_find_all_that_came_before():
    one = case(cache="growth", cached=0, new_tokens=10, visits=5)
    assert one.id == "tiny-b2-t5-c0-n10-growth5-p64-fp32"
    assert [[visit.user for visit in step] for step in one.steps] == [[0, 1]] * 5
    assert [one.found_of(step[0]) for step in one.steps] == [0, 10, 20, 30, 40]
    assert [one.history_of(step[1]) for step in one.steps] == [10, 20, 30, 40, 50]
    alone = [case(cached=found, new_tokens=10) for found in (10, 20, 30, 40)] + [case(cached=0, new_tokens=10)]
    assert WORKLOAD.work(one).flops == sum(WORKLOAD.work(each).flops for each in alone)
    # Seed 002: 64 steps of 256 tokens are all that the model's history has room for.
    assert WORKLOAD.case({"cache": "growth", "cached": 0}).visits == 64
    assert WORKLOAD.case({"cache": "growth", "cached": 512}).visits == 62
    assert WORKLOAD.case({"cache": "growth", "cached": 512, "new_tokens": 2}).visits == 64
    requests = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu").steps()
    for before, after in pairwise(requests):
        for earlier, later in zip(before, after, strict=True):
            assert later.items[: len(earlier.items)].tolist() == earlier.items.tolist()
            assert len(later.items) == len(earlier.items) + 5


def test_large_requests_are_checked_in_part_the_first_and_last_among_them(monkeypatch):
    one = case(batch=7)
    inputs = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu")
    assert WORKLOAD.draw(one, seed=0, max_bytes=1).parts is None
    monkeypatch.setattr(
        "attnbench.workloads.hstu_serving.parts.MOST_FLOPS",
        3.5 * WORKLOAD.work(case(batch=1, cached=0, new_tokens=70)).flops,
    )
    draw = WORKLOAD.draw(one, seed=0, max_bytes=1)
    assert len(draw.parts) == 3
    assert {(0,), (6,)} < set(draw.parts)
    assert draw != WORKLOAD.draw(one, seed=3, max_bytes=1)
    assert draw.note(0) == "checked in part: 3 requests drawn with seed 0, including the corners"
    whole = WORKLOAD.oracle("logits", one, inputs, dtype=torch.float64, draw=Draw())
    part = WORKLOAD.oracle("logits", one, inputs, dtype=torch.float64, draw=draw)
    assert torch.equal(WORKLOAD.select(one, whole, draw)["out"], part["out"])
    expected = WORKLOAD.expected_errors("logits", one, inputs, draw=draw)["out"]
    assert expected.shape == part["out"].shape == (15, 4)


def test_a_hit_saves_work_and_a_batch_multiplies_it():
    whole, nothing = case(cache="partial", pool_share=0.01), case(cached=0, new_tokens=70)
    assert WORKLOAD.work(case()).flops < WORKLOAD.work(whole).flops == WORKLOAD.work(nothing).flops
    assert WORKLOAD.work(case(batch=6)).flops == 3 * WORKLOAD.work(case()).flops
    assert WORKLOAD.work(case(batch=6)).bytes < 3 * WORKLOAD.work(case()).bytes


@pytest.mark.parametrize("kind", ["normal", "uniform", "zeros"])
def test_inputs_follow_the_seed_and_share_the_weights(kind):
    first, again, other = (WORKLOAD.inputs(case(), seed=seed, kind=kind, device="cpu") for seed in (3, 3, 4))
    assert first.model is again.model is other.model
    assert first.users == again.users
    assert not set(first.users) & set(other.users)
    for name in ("items", "actions", "candidates", "context"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert torch.equal(first.items, other.items) == (kind == "zeros")
    for inputs in (first, other):
        for before, request in zip(inputs.before(), inputs.requests(), strict=True):
            assert len(before.items) == 30
            assert before.items.tolist() == request.items[:30].tolist()
            assert len(before.candidates) == 0


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("candidates", [1, 20])
def test_expected_errors_are_about_those_that_are_seen(dtype, candidates):
    one = case(dtype=dtype, num_candidates=candidates, batch=4)
    inputs = WORKLOAD.inputs(one, seed=2, kind="normal", device="cpu")
    truth, plain = (
        WORKLOAD.oracle("logits", one, inputs, dtype=precision, draw=Draw())["out"]
        for precision in (torch.float64, inputs.model.dtype)
    )
    expected = WORKLOAD.expected_errors("logits", one, inputs, draw=Draw())["out"]
    assert truth.shape == plain.shape == expected.shape == (4 * candidates, 4)
    ratio = ((plain.double() - truth).square().mean().sqrt() / expected.square().mean().sqrt()).item()
    # Sums are expected in their worst order, which in fp32 is what decides.
    assert (0.05 if dtype == "fp32" else 0.4) < ratio < 1.6
    assert torch.equal(expected, WORKLOAD.expected_errors("logits", one, inputs, draw=Draw())["out"])


def test_a_check_evaluates_the_exact_answer_once(monkeypatch):
    """In fp64 at full size it takes as long as each of the draws of errors."""
    from attnbench.workloads.hstu_serving import oracle, rounding

    one, counted = case(batch=1, num_candidates=20), []
    logits = oracle.logits

    def counting(model, *args, **kwargs):
        counted.append(model.dtype)
        return logits(model, *args, **kwargs)

    monkeypatch.setattr(oracle, "logits", counting)
    monkeypatch.setattr(rounding, "logits", counting)
    inputs = WORKLOAD.inputs(one, seed=2, kind="normal", device="cpu")
    truth = WORKLOAD.oracle("logits", one, inputs, dtype=torch.float64, draw=Draw())["out"]
    WORKLOAD.expected_errors("logits", one, inputs, draw=Draw())
    assert len(counted) == 1 + rounding.DRAWS
    again = WORKLOAD.inputs(one, seed=3, kind="normal", device="cpu")
    assert not torch.equal(WORKLOAD.oracle("logits", one, again, dtype=torch.float64, draw=Draw())["out"], truth)
    [suspect, *_] = WORKLOAD.suspects("logits", one, inputs, draw=Draw())
    assert not torch.equal(suspect[1]["out"], truth), "a wrong answer is not the cached one"


def test_weights_are_those_of_the_checkpoint(tmp_path, monkeypatch):
    from attnbench.models.hstu_ranking.checkpoint import save
    from attnbench.models.hstu_ranking.model import HstuRanking

    other = HstuRanking(CONFIGS["tiny"], seed=9, dtype=torch.float32)
    monkeypatch.setenv("ATTNBENCH_GIVEN_FILES", "")
    parse = next(axis.parse for axis in WORKLOAD.axes if axis.name == "checkpoint")
    save(other, tmp_path / "my-model.safetensors")
    one = case(checkpoint=parse(str(tmp_path / "my-model.safetensors")))
    digest = hashlib.sha256((tmp_path / "my-model.safetensors").read_bytes()).hexdigest()[:8]
    assert one.checkpoint == f"my-model.safetensors@{digest}"
    assert one.id == f"tiny_my_model_{digest}-b2-t5-c62-n8-gpu-hit-p64-fp32"
    inputs = WORKLOAD.inputs(one, seed=3, kind="normal", device="cpu")
    torch.testing.assert_close(inputs.model(inputs.requests()), other(inputs.requests()), rtol=0, atol=0)
    assert WORKLOAD.inputs(one, seed=4, kind="normal", device="cpu").model is inputs.model
    assert WORKLOAD.inputs(case(), seed=3, kind="normal", device="cpu").model is not inputs.model
    save(HstuRanking(CONFIGS["small"], dtype=torch.float32), tmp_path / "small.safetensors")
    by_path = case(checkpoint=str(tmp_path / "my-model.safetensors"))  # as a caller in Python may say it
    assert by_path.id == "tiny_my_model-b2-t5-c62-n8-gpu-hit-p64-fp32"
    again = WORKLOAD.inputs(by_path, seed=3, kind="normal", device="cpu")
    torch.testing.assert_close(again.model(again.requests()), other(again.requests()), rtol=0, atol=0)
    small = case(checkpoint=parse(str(tmp_path / "small.safetensors")))
    with pytest.raises(UsageError, match=r"checkpoint: tokens\.table=\[10128, 64\] is another model's; \[68, 32\]"):
        WORKLOAD.inputs(small, seed=3, kind="normal", device="cpu")
    save(HstuRanking(CONFIGS["tiny"], seed=10, dtype=torch.float32), tmp_path / "my-model.safetensors")
    changed = case(checkpoint=parse(str(tmp_path / "my-model.safetensors")))
    assert changed.id != one.id
    assert WORKLOAD.inputs(changed, seed=3, kind="normal", device="cpu").model is not inputs.model


def test_a_cache_that_is_not_read_is_another_answer():
    one = case()
    inputs = WORKLOAD.inputs(one, seed=2, kind="normal", device="cpu")
    truth = WORKLOAD.oracle("logits", one, inputs, dtype=torch.float64, draw=Draw())["out"]
    ((words, blind),) = WORKLOAD.suspects("logits", one, inputs, draw=Draw())
    assert words == "cached tokens that are not read"
    assert (blind["out"] - truth).abs().max() > 1e-3
    assert not list(WORKLOAD.suspects("logits", case(cached=0, new_tokens=70), inputs, draw=Draw()))


def test_tables_beyond_the_memory_are_refused():
    one = WORKLOAD.case({"model": "dlrm-v3", "dtype": "fp32", "cached": 65, "new_tokens": 8})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnbench.workloads.hstu_serving.inputs.available_memory", lambda: 4096 * 10**6)
        with pytest.raises(MemoryError, match=r"the tables of model dlrm-v3 take 22\.6 GB, 4\.1 GB are free"):
            WORKLOAD.inputs(one, seed=0, kind="normal", device="cpu")


def test_a_table_wider_than_the_model_has_a_product_behind_it_and_must_fit(monkeypatch):
    usual, wide = (WORKLOAD.case({"model": "small", "embedding_dim": dim}) for dim in (None, 256))
    assert wide.id == usual.id.replace("small-", "small_e256-")
    assert WORKLOAD.case(wide.to_dict()) == wide
    rows = wide.batch * (wide.new_tokens + wide.num_candidates)
    assert WORKLOAD.work(wide).flops - WORKLOAD.work(usual).flops == rows * 2 * 256 * 64
    model = WORKLOAD.inputs(wide, seed=0, kind="normal", device="cpu").model
    assert model.tokens.table.shape == (wide.config.vocabulary, 256)
    assert model.tokens.down.weight.shape == (64, 256)
    with pytest.raises(UsageError, match=r"^hstu-serving: embedding_dim=0 cannot be used; a whole number from 1 to "):
        replace(wide, embedding_dim=0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 8 * 10**9))
    huge = WORKLOAD.case({"model": "bench", "embedding_dim": 262144, "dtype": "bf16"})
    with pytest.raises(MemoryError, match=r"the tables of model bench take 5\.3 GB, 2\.0 GB are free"):
        WORKLOAD.inputs(huge, seed=0, kind="normal", device="cuda:0")
