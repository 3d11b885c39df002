"""What only a card can show of kept calls: they are kept at all, give the same bits, and follow stream and device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnbench.kernels import flash_attention, flash_quant_attention, hstu_attention, hstu_bsa_attention
from attnbench.kernels.flash import calls as flash
from attnbench.kernels.flash.quant import calls as quant
from attnbench.kernels.hstu.bsa import calls as bsa
from attnbench.kernels.hstu.dense import calls as dense
from attnbench.kernels.hstu.paged import calls as paged
from attnbench.kernels.hstu.paged.api import Step, hstu_paged_attention
from attnbench.kernels.shared.kept import Kept, Launches

pytestmark = pytest.mark.gpu
KEPT = {"flash": flash.CALLS, "quant": quant.CALLS, "dense": dense.CALLS, "bsa": bsa.CALLS, "paged": paged._attentions}


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16, offset: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    count = torch.Size(shape).numel()
    return torch.randn(count + offset, device="cuda", generator=generator).to(dtype)[offset:].view(shape)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def of_flash() -> dict[str, Any]:
    return {}


def of_dense() -> dict[str, Any]:
    return {"offsets": ints(0, 250, 600), "max_seqlen": 350}


def of_bsa() -> dict[str, Any]:
    return {"offsets": ints(0, 500, 1200), "max_seqlen": 700, "gates": drawn(1200, 4, 2, seed=9)}


def of_paged() -> dict[str, Any]:
    table = {"offsets": ints(0, 200, 300), "cached": ints(70, 64), "indptr": ints(0, 5, 9)}
    table |= {"indices": ints(*range(9)), "num_targets": ints(20, 30)}
    step = Step(**table, max_new=200, max_cached=128)
    return {"pool": drawn(9, 2, 64, 4, 128, seed=8), "step": step, "scaling_seqlen": 500}


CALLS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "flash": (flash_attention, (2, 300, 4, 128), of_flash),
    "dense": (hstu_attention, (600, 4, 128), of_dense),
    "bsa": (hstu_bsa_attention, (1200, 4, 128), of_bsa),
    "paged": (hstu_paged_attention, (300, 4, 128), of_paged),
}
"Function, shape of q, k and v, and what else it is given."


def arguments(name: str, seed: int, **changes: Any) -> dict[str, Any]:
    _, shape, more = CALLS[name]
    return {x: drawn(*shape, seed=seed + at) for at, x in enumerate("qkv")} | more() | changes


def results(name: str, given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    found = CALLS[name][0](**given)
    return found if isinstance(found, tuple) else (found,)


def packed(**changes: Any) -> dict[str, Any]:
    given = {name: drawn(600, 4, 128, seed=at) for at, name in enumerate("qkv")}
    return given | {"cu_seqlens_q": ints(0, 250, 600), "max_seqlen_q": 350} | changes


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("flash", {}),
    ("flash", {"causal": True}),
    ("flash", {"window": (70, 5)}),
    ("flash", {"window": (71, 5)}),
    ("flash", {"scale": 0.3}),
    ("flash", packed()),
    ("flash", packed(causal=True, max_seqlen_q=600)),
    ("flash", packed(cu_seqlens_q=ints(0, 10, 250, 600))),
    ("flash", {"q": drawn(2, 300, 4, 128, seed=5, offset=1)}),
    ("flash", {"k": drawn(2, 301, 4, 128, seed=5), "v": drawn(2, 301, 4, 128, seed=6)}),
    ("flash", {"q": drawn(2, 300, 4, 256, seed=5)[..., :128]}),
    ("flash", {"k": drawn(2, 300, 2, 128, seed=5), "v": drawn(2, 300, 2, 128, seed=6)}),
    ("flash", {"v": drawn(2, 300, 4, 64, seed=6)}),
    ("flash", {name: drawn(2, 300, 4, 128, seed=at, dtype=torch.float16) for at, name in enumerate("qkv")}),
    ("dense", {}),
    ("dense", {"alpha": 0.5}),
    ("dense", {"causal": False}),
    ("dense", {"contextual_len": 5}),
    ("dense", {"max_attn_len": 40}),
    ("dense", {"scaling_seqlen": 400}),
    ("dense", {"num_targets": ints(5, 7)}),
    ("dense", {"q": drawn(600, 4, 128, seed=5, offset=1)}),
    ("dense", {"q": drawn(40, 4, 128, seed=5), "offsets_q": ints(0, 10, 40), "max_seqlen_q": 30}),
    ("bsa", {}),
    ("bsa", {"selection": "shared"}),
    ("bsa", {"block_counts": 3}),
    ("bsa", {"local_window": 50, "gates": drawn(1200, 4, 3, seed=9)}),
    ("bsa", {"alpha": 0.5}),
    ("bsa", {"q": drawn(1200, 4, 128, seed=5, offset=1)}),
    ("paged", {}),
    ("paged", {"splits": 1}),
    ("paged", {"splits": 3}),
    ("paged", {"alpha": 0.5}),
    ("paged", {"config": "m64n32w4s2"}),
    ("paged", {"config": "m64n32w4s2-tma"}),
] if torch.cuda.is_available() else []  # fmt: skip


def forget() -> None:
    for one in KEPT.values():
        one._calls.clear()


def launches_in(one: Kept[Any]) -> list[Launches]:
    return [getattr(call, "launches", getattr(call, "forward", call)) for call in one._calls.values()]


def same(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("at", range(35))
def test_a_kept_call_gives_the_same_bits_as_the_first(at):
    """Each argument changed alone, between calls of what it was changed from."""
    name, changes = CHANGES[at]
    forget()
    truth = results(name, arguments(name, 3, **changes))
    forget()
    for seed in (1, 1, 2):
        results(name, arguments(name, seed))
    for seed in (4, 3, 3):
        found = results(name, arguments(name, seed, **changes))
        assert same(found, truth) is (seed == 3 or set("qkv") <= changes.keys())
    kept = launches_in(KEPT[name])
    assert kept
    assert [one.fault for one in kept] == [None] * len(kept)
    assert all(one.plans for one in kept)


def with_rows(name: str, count: int) -> dict[str, Any]:
    """Sequences of `count` rows in all, by the bounds of all such calls."""
    given = {x: drawn(count, 4, 128, seed=count + at) for at, x in enumerate("qkv")}
    if name == "dense":
        return given | {"offsets": ints(0, 250, count), "max_seqlen": 900}
    if name in ("packed", "quant"):
        offsets = ints(*(count * part // 4 for part in range(5)))
        return given | {"cu_seqlens_q": offsets, "max_seqlen_q": 300, "causal": True}
    if name == "bsa":
        return given | {"offsets": ints(0, 250, count), "max_seqlen": 900, "gates": drawn(count, 4, 2, seed=9)}
    if name == "cached":
        keys = {x: drawn(count + 2000, 4, 128, seed=count + at) for at, x in enumerate("kv")}
        bounds = {"max_seqlen": 3000, "max_seqlen_q": 900}
        return given | keys | bounds | {"offsets": ints(0, 1250, count + 2000), "offsets_q": ints(0, 250, count)}
    old = of_paged()
    new = {"offsets": ints(0, 200, count), "max_new": 900} | {x: getattr(old["step"], x) for x in ("cached", "indptr")}
    step = Step(**new, indices=old["step"].indices, num_targets=old["step"].num_targets, max_cached=128)
    return given | old | {"step": step}


JAGGED: dict[str, tuple[Kept[Any], Any]] = {
    "dense": (dense.CALLS, hstu_attention),
    "cached": (dense.CALLS, hstu_attention),
    "paged": (paged._attentions, hstu_paged_attention),
    "packed": (flash.CALLS, flash_attention),
    "quant": (quant.CALLS, flash_quant_attention),
    "bsa": (bsa.CALLS, hstu_bsa_attention),
}


@pytest.mark.parametrize("name", JAGGED)
def test_a_kept_call_gives_the_same_bits_for_other_rows(name):
    store, function = JAGGED[name]

    def found(count: int) -> tuple[torch.Tensor, ...]:
        results = function(**with_rows(name, count))
        return results if isinstance(results, tuple) else (results,)

    for count in (600, 777, 1100, 333):
        forget()
        truth = found(count)
        forget()
        for before in (512, 640):
            found(before)
        assert len(store) == 1
        assert all(same(found(count), truth) for _ in range(2))
        assert len(store) == 1, "other rows were another call"
        (one,) = launches_in(store)
        assert one.fault is None


@pytest.mark.parametrize("name", ["dense", "packed", "bsa"])
def test_gradients_of_kept_calls_are_the_same_for_other_rows(name):
    store, function = JAGGED[name]

    def gradients(count: int) -> list[torch.Tensor]:
        given = with_rows(name, count) | ({} if name == "bsa" else {"deterministic": True})
        inputs = [given[x].requires_grad_() for x in "qkv"]
        out = function(**given)
        (out if isinstance(out, torch.Tensor) else out[0]).backward(drawn(count, 4, 128, seed=7))
        return [x.grad for x in inputs]

    forget()
    truth = gradients(777)
    forget()
    for count in (600, 512, 773, 777):
        found = gradients(count)
    assert all(map(torch.equal, found, truth))
    for call in store._calls.values():
        assert [launches.fault for _, launches in call.backward._calls.values()] == [None]


@pytest.mark.parametrize("name", ["flash", "dense", "bsa"])
def test_gradients_of_kept_calls_are_the_same(name):
    def gradients(seed: int) -> list[torch.Tensor]:
        given = arguments(name, seed) | ({} if name == "bsa" else {"deterministic": True})
        inputs = [given[x].requires_grad_() for x in "qkv"]
        results(name, given)[0].backward(drawn(*given["q"].shape, seed=seed + 7))
        return [x.grad for x in inputs]

    forget()
    truth = gradients(1)
    forget()
    for seed in (2, 3, 1, 1):
        assert all(map(torch.equal, gradients(seed), truth)) is (seed == 1)
    for one in KEPT[name]._calls.values():
        assert [launches.fault for _, launches in one.backward._calls.values()] == [None]


@pytest.mark.parametrize("name", CALLS)
def test_a_kept_call_runs_on_the_current_stream(name):
    given, stream = arguments(name, 3), torch.cuda.Stream()
    truth = results(name, given)
    results(name, arguments(name, 1))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        found, done = results(name, given), torch.cuda.Event()
        done.record(stream)
        assert not done.query(), "it did not wait for what its stream was doing"
    torch.cuda.current_stream().wait_stream(stream)
    assert same(found, truth)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_graph_holds_first_and_kept_calls(name, warm):
    others = arguments(name, 3)
    truth = results(name, others)  # compiled
    if not warm:
        forget()
    given, graph = arguments(name, 1), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = results(name, given)
    for x in "qkv":
        given[x].copy_(others[x])
    graph.replay()
    assert same(found, truth)
    assert same(results(name, others), truth), "what was kept in a capture serves outside of it"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_a_kept_call_follows_its_tensors_card():
    here = arguments("flash", 3)
    there = {name: x.to("cuda:1") for name, x in here.items()}
    truth = results("flash", here)
    for current in (0, 1, 0, 1):
        with torch.cuda.device(current):
            assert torch.equal(results("flash", there)[0].to("cuda:0"), truth[0])
            assert torch.equal(results("flash", here)[0], truth[0])
