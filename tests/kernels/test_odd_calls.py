"""Calls as nobody planned them: tensors that are read in odd ways, switches of PyTorch, batches of `torch.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from torch.utils.checkpoint import checkpoint

from .interpreter import interpreted

FAMILIES = ("flash", "flash.quant", "flash.sparse", "flash.sparse_quant", "hstu.dense", "hstu.bsa")
Attend = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def apis():
    with interpreted(*(f"attnbench.kernels.{name}.api" for name in FAMILIES)) as found:
        yield dict(zip(FAMILIES, found, strict=True))


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attention(apis: Any, family: str) -> Attend:
    """Attention of [1, 40, 2, 16] to itself."""
    blocks = {"block": (64, 64)}
    every, ends = torch.ones(1, 2, 1, 1, dtype=torch.bool), ints(0, 13, 40)
    api = apis[family]
    return {
        "flash": lambda x: api.flash_attention(x, x, x, causal=True)[0],
        "flash.quant": lambda x: api.flash_quant_attention(x, x, x, causal=True)[0],
        "flash.sparse": lambda x: api.flash_sparse_attention(x, x, x, every, **blocks)[0],
        "flash.sparse_quant": lambda x: api.flash_sparse_quant_attention(x, x, x, every, **blocks)[0],
        "hstu.dense": lambda x: api.hstu_attention(x[0], x[0], x[0], ends, 27)[None],
        "hstu.bsa": lambda x: api.hstu_bsa_attention(x[0], x[0], x[0], ends, 27, block_size=16, block_counts=1)[0][
            None
        ],
    }[family]


def drawn(family: str, seed: int = 0) -> torch.Tensor:
    x = torch.randn(1, 40, 2, 16, generator=torch.Generator().manual_seed(seed))
    return x.half() if "quant" in family else x


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_negated_when_it_is_read_is_not_read_with_its_sign_in_memory(apis, family):
    attend, x = attention(apis, family), drawn(family)
    assert torch.equal(attend(torch._neg_view(x)), attend(-x))


@pytest.mark.parametrize("family", ["flash", "hstu.dense", "hstu.bsa"])
def test_gradients_come_as_autograd_lays_them(apis, family):
    attend, x = attention(apis, family), drawn(family).requires_grad_()
    out = attend(x)
    (truth,) = torch.autograd.grad(out, x, -torch.ones_like(out), retain_graph=True)
    for dout in (torch._neg_view(torch.ones_like(out)), -torch.ones(()).expand_as(out)):
        (found,) = torch.autograd.grad(out, x, dout, retain_graph=True)
        assert torch.equal(found, truth)


@pytest.mark.parametrize("family", ["flash", "hstu.dense", "hstu.bsa"])
def test_what_was_saved_may_lie_otherwise(apis, family):
    """A hook returns values and sizes, and strides as it likes."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x.expand(2, -1).T[:, 0]

    attend, x = attention(apis, family), drawn(family).requires_grad_()
    (truth,) = torch.autograd.grad(attend(x).sin().sum(), x)
    with torch.autograd.graph.saved_tensors_hooks(turned, lambda x: x):
        out = attend(x)
    for _ in range(2):
        (found,) = torch.autograd.grad(out.sin().sum(), x, retain_graph=True)
        assert torch.equal(found, truth)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_vmap_is_taken_one_by_one_without_a_warning(apis, family, recwarn, capfd):
    attend = attention(apis, family)
    batch = torch.stack([drawn(family, seed) for seed in range(2)], dim=2)
    found = torch.func.vmap(attend, in_dims=2)(batch)
    assert torch.equal(found, torch.stack([attend(x) for x in batch.unbind(2)]))
    assert not recwarn.list
    assert "performance drop" not in capfd.readouterr().err


@pytest.mark.parametrize("compiled", [False, True])
def test_a_jagged_tensor_is_told_how_it_is_packed(apis, compiled):
    x = torch.nested.nested_tensor([torch.randn(3, 2, 16), torch.randn(5, 2, 16)], layout=torch.jagged)
    flash, hstu = apis["flash"].flash_attention, apis["hstu.dense"].hstu_attention
    for run in (lambda x: flash(x, x, x)[0], lambda x: hstu(x, x, x, x.offsets(), 5)):
        torch._dynamo.reset()
        call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
        with pytest.raises(
            Exception, match=r"attnbench::\w+: q is a nested tensor; packed tensors, its values\(\) with"
        ):
            call(x)
    assert hstu(x.values(), x.values(), x.values(), x.offsets(), 5).shape == (8, 2, 16)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_distributed_tensor_is_told_to_be_local_and_local_map_does_it(apis, compiled):
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.distributed.tensor.experimental import local_map

        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        heads = distribute_tensor(drawn("flash"), mesh, [Shard(2)]).requires_grad_()
        for family in ("flash", "hstu.dense"):
            torch._dynamo.reset()
            attend = attention(apis, family)
            call = torch.compile(attend, backend="aot_eager", fullgraph=True) if compiled else attend
            with pytest.raises(
                Exception, match=r"attnbench::\w+: q is a DTensor; its to_local\(\), or a call in local_map"
            ):
                call(heads)
        over_heads = local_map(attention(apis, "flash"), [Shard(2)], ([Shard(2)],), device_mesh=mesh)
        out = over_heads(heads)
        out.sum().backward()
        assert torch.equal(out.full_tensor(), attention(apis, "flash")(drawn("flash")))
        assert heads.grad.placements == (Shard(2),)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("family", ["flash", "hstu.dense", "hstu.bsa"])
def test_gradients_of_a_batch_at_once_are_refused_as_what_they_are(apis, family):
    x = drawn(family).requires_grad_()
    out = attention(apis, family)(x)
    with pytest.raises(ValueError, match=r"^a tensor belongs to a transform .*; .* without is_grads_batched or"):
        torch.autograd.grad(out, x, out.new_ones(3, *out.shape), is_grads_batched=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_without_dense_memory_is_refused_in_one_line(apis, family):
    if family.startswith("hstu"):
        with pytest.raises(ValueError, match=r"^a tensor has no memory that a kernel can read"):
            attention(apis, family)([drawn(family)[0].to_sparse()])
        return
    for x in (drawn(family).to_sparse(), torch.nested.nested_tensor([drawn(family)[0]])):
        with pytest.raises(ValueError, match=r"^a tensor has no memory that a kernel can read .*; dense tensors$"):
            attention(apis, family)(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("family", ["flash", "flash.quant"])
def test_a_nested_tensor_is_no_packed_one(apis, family):
    attend = {"flash": "flash_attention", "flash.quant": "flash_quant_attention"}[family]
    x = torch.nested.nested_tensor([drawn(family)[0]])
    with pytest.raises(ValueError, match=r"^a tensor has no memory that a kernel can read .*; dense tensors$"):
        getattr(apis[family], attend)(x, x, x, cu_seqlens_q=ints(0, 40), max_seqlen_q=40)


@pytest.mark.parametrize("family", ["flash", "hstu.dense"])
def test_deterministic_algorithms_are_those_of_the_backward_too(apis, family):
    api, x = apis[family], drawn(family).requires_grad_()

    def made() -> bool:
        store = api.call_of.__globals__["CALLS"]
        store._calls.clear()
        attention(apis, family)(x)
        (call,) = store._calls.values()
        return call.config.deterministic

    assert not made()
    torch.use_deterministic_algorithms(True)
    try:
        assert made()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not made()


def test_one_tensor_with_a_gradient_expanded_ones_and_saved_elsewhere(apis):
    flash = apis["flash"].flash_attention
    q, k, v = (drawn("flash", seed) for seed in range(3))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    truth = torch.autograd.grad(flash(*inputs, causal=True)[0].sin().sum(), inputs)
    for at in range(3):
        one = [x.clone().requires_grad_(at == number) for number, x in enumerate((q, k, v))]
        (found,) = torch.autograd.grad(flash(*one, causal=True)[0].sin().sum(), one[at])
        assert torch.equal(found, truth[at])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return flash(x, k, v, causal=True)[0].sin().sum()

    x = q.clone().requires_grad_()
    checkpoint(loss, x, use_reentrant=False).backward()
    assert torch.equal(x.grad, truth[0])
    x.grad = None
    with torch.autograd.graph.save_on_cpu():
        loss(x).backward()
    assert torch.equal(x.grad, truth[0])
    for narrow in (q[:, :1].expand_as(q), q[:, :, :1].expand_as(q)):
        assert torch.equal(flash(narrow, narrow, v)[0], flash(*[narrow.contiguous()] * 2, v)[0])


def test_packed_calls_of_any_total_and_bound_are_one_graph(apis):
    flash = apis["flash"].flash_attention

    def run(q, k, v, offsets, longest):
        return flash(q, k, v, cu_seqlens_q=offsets, max_seqlen_q=longest, causal=True)[0]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, longest in ((40, 33), (50, 41), (70, 69)):
        q, k, v = (torch.randn(rows, 2, 16) for _ in range(3))
        given = q, k, v, ints(0, rows - longest, rows), longest
        assert torch.equal(compiled(*given), run(*given))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("longest", [27.0, torch.tensor(27), True])
def test_a_bound_that_is_no_int_is_refused_as_what_it_is(apis, longest):
    x = torch.randn(40, 2, 16)
    with pytest.raises(ValueError, match=r"max_seqlen_q=(27\.0|tensor\(27\)|True) cannot be used; a Python int from 0"):
        apis["flash"].flash_attention(x, x, x, cu_seqlens_q=ints(0, 13, 40), max_seqlen_q=longest)


@pytest.mark.parametrize("listed", [False, True])
def test_the_operators_of_sparse_attention_in_eight_bits_are_what_they_say(apis, listed):
    x, every = drawn("flash.quant"), torch.ones(1, 2, 1, 1, dtype=torch.bool)
    numbers = [64, 64], True, None, None
    given: tuple[Any, ...] = (x, x, x, every, *numbers)
    if listed:
        lists = apis["flash.sparse"].make_lists(every, x, x, block=(64, 64), causal=True, config="m64n64w4s2")
        tensors = lists.counts, lists.indices, lists.places, lists.items
        given = (x, x, x, *tensors, 1, 64, [64, 64], 40, 40, True, *numbers)
    name = "flash_sparse_quant_listed" if listed else "flash_sparse_quant_forward"
    torch.library.opcheck(getattr(torch.ops.attnbench, name).default, given)


def test_sparse_attention_in_eight_bits_is_compiled_and_cast(apis):
    attend = attention(apis, "flash.sparse_quant")
    x = drawn("flash")
    with torch.autocast("cpu", torch.float16):
        found = attend(x)
        assert torch.equal(torch.compile(attend, fullgraph=True, backend="aot_eager")(x), found)
    assert torch.equal(found, attend(x.half()))
