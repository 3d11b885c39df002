"""The operators of the kernels that have no backward, in Triton's interpreter: sparse, quantised, paged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from .interpreter import interpreted
from .paged_step import make_step

FAMILIES = {"sparse": "flash.sparse", "quant": "flash.quant", "paged": "hstu.paged"}
BLOCK = 64, 64


@pytest.fixture(scope="module")
def apis():
    with interpreted(*(f"attnbench.kernels.{name}.api" for name in FAMILIES.values())) as found:
        yield dict(zip(FAMILIES, found, strict=True))


@pytest.fixture(autouse=True)
def _compiled_anew():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def layer(apis: Any, family: str) -> Any:
    """Projections, attention of one sequence [n, 32], and a product after it."""

    def run(x, weights, extra):
        q, k, v = (y.unflatten(-1, (2, 16)) for y in (x @ weights).chunk(3, -1))
        n = x.shape[0]
        if family == "sparse":
            out = apis["sparse"].flash_sparse_attention(q[None], k[None], v[None], extra, block=BLOCK)[0][0]
        elif family == "quant":
            q, k, v = (y[None].half() for y in (q, k, v))
            out = apis["quant"].flash_quant_attention(q, k, v, causal=True)[0][0]
        else:
            pool, table = extra
            step = apis["paged"].Step(**table, max_new=n, max_cached=40)
            apis["paged"].hstu_paged_append(k, v, pool, step)
            out = apis["paged"].hstu_paged_attention(q, k, v, pool, step, scaling_seqlen=64)
        return out.flatten(1) * 2

    return run


def inputs(family: str, n: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(n)
    x, weights = torch.randn(n, 32, generator=generator), torch.randn(32, 96, generator=generator) / 6
    if family == "sparse":
        blocks = -(-n // 64)
        return x, weights, torch.ones(1, 2, blocks, blocks, dtype=torch.bool).tril()
    if family == "quant":
        return x, weights, None
    table = {"offsets": [0, n], "cached": [40], "indptr": [0, 5], "indices": [3, 1, 0, 2, 4], "num_targets": [2]}
    pool = torch.randn(6, 2, 32, 2, 16, generator=generator)
    return x, weights, (pool, {name: torch.tensor(values, dtype=torch.int32) for name, values in table.items()})


def copied(given: Any) -> Any:
    """Arguments whose pool a call may change."""
    if isinstance(given[2], tuple):
        return *given[:2], (given[2][0].clone(), given[2][1])
    return given


@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_layer_is_one_graph_of_any_length(apis, family):
    run = layer(apis, family)
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (75, 101):
        given = inputs(family, n)
        eager, other = copied(given), copied(given)
        assert torch.equal(run(*eager), compiled(*other))
        if family == "paged":
            assert torch.equal(eager[2][0], other[2][0])
            assert not torch.equal(eager[2][0], given[2][0])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_a_mask_chooses_stay_in_one_graph(apis, family):
    def run(x, weights, extra, rows):
        return layer(apis, family)(x[rows], weights, extra)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    x, weights, extra = inputs(family, 75)
    more = torch.cat([x, x])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for rows in (torch.arange(150) < 75, torch.arange(150) >= 75):
            eager, other = copied((more, weights, extra)), copied((more, weights, extra))
            assert torch.equal(run(*eager, rows), compiled(*other, rows))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_is_exported(apis, family):
    class Layer(torch.nn.Module):
        def forward(self, x, weights, extra):
            return layer(apis, family)(x, weights, extra)

    with torch.no_grad():
        length = torch.export.Dim("length", min=65, max=128)
        given = copied(inputs(family, 80))
        fixed = torch.utils._pytree.tree_map(lambda x: None, given[1:])
        exported = torch.export.export(Layer(), given, dynamic_shapes=({0: length}, *fixed))
        given = inputs(family, 101)
        assert torch.equal(exported.module()(*copied(given)), layer(apis, family)(*copied(given)))


KINDS = (
    ("sparse", "map"), ("sparse", "lists"), ("quant", "dense"), ("quant", "packed"),
    ("paged", "forward"), ("paged", "split"), ("paged", "append"),
)  # fmt: skip


def samples(apis: Any, family: str, dim: int = 16, device: str = "cpu") -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Operators with arguments, in all that they have of kinds; on the device what lists are made of."""
    if family == "paged":
        step = make_step([(40, 3, 2), (0, 5, 0)], heads=2, dim=dim)
        pool = step.pool.nan_to_num()
        names = "offsets", "cached", "indptr", "indices", "num_targets", "max_new", "max_cached"
        table = [step.table[name] for name in names]
        q, k, v = (x.contiguous() for x in (step.q, step.k, step.v))
        return {
            "forward": ("hstu_paged_forward", (q, k, v, pool, *table, 64, None, None, None)),
            "split": ("hstu_paged_forward", (q, k, v, pool, *table, 64, 0.3, 2, "m16n16w4s1-exp")),
            "append": ("hstu_paged_append", (k, v, pool, *table)),
        }
    q, k, v = (torch.randn(1, 100, 2, dim, requires_grad=True, device=device) for _ in range(3))
    if family == "quant":
        half = [x.detach().half().requires_grad_() for x in (q, k, v)]
        packed = [x.detach()[0].requires_grad_() for x in half]
        ends = torch.tensor([0, 30, 100], dtype=torch.int32)
        return {
            "dense": ("flash_quant_forward", (*half, None, None, None, None, True, None, None)),
            "packed": ("flash_quant_forward", (*packed, ends, None, 70, None, False, 0.3, None)),
        }
    block_map = torch.tensor([[True, False], [True, True]], device=device).expand(1, 2, 2, 2).contiguous()
    lists = apis["sparse"].make_lists(block_map, q, k, block=BLOCK, causal=True)
    made_for = lists.share, lists.unit, list(BLOCK), 100, 100, True
    listed = lists.counts, lists.indices, lists.places, lists.items, *made_for
    return {
        "map": ("flash_sparse_forward", (q, k, v, block_map, list(BLOCK), False, None, None)),
        "lists": ("flash_sparse_listed", (q, k, v, *listed, list(BLOCK), True, 0.3, None)),
    }


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_operators_are_what_they_say(apis, family, kind):
    operator, arguments = samples(apis, family)[kind]
    torch.library.opcheck(getattr(torch.ops.attnbench, operator).default, arguments)


def test_lists_made_before_are_taken_in_what_is_compiled(apis):
    sparse = apis["sparse"]
    q = torch.randn(1, 100, 2, 16)
    block_map = torch.tensor([[True, False], [True, True]]).expand(1, 2, 2, 2)
    lists = sparse.make_lists(block_map, q, q, block=BLOCK)

    def run(q, lists):
        return sparse.flash_sparse_attention(q, q, q, lists, block=BLOCK)[0]

    truth = sparse.flash_sparse_attention(q, q, q, block_map, block=BLOCK)[0]
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(q, lists), truth)
    with pytest.raises(ValueError, match=r"block_map.seqlen_q=100 does not fit; 90"):
        torch.compile(run, fullgraph=True, backend="aot_eager")(q[:, :90], lists)


@pytest.mark.parametrize("family", ["sparse", "quant"])
def test_autocast_is_followed(apis, family):
    x, weights, extra = inputs(family, 70)
    q = (x @ weights)[None].unflatten(-1, (6, 16))[:, :, :2]

    def attend(q, extra):
        with torch.autocast("cpu", torch.float16):
            if family == "sparse":
                return apis["sparse"].flash_sparse_attention(q, q, q, extra, block=BLOCK)[0]
            return apis["quant"].flash_quant_attention(q, q, q)[0]

    found = attend(q, extra)
    assert found.dtype is torch.float16
    assert torch.equal(torch.compile(attend, fullgraph=True, backend="aot_eager")(q, extra), found)


def test_no_gradient_passes_through_what_is_compiled_as_in_eager_calls(apis):
    q = torch.randn(1, 70, 2, 16, requires_grad=True)
    block_map = torch.ones(1, 2, 2, 2, dtype=torch.bool)

    def run(q):
        return apis["sparse"].flash_sparse_attention(q, q, q, block_map, block=BLOCK)[0]

    assert not run(q).requires_grad
    assert not torch.compile(run, fullgraph=True, backend="aot_eager")(q).requires_grad


def test_refusals_are_the_same_words_while_traced(apis):
    sparse, quant = apis["sparse"].flash_sparse_attention, apis["quant"].flash_quant_attention
    paged, step = apis["paged"], make_step([(0, 5, 0)], heads=2)
    q, block_map = torch.randn(1, 70, 2, 16), torch.ones(1, 2, 2, 2, dtype=torch.bool)
    table = paged.Step(**step.table)

    def steps(**given):
        return lambda q: paged.hstu_paged_attention(step.q, step.k, step.v, step.pool, table, **given)

    for call, words in (
        (lambda q: sparse(q, q, q, block_map, block=(3, 3)), r"flash_sparse_attention: block=.* is not supported"),
        (lambda q: sparse(q, q, q, block_map[:1, :1], block=BLOCK), r"flash_sparse_attention: block_map.shape"),
        (
            lambda q: sparse(q, q, q, block_map, block=BLOCK, validate=True),
            r"validate=True synchronizes with the device",
        ),
        (lambda q: apis["sparse"].make_lists(block_map, q, q, block=BLOCK), r"make_lists: is called in compiled code"),
        (lambda q: quant(q, q, q), r"flash_quant_attention: q.dtype=torch.float32 is not supported"),
        (lambda q: quant(q.half(), q.half(), q.half(), config="m1"), r"flash_quant_attention: config=m1"),
        (steps(scaling_seqlen=0), r"hstu_paged_attention: scaling_seqlen=0 cannot be used"),
        (steps(scaling_seqlen=9, config="m1"), r"hstu_paged_attention: config=m1"),
        (steps(scaling_seqlen=9, validate=True), r"validate=True synchronizes with the device"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=words):
            torch.compile(call, fullgraph=True, backend="aot_eager")(q)
