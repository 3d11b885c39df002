"""The operators of our kernels, in Triton's interpreter: compiled, exported, traced, transformed, cast."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from .interpreter import interpreted

FAMILIES = {"flash": "flash", "dense": "hstu.dense", "bsa": "hstu.bsa"}


@pytest.fixture(scope="module")
def apis():
    with interpreted(*(f"attnbench.kernels.{name}.api" for name in FAMILIES.values())) as found:
        yield dict(zip(FAMILIES, found, strict=True))


@pytest.fixture(autouse=True)
def _compiled_anew():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def layer(apis: Any, family: str) -> Any:
    """Projections, attention of one sequence [n, 32] (of flash, of a batch), and a product after it."""

    def run(x, weights, ends):
        q, k, v = (y.unflatten(-1, (2, 16)) for y in (x @ weights).chunk(3, -1))
        n = x.shape[0]
        if family == "flash":
            out = apis["flash"].flash_attention(q[None], k[None], v[None], causal=True, window=(9, 0))[0][0]
        elif family == "dense":
            out = apis["dense"].hstu_attention(q, k, v, ends, n, num_targets=ends[:1] + 1)
        else:
            gates = x[:, :4].sigmoid().reshape(n, 2, 2)
            out = apis["bsa"].hstu_bsa_attention(q, k, v, ends, n, gates=gates, block_size=16, block_counts=2)[0]
        return out.flatten(1) * 2

    return run


def inputs(n: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(n)
    x, weights = torch.randn(n, 32, generator=generator), torch.randn(32, 96, generator=generator) / 6
    return x.requires_grad_(), weights.requires_grad_(), ints(0, n)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_layer_is_one_graph_of_any_length(apis, family):
    run = layer(apis, family)
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (35, 50):
        x, weights, ends = inputs(n)
        truth, found = run(x, weights, ends), compiled(x, weights, ends)
        assert torch.equal(truth, found)
        wanted = torch.autograd.grad(truth.sin().sum(), (x, weights))
        assert all(map(torch.equal, wanted, torch.autograd.grad(found.sin().sum(), (x, weights))))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_read_from_tensors_stays_in_one_graph(apis, family):
    def run(x, weights, rows, ends):
        q, k, v = (y.unflatten(-1, (2, 16)) for y in (x[rows] @ weights).chunk(3, -1))
        n = ends.diff().max().item()
        if family == "flash":
            return apis["flash"].flash_attention(q, k, v, cu_seqlens_q=ends, max_seqlen_q=n, causal=True)[0]
        if family == "dense":
            return apis["dense"].hstu_attention(q, k, v, ends, n)
        return apis["bsa"].hstu_bsa_attention(q, k, v, ends, n, block_size=16, block_counts=2)[0]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        for n in (33, 47):
            x, weights, _ = inputs(60)
            given = x, weights, torch.arange(60) < n + 5, ints(0, 5, n + 5)
            for found, truth in zip(*(with_gradient(one(*given), x) for one in (compiled, run)), strict=True):
                torch.testing.assert_close(found, truth)
        with pytest.raises(ValueError, match=r"max_seqlen(_q)?=-3 cannot be used|over the"):
            compiled(x, weights, torch.arange(60) < 52, ints(0, -3, -6))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def with_gradient(out: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return out, torch.autograd.grad(out.sin().sum(), x)[0]


@pytest.mark.parametrize("family", ["flash", "dense"])
def test_a_layer_is_exported_for_lengths_without_an_end(apis, family):
    rows, batch = torch.export.Dim("rows"), torch.export.Dim("batch")

    class Layer(torch.nn.Module):
        def forward(self, x, ends):
            if family == "flash":
                return apis["flash"].flash_attention(x, x, x, cu_seqlens_q=ends, max_seqlen_q=64, causal=True)[0]
            return apis["dense"].hstu_attention(x, x, x, ends, 64)

    given = torch.randn(40, 2, 16), ints(0, 7, 40)
    exported = torch.export.export(Layer(), given, dynamic_shapes=({0: rows}, {0: batch})).module()
    others = torch.randn(50, 2, 16), ints(0, 0, 9, 50)
    assert torch.equal(exported(*others), Layer()(*others))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_is_exported(apis, family):
    class Layer(torch.nn.Module):
        def forward(self, x, weights, ends):
            return layer(apis, family)(x, weights, ends)

    with torch.no_grad():
        length = torch.export.Dim("length", min=33, max=4096)
        exported = torch.export.export(Layer(), inputs(40), dynamic_shapes=({0: length}, None, None))
        operators = {str(node.target) for node in exported.graph.nodes}
        assert any("attnbench" in name for name in operators)
        x, weights, ends = inputs(61)
        assert torch.equal(exported.module()(x, weights, ends), layer(apis, family)(x, weights, ends))


OPERATORS = {"flash": "flash_forward", "dense": "hstu_forward", "bsa": "hstu_bsa_forward"}
KINDS = (
    ("flash", "dense"),
    ("flash", "packed"),
    ("flash", "decode"),
    ("dense", "targets"),
    ("bsa", "gates"),
    ("bsa", "own-block"),
)


def samples(family: str, dim: int = 16) -> dict[str, tuple[Any, ...]]:
    """Arguments of the forward operators, in all that they have of kinds."""
    q, k, v = (torch.randn(40, 2, dim, requires_grad=True) for _ in range(3))
    offsets, targets = ints(0, 13, 40), ints(1, 2)
    if family == "flash":
        dense = [x.detach()[None].requires_grad_() for x in (q, k, v)]
        return {
            "dense": (*dense, None, None, None, None, True, [5, 0], None, False, None, None),
            "packed": (q, k, v, offsets, None, 27, None, False, None, 0.3, True, "m16n16w4s1", None),
            "decode": (q, k, v, offsets, None, 27, None, True, None, None, False, "m16n16w4s1-decode", None),
        }
    if family == "dense":
        return {"targets": (q, k, v, offsets, None, targets, 27, None, None, None, True, 0, None, False)}
    gates = torch.randn(40, 2, 2, requires_grad=True)
    return {
        "gates": (q, k, v, gates, offsets, None, targets, 27, 16, 2, None, "head", False, None, None, None),
        "own-block": (q, k, v, None, offsets, None, None, 27, 16, 1, 3, "shared", True, None, 0.5, 20),
    }


def check(family: str, arguments: tuple[Any, ...]) -> None:
    """Schema, fake kernels, gradients, and all of it traced with lengths left open."""
    tests = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    # The last compares all results, and of what a block-sparse backward reads again not every row is written.
    wanted = tests[: 3 if family == "bsa" else 4]
    torch.library.opcheck(getattr(torch.ops.attnbench, OPERATORS[family]).default, arguments, test_utils=wanted)


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_operators_are_what_they_say(apis, family, kind):
    assert {*samples(family)} == {one for name, one in KINDS if name == family}
    check(family, samples(family)[kind])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_is_followed(apis, family, compiled):
    run = layer(apis, family)
    x, weights, ends = inputs(40)
    q = (x @ weights).detach()

    def attend(q, ends):
        with torch.autocast("cpu", torch.float16):
            return run(q[:, :32], torch.eye(32).repeat(1, 3), ends)

    found = (torch.compile(attend, fullgraph=True, backend="aot_eager") if compiled else attend)(q, ends)
    half = q[:, :32].half()
    assert found.dtype is torch.float16
    truth = run(half, torch.eye(32, dtype=torch.float16).repeat(1, 3), ends)
    torch.testing.assert_close(found, truth, atol=2e-3, rtol=2e-3)  # gates are rounded elsewhere


def test_an_operator_casts_by_itself(apis):
    q = torch.randn(1, 20, 2, 16)
    with torch.autocast("cpu", torch.float16):
        found = torch.ops.attnbench.flash_forward(q, q, q, None, None, None, None, True, None, None, False, None, None)
    assert torch.equal(found[0], apis["flash"].flash_attention(*[q.half()] * 3, causal=True)[0])


WRONG = {
    "flash": (
        {"scale": True},
        {"scale": "x"},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"window": (True, 0)},
        {"window": (1.5, 0)},
        {"window": 3},
        {"window": (1, 2, 3)},
        {"forward": 3},
        {"forward": "m1"},
        {"forward": "m128n128w8s2-tma-ws"},
        {"backward": "b1"},
        {"deterministic": True, "backward": "b64x128w8s2-atomic"},
        {"causal": 1},
        {"cu_seqlens_q": [0, 40]},
    ),
    "packed": ({"max_seqlen_q": True}, {"max_seqlen_q": 20.0}, {"max_seqlen_q": None}, {"max_seqlen_q": -1}),
    "dense": (
        {"alpha": True},
        {"alpha": "x"},
        {"max_seqlen": True},
        {"scaling_seqlen": True},
        {"scaling_seqlen": 2.5},
        {"contextual_len": True},
        {"max_attn_len": True},
        {"offsets": [0, 40]},
    ),
    "bsa": ({"alpha": True}, {"block_size": True}, {"block_size": 16.0}, {"block_counts": True}, {"max_seqlen": True}),
}


@pytest.mark.parametrize(("family", "wrong"), [(family, one) for family, all_ in WRONG.items() for one in all_])
def test_a_wrong_argument_is_refused_in_the_same_words_by_an_eager_a_compiled_and_a_traced_call(apis, family, wrong):
    q, ends = torch.randn(40, 2, 16), ints(0, 40)
    if family == "flash":
        call, given = apis["flash"].flash_attention, {"q": q[None], "k": q[None], "v": q[None]}
    elif family == "packed":
        call, given = apis["flash"].flash_attention, {"q": q, "k": q, "v": q, "cu_seqlens_q": ends}
    else:
        call = getattr(apis[family], {"dense": "hstu_attention", "bsa": "hstu_bsa_attention"}[family])
        given = {"q": q, "k": q, "v": q, "offsets": ends, "max_seqlen": 40}

    def run(q):
        return call(**given | dict.fromkeys(("q", "k", "v"), q) | wrong)

    with pytest.raises(ValueError) as eager:  # its words are those of the others
        run(given["q"])
    said = str(eager.value)
    assert "\n" not in said
    with pytest.raises(Exception) as compiled:  # Dynamo raises errors of its own, with ours in them
        torch.compile(run, fullgraph=True, backend="eager")(given["q"])
    # Dynamo shows the arguments of an operator, and an error in it as a Python literal.
    text = str(compiled.value)
    assert said in text or repr(said)[1:-1] in text, text
    with pytest.raises(ValueError) as traced:
        torch.func.vmap(run)(given["q"][None])
    assert said == str(traced.value)


def test_a_tensor_as_a_number_is_read_by_an_eager_call_alone(apis):
    flash, q = apis["flash"].flash_attention, torch.randn(2, 1, 40, 2, 16)
    truth = torch.stack([flash(x, x, x, scale=0.3)[0] for x in q])
    scale = torch.tensor(0.3)
    assert torch.allclose(torch.func.vmap(lambda x: flash(x, x, x, scale=scale)[0])(q), truth, atol=1e-6)
    with pytest.raises(Exception, match="scale is a tensor, whose value compiled code does not know; a Python number"):
        torch.compile(lambda x: flash(x, x, x, scale=scale), fullgraph=True, backend="eager")(q[0])


def test_a_configuration_that_cannot_run_is_not_exported(apis):
    class Layer(torch.nn.Module):
        def forward(self, q):
            return apis["flash"].flash_attention(q, q, q, forward="m128n128w8s2-tma-ws")

    with pytest.raises(Exception, match="has the order ws, which needs 16-bit inputs; plain"):
        torch.export.export(Layer(), (torch.randn(1, 40, 2, 16),))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_batch_of_vmap_has_empty_results(apis, family):
    def attend(x):
        q = x.unflatten(-1, (2, 16))
        if family == "flash":
            return apis["flash"].flash_attention(q[None], q[None], q[None])[0][0]
        if family == "dense":
            return apis["dense"].hstu_attention(q, q, q, ints(0, 40), 40)
        return apis["bsa"].hstu_bsa_attention(q, q, q, ints(0, 40), 40, block_size=16, block_counts=2)[0]

    for dim in (0, 1):
        found = torch.func.vmap(attend, in_dims=dim)(torch.randn((0, 40, 32) if dim == 0 else (40, 0, 32)))
        assert found.shape == (0, 40, 2, 16)


def test_another_scale_is_another_graph_and_a_factor_of_the_queries_is_not(apis):
    """PyTorch makes a float that an operator takes a constant of the graph; a tensor that q is multiplied by is an input."""
    flash, q = apis["flash"].flash_attention, torch.randn(1, 20, 2, 16)
    graphs = torch._dynamo.utils.counters["stats"]
    scales = (0.3, 0.5, 0.7, 0.9)
    given = torch.compile(lambda q, scale: flash(q, q, q, scale=scale)[0], fullgraph=True, backend="aot_eager")
    factor = torch.compile(lambda q, scale: flash(q * scale, q, q, scale=1.0)[0], fullgraph=True, backend="aot_eager")
    for scale in scales:
        given(q, scale)
    assert graphs["unique_graphs"] == len(scales)
    graphs.clear()
    for scale in scales:
        assert torch.allclose(factor(q, torch.tensor(scale)), flash(q, q, q, scale=scale)[0], atol=1e-5)
    assert graphs["unique_graphs"] == 1


def test_refusals_are_the_same_words_while_traced(apis):
    flash, dense, bsa = apis["flash"].flash_attention, apis["dense"].hstu_attention, apis["bsa"].hstu_bsa_attention
    q, three = torch.randn(40, 2, 16), ints(0, 40)
    for call, words in (
        (lambda q: flash(q[None], q[None], q[None], window=(-2, 0)), r"flash_attention: window=.* is not a window"),
        (lambda q: flash(q, q, q), r"flash_attention: q.shape=.* does not fit"),
        (lambda q: flash(q[None], q[None], q[None], forward="m1"), r"m1"),
        (lambda q: flash(q[None], q[None], q[None], validate=True), r"validate=True synchronizes with the device"),
        (lambda q: dense(q, q, q, three, -1), r"hstu_attention: max_seqlen=-1 cannot be used"),
        (lambda q: bsa(q, q, q, three, 40, block_size=5), r"hstu_bsa_attention: block_size=5 is not a power of two"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=words):
            torch.compile(call, fullgraph=True, backend="aot_eager")(q)


def test_modes_and_transforms_meet_the_operator(apis):
    from torch.fx.experimental.proxy_tensor import make_fx

    flash = apis["flash"].flash_attention
    q = torch.randn(1, 20, 2, 16)
    graph = make_fx(lambda q: flash(q, q, q)[0])(q)
    assert [node for node in graph.graph.nodes if "flash_forward" in str(node.target)]
    assert torch.equal(graph(q), flash(q, q, q)[0])
    with torch.device("meta"):
        assert flash(q, q, q)[0].device.type == "cpu"


def test_derivatives_that_there_are_not_are_refused(apis):
    flash, q = apis["flash"].flash_attention, torch.randn(1, 20, 2, 16)

    def attend(q):
        return flash(q, q, q)[0].sum()

    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(attend, (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        attend(q)
        with pytest.raises(Exception, match="jvp"):
            attend(torch.autograd.forward_ad.make_dual(q, q))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gradient_of_an_operator_has_no_derivative_and_no_warning(apis, family, recwarn):
    class Other(torch.Tensor):
        pass

    x, weights, ends = inputs(35)
    x = x.detach().as_subclass(Other).requires_grad_()
    (grad,) = torch.autograd.grad(layer(apis, family)(x, weights, ends).sum(), x, create_graph=True)
    with pytest.raises(
        NotImplementedError, match="gradients have no derivatives; its functions are differentiable once"
    ):
        (grad.square().sum() + x.sum()).backward()
    assert not recwarn.list


def test_an_eager_call_meets_no_operator(apis, monkeypatch):
    monkeypatch.setattr(apis["flash"], "FORWARD", None)
    q = torch.randn(1, 20, 2, 16, requires_grad=True)
    apis["flash"].flash_attention(q, q, q)[0].sum().backward()
    apis["flash"].flash_attention(torch.nn.Parameter(q.detach()), q, q)
