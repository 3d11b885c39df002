"""The kernels under PyTorch's own tools: traces of `torch.jit`, counters of FLOPs, compiled autograd, checkpoints."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import checkpoint, flop_counter
from torch.utils.flop_counter import FlopCounterMode

from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.work import work as attention_work
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.work import sparse_work
from attnbench.workloads.hstu.work import work as hstu_work

from .interpreter import interpreted
from .paged_step import make_step

FAMILIES = ("flash", "flash.quant", "flash.sparse", "flash.sparse_quant", "hstu.dense", "hstu.bsa", "hstu.paged")
LEAF = r"ignore:The \.grad attribute of a Tensor that is not a leaf:UserWarning"
"PyTorch reads it of every saved tensor."
OLD = "ignore:`torch.jit:DeprecationWarning"
DIFFERENTIABLE = ("flash", "hstu.dense", "hstu.bsa")


@pytest.fixture(scope="module")
def apis():
    with interpreted(*(f"attnbench.kernels.{name}.api" for name in FAMILIES)) as found:
        yield dict(zip(FAMILIES, found, strict=True))


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attention(apis: Any, family: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Attention of [1, n, 2, 16] to itself, n up to 64, with the offsets [2] of its one sequence."""
    every, api = torch.ones(1, 2, 1, 1, dtype=torch.bool), apis[family]
    return {
        "flash": lambda x, _: api.flash_attention(x, x, x, causal=True)[0],
        "flash.quant": lambda x, _: api.flash_quant_attention(x.half(), x.half(), x.half())[0],
        "flash.sparse": lambda x, _: api.flash_sparse_attention(x, x, x, every, block=(64, 64))[0],
        "flash.sparse_quant": lambda x, _: api.flash_sparse_quant_attention(*[x.half()] * 3, every, block=(64, 64))[0],
        "hstu.dense": lambda x, ends: api.hstu_attention(x[0], x[0], x[0], ends, 64)[None],
        "hstu.bsa": lambda x, ends: api.hstu_bsa_attention(
            x[0], x[0], x[0], ends, 64, block_size=16, block_counts=2, scaling_seqlen=64
        )[0][None],
    }[family]


def drawn(n: int, *, grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(1, n, 2, 16, generator=torch.Generator().manual_seed(n))
    return x.requires_grad_(grad), ints(0, n)


def gradient(attend: Any, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(attend(x, ends).sin().sum(), x)[0]


@pytest.mark.filterwarnings(OLD)
@pytest.mark.parametrize("family", FAMILIES[:-1])
def test_a_trace_of_torch_jit_is_of_any_length_differentiated_and_saved(apis, family, recwarn):
    attend = attention(apis, family)
    traced = torch.jit.trace(attend, drawn(40))
    x, ends = drawn(51)
    assert torch.equal(traced(x, ends), attend(x, ends))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x, ends), attend(x, ends))
    assert not [one for one in recwarn if one.category is torch.jit.TracerWarning]
    if family in DIFFERENTIABLE:
        x.requires_grad_()
        torch.testing.assert_close(
            gradient(traced, x, ends), gradient(attend, x, ends)
        )  # sums of q, k and v, in any order


@pytest.mark.filterwarnings(OLD)
def test_a_length_that_torch_jit_traces_is_refused_as_what_it_is(apis):
    flash, hstu = apis["flash"].flash_attention, apis["hstu.dense"].hstu_attention

    def packed(x, ends, longest):
        return flash(x[0], x[0], x[0], cu_seqlens_q=ends, max_seqlen_q=longest)[0]

    def jagged(x, ends, longest):
        return hstu(x[0], x[0], x[0], ends, longest)

    given = drawn(40)
    for call, name in ((packed, "max_seqlen_q"), (jagged, "max_seqlen")):
        refused = rf"^attnbench::\w+: {name} is a tensor, as all lengths are for torch.jit.trace; int\(\) of it, or"
        with pytest.raises(ValueError, match=refused):
            torch.jit.trace(lambda x, ends, call=call: call(x, ends, x.shape[1]), given)
        with pytest.warns(torch.jit.TracerWarning, match="Python integer"):
            traced = torch.jit.trace(lambda x, ends, call=call: call(x, ends, int(x.shape[1])), given)
        assert torch.equal(traced(*given), call(*given, 40))


def counted(run: Callable[[], Any]) -> list[int]:
    """FLOPs of each operator that a function calls."""
    with FlopCounterMode(display=False) as counter:
        run()
    return [*counter.get_flop_counts().get("Global", {}).values()]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def both_flops(work: Any, case: Any, **fields: Any) -> list[int]:
    return [work(case(**fields, mode=mode)).flops for mode in ("fwd", "bwd")]


def test_flash_attention_counts_as_sdpa_and_a_mask_changes_nothing(apis):
    flash = apis["flash"].flash_attention
    q, k, v = draw(2, 9, 4, 16), draw(2, 13, 2, 16), draw(2, 13, 2, 32)
    shape = {"batch": 2, "seqlen": 9, "seqlen_k": 13, "nheads": 4, "nheads_kv": 2, "headdim": 16, "headdim_v": 32}
    exact = both_flops(attention_work, AttentionCase, **shape)
    given = [(x.shape[0], 4, x.shape[1], x.shape[3]) for x in (q, k, v)]  # the formulas of torch 2.11 know no groups
    grad = (2, 4, 9, 32)
    assert exact == [flop_counter.sdpa_flop_count(*given), flop_counter.sdpa_backward_flop_count(grad, *given)]
    for mask in ({}, {"causal": True}, {"window": (3, 0)}):
        assert counted(lambda mask=mask: flash(q, k, v, **mask)[0].sum().backward()) == exact


def test_packed_rows_count_by_their_lengths_and_without_values_by_their_bound(apis):
    flash, hstu = apis["flash"].flash_attention, apis["hstu.dense"].hstu_attention
    q, k, few, many = draw(9, 2, 16), draw(20, 2, 16), ints(0, 2, 9), ints(0, 15, 20)

    def packed(q, k, few, many):
        bounds = {"max_seqlen_q": 8, "max_seqlen_k": 16}
        flash(q, k, k, cu_seqlens_q=few, cu_seqlens_k=many, **bounds)[0].sum().backward()

    def jagged(q, k, few, many):
        hstu(q, k, k, many, 16, offsets_q=few, max_seqlen_q=8).sum().backward()

    pair = 2 * 2 * 16  # both heads
    for run in (packed, jagged):
        pairs = 2 * 15 + 7 * 5
        assert counted(lambda run=run: run(q, k, few, many)) == [2 * pair * pairs, 5 * pair * pairs]
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(x) for x in (q, k, few, many)]
            assert counted(lambda run=run, fakes=fakes: run(*fakes)) == [2 * pair * 256, 5 * pair * 256]
        with torch._subclasses.FakeTensorMode(shape_env=ShapeEnv()) as mode:
            fakes = [mode.from_tensor(x) for x in (q, k, few, many)]
            counted(lambda run=run, fakes=fakes: run(*fakes))
        assert fakes[3].shape[0].node.maybe_as_int() is None, "a count fixes no number of sequences"
    alone = [2 * pair * (15**2 + 5**2), 5 * pair * (15**2 + 5**2)]
    assert counted(lambda: flash(k, k, k, cu_seqlens_q=many, max_seqlen_q=16)[0].sum().backward()) == alone
    assert counted(lambda: hstu(k, k, k, many, 16).sum().backward()) == alone


def test_hstu_attention_counts_whole_products_and_a_block_sparse_one_those_of_its_branches(apis):
    hstu, bsa = apis["hstu.dense"].hstu_attention, apis["hstu.bsa"].hstu_bsa_attention
    shape = {"batch": 2, "seqlen": 64, "nheads": 2, "attn_dim": 16, "linear_dim": 32}
    q, k, v, ends = draw(128, 2, 16), draw(128, 2, 16), draw(128, 2, 32), ints(0, 64, 128)
    exact = both_flops(hstu_work, HstuCase, **shape, causal=False)
    assert counted(lambda: hstu(q, k, v, ends, 64).sum().backward()) == exact
    # The last row of a sequence of whole blocks sees all of its branches.
    branches = {"block_size": 16, "block_counts": 3, "local_window": 20}
    exact = both_flops(sparse_work, HstuCase, **shape, **branches, delta_q=1)
    last = {"offsets_q": ints(0, 1, 2), "max_seqlen_q": 1}
    assert counted(lambda: bsa(q[:2], k, v, ends, 64, **branches, **last)[0].sum().backward()) == exact


def test_operators_without_a_backward_are_counted(apis):
    x, every = torch.randn(2, 40, 2, 16).half(), torch.ones(2, 2, 1, 1, dtype=torch.bool)
    dense, blocks = [4 * 16 * 2 * 2 * 40 * 40], {"block": (64, 64)}
    sparse, quant = apis["flash.sparse"], apis["flash.sparse_quant"].flash_sparse_quant_attention
    lists = sparse.make_lists(every, x, x, **blocks)
    assert counted(lambda: apis["flash.quant"].flash_quant_attention(x, x, x)) == dense
    for attend in (sparse.flash_sparse_attention, quant):
        assert counted(lambda attend=attend: attend(x, x, x, every, **blocks)) == dense
        assert counted(lambda attend=attend: attend(x, x, x, ~every, **blocks)) == dense
    assert counted(lambda: sparse.flash_sparse_attention(x, x, x, lists, **blocks)) == dense
    paged, made = apis["hstu.paged"], make_step([(40, 3, 2), (0, 5, 0)], heads=2)
    step = paged.Step(**made.table)
    given = made.q, made.k, made.v, made.pool, step
    assert counted(lambda: paged.hstu_paged_attention(*given, scaling_seqlen=64)) == [4 * 16 * 2 * (5 * 45 + 5 * 5)]
    assert counted(lambda: paged.hstu_paged_append(*given[1:])) == []


def test_every_operator_but_a_copy_has_a_count(apis):
    operators = vars(torch.ops.attnbench)["_defined"]
    assert {"flash_backward", "hstu_bsa_backward", "hstu_paged_forward"} <= {*operators}
    uncounted = {name for name in operators if getattr(torch.ops.attnbench, name) not in flop_counter.flop_registry}
    assert uncounted == {"hstu_paged_append"}


@pytest.mark.parametrize("family", DIFFERENTIABLE)
def test_compiled_calls_are_counted_as_eager_ones(apis, family):
    """PyTorch runs what is compiled eagerly while it counts."""
    attend, (x, ends) = attention(apis, family), drawn(40, grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="aot_eager")
    compiled(x, ends).sum().backward()
    eager = counted(lambda: attend(x, ends).sum().backward())
    assert len(eager) == 2
    assert counted(lambda: compiled(x, ends).sum().backward()) == eager


@pytest.mark.parametrize("family", DIFFERENTIABLE)
def test_a_first_compiled_call_may_be_counted_and_later_ones_still_run(apis, family):
    """PyTorch skips frames that it first sees under a mode, for good, and tries to compile what they call."""
    attend, (x, ends) = attention(apis, family), drawn(40, grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="aot_eager")
    eager = counted(lambda: attend(x, ends).sum().backward())
    assert counted(lambda: compiled(x, ends).sum().backward()) == eager
    torch.testing.assert_close(gradient(compiled, x, ends), gradient(attend, x, ends))


@pytest.mark.parametrize("family", DIFFERENTIABLE)
def test_a_backward_alone_is_counted(apis, family):
    attend, (x, ends) = attention(apis, family), drawn(40, grad=True)
    _, backward = counted(lambda: attend(x, ends).sum().backward())
    out = attend(x, ends)
    assert counted(lambda: out.sum().backward()) == [backward]


CALLS = {
    "flash": (
        {},
        {"causal": True},
        {"causal": True, "scale": 0.3},
        {"window": (5, 0), "backward": "b16x16w4s1-atomic"},
    ),
    "packed": ({}, {"causal": True, "deterministic": True}),
    "hstu.dense": ({}, {"alpha": 1}, {"max_attn_len": 5, "num_targets": ints(2, 3)}),
    "hstu.bsa": ({"block_counts": 1}, {"block_counts": 2}, {"block_counts": 2, "gates": None}),
}


@pytest.mark.filterwarnings(LEAF)
@pytest.mark.parametrize("family", CALLS)
def test_compiled_autograd_of_an_eager_forward_is_one_graph(apis, family):
    """Of each call: its backward is traced without a break, for any length after two, and not taken for another's."""
    from torch._dynamo import compiled_autograd

    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def differentiated(n: int, given: dict[str, Any]) -> torch.Tensor:
        x = drawn(n, grad=True)[0]
        more, ends, packed = dict(given), ints(0, 13, n), x[0]
        if "gates" in more:
            more["gates"] = packed[..., :2].sigmoid().contiguous()
        if family == "flash":
            out = apis["flash"].flash_attention(x, x, x, **more)[0]
        elif family == "packed":
            flash = apis["flash"].flash_attention
            out = flash(packed, packed, packed, cu_seqlens_q=ends, max_seqlen_q=n, **more)[0]
        elif family == "hstu.dense":
            out = apis[family].hstu_attention(packed, packed, packed, ends, 64, **more)
        else:
            out = apis[family].hstu_bsa_attention(packed, packed, packed, ends, 64, block_size=16, **more)[0]
        out.sin().sum().backward()
        assert x.grad is not None
        return x.grad

    torch._dynamo.reset()
    for given in CALLS[family]:
        before = len(graphs)
        for n in (40, 47, 55):
            truth = differentiated(n, given)
            with compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True)):
                torch.testing.assert_close(differentiated(n, given), truth)
        assert len(graphs) - before <= 3
        assert all("_backward" in str(graph.code) for graph in graphs)


@pytest.mark.filterwarnings(LEAF)
def test_configurations_that_an_operator_does_not_take_are_refused_by_compiled_autograd(apis):
    from torch._dynamo import compiled_autograd

    x, ends = drawn(40, grad=True)
    dense, bsa = apis["hstu.dense"], apis["hstu.bsa"]
    config = bsa.BsaConfig(silu="exp")
    backward = dense.default_backward(x[0], x[0], x[0], 64, deterministic=False)
    for out, name in (
        (dense.hstu_attention(x[0], x[0], x[0], ends, 64, backward=backward), "hstu_backward"),
        (bsa.hstu_bsa_attention(x[0], x[0], x[0], ends, 64, block_counts=2, config=config)[0], "hstu_bsa_backward"),
    ):
        torch._dynamo.reset()
        refused = (
            f"{name}: a configuration is given; None, the tuned default, where a compiler traces or a dispatch mode"
        )
        with pytest.raises(ValueError, match=refused), FlopCounterMode(display=False):
            out.sum().backward(retain_graph=True)
        with (
            compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)),
            pytest.raises(Exception, match=refused),
        ):
            out.sum().backward()


@pytest.mark.parametrize("family", DIFFERENTIABLE)
def test_checkpoints_of_all_kinds_give_the_same_gradients(apis, family):
    """Of a second kind is what a policy decides by operator; and saved tensors are read once, also for `create_graph`."""
    attend, (x, ends) = attention(apis, family), drawn(40, grad=True)
    truth = gradient(attend, x, ends)
    operator = {"flash": "flash_forward", "hstu.dense": "hstu_forward", "hstu.bsa": "hstu_bsa_forward"}[family]
    kept = [getattr(torch.ops.attnbench, operator).default]
    policy = partial(checkpoint.create_selective_checkpoint_contexts, kept)
    for options in ({"use_reentrant": False}, {"use_reentrant": False, "context_fn": policy}):
        for create_graph in (False, True):
            out = checkpoint.checkpoint(attend, x, ends, **options)
            (found,) = torch.autograd.grad(out.sin().sum(), x, create_graph=create_graph)
            torch.testing.assert_close(found, truth)
    checkpoint.checkpoint(attend, x, ends, use_reentrant=True).sin().sum().backward()
    torch.testing.assert_close(x.grad, truth)


@pytest.mark.parametrize("family", DIFFERENTIABLE)
def test_transforms_of_torch_func_compute_first_derivatives(apis, family):
    """Gradients of each sample, of a batch, rows of a Jacobian, of parameters, and in autocast's precision."""
    attend, (x, ends) = attention(apis, family), drawn(40)
    batch = torch.stack([x, x.flip(1), -x])

    def loss(x):
        return attend(x, ends).sin().sum()

    def halved(x):
        with torch.autocast("cpu", torch.float16):
            return attend(x, ends).float().sin().sum()

    def truth(function, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(function(x), x)[0]

    wanted = torch.stack([truth(loss, one) for one in batch])
    close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-4)
    close(torch.func.grad(loss)(x), wanted[0])
    close(torch.func.vmap(torch.func.grad(loss))(batch), wanted)
    close(torch.func.grad(lambda batch: torch.func.vmap(loss)(batch).sum())(batch), wanted)
    rows = [truth(lambda x, head=head: attend(x, ends).sum((0, 1, 3))[head], x) for head in range(2)]
    close(torch.func.jacrev(lambda x: attend(x, ends).sum((0, 1, 3)))(x), torch.stack(rows))
    close(torch.func.grad(halved)(x), truth(halved, x))
    linear = torch.nn.Linear(16, 16)
    weights = dict(linear.named_parameters())
    found = torch.func.grad(lambda weights: loss(torch.func.functional_call(linear, weights, (x,))))(weights)
    close([*found.values()], [*torch.autograd.grad(loss(linear(x)), [*weights.values()])])


@pytest.mark.parametrize("family", DIFFERENTIABLE)
def test_transforms_that_need_more_than_first_derivatives_are_refused(apis, family):
    attend, (x, ends) = attention(apis, family), drawn(40)

    def loss(x):
        return attend(x, ends).sin().sum()

    first = torch.func.grad(loss)
    leaf = x.clone().requires_grad_()
    for run in (
        lambda: torch.func.grad(lambda x: first(x).sum())(x),
        lambda: torch.func.jacrev(first)(x),
        lambda: torch.autograd.grad(first(leaf).sum(), leaf),
    ):
        with pytest.raises(NotImplementedError, match=r"^attnbench: gradients have no derivatives; .* once$"):
            run()
    for run in (lambda: torch.func.hessian(loss)(x), lambda: torch.func.jacfwd(loss)(x)):
        with pytest.raises(NotImplementedError, match=r"^attnbench::\w+ has no derivatives in forward mode$"):
            run()


def test_what_has_no_gradient_is_a_constant_of_torch_func(apis):
    for family in ("flash.quant", "flash.sparse"):
        attend, (x, ends) = attention(apis, family), drawn(40)
        out, pulled = torch.func.vjp(lambda x, attend=attend, ends=ends: attend(x, ends), x)
        assert torch.equal(out, attend(x, ends))
        assert not pulled(torch.ones_like(out))[0].any()
