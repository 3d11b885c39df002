"""Compiled layers on a card: Inductor, CUDA graphs of its own, gradients, lengths left open."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from attnbench.kernels import flash_attention, hstu_attention, hstu_bsa_attention
from attnbench.kernels.flash.sparse import api as sparse

from . import test_operators as with_backward
from . import test_operators_of_forwards as forwards

pytestmark = pytest.mark.gpu
FAMILIES = ("flash", "dense", "bsa")


def layer(family: str) -> Any:
    def run(x, weights, ends, gates):
        q, k, v = (y.unflatten(-1, (4, 128)) for y in (x @ weights).chunk(3, -1))
        n = x.shape[0]
        if family == "flash":
            return flash_attention(q[None], k[None], v[None], causal=True)[0][0].flatten(1).relu()
        if family == "dense":
            return hstu_attention(q, k, v, ends, n, deterministic=True).flatten(1).relu()
        return hstu_bsa_attention(q, k, v, ends, n, gates=gates.unflatten(-1, (4, 2)))[0].flatten(1).relu()

    return run


def inputs(n: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(n)
    x, weights, gates = (
        torch.randn(shape, device="cuda", generator=generator).bfloat16().requires_grad_()
        for shape in ((n, 64), (64, 3 * 512), (n, 8))
    )
    return x, weights, torch.tensor([0, n], dtype=torch.int32, device="cuda"), gates


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_layer_gives_what_an_eager_one_does(family, mode):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = layer(family)
    dynamic = mode == "default"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        # The graph by which Inductor makes a pool of memory.
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, mode=mode)
        for n in (700, 500, 900) if dynamic else (700,) * 4:
            x, weights, ends, gates = inputs(n)
            wanted = run(x, weights, ends, gates)
            given = (x, weights, gates) if family == "bsa" else (x, weights)
            gradients = torch.autograd.grad(wanted.float().square().sum(), given)
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(x, weights, ends, gates)
            torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
            others = torch.autograd.grad(found.float().square().sum(), given)
            for one, other in zip(gradients, others, strict=True):
                worst = (one - other).abs().max() / one.abs().max()
                assert worst < 0.02, worst
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_layer_gives_what_an_eager_one_does(family):
    class Layer(torch.nn.Module):
        def forward(self, x, weights, ends, gates):
            return layer(family)(x, weights, ends, gates)

    with torch.no_grad():
        length = torch.export.Dim("length", min=129, max=65536)
        shapes = ({0: length}, None, None, {0: length})
        exported = torch.export.export(Layer(), inputs(700), dynamic_shapes=shapes)
        for n in (700, 1300):
            given = inputs(n)
            torch.testing.assert_close(exported.module()(*given), layer(family)(*given), atol=2e-2, rtol=2e-2)


def moved(x: Any, device: str = "cuda") -> Any:
    """An argument on the card, in 16 bits; without the names of configurations that are for the interpreter."""
    if not isinstance(x, torch.Tensor):
        return None if isinstance(x, str) and x.startswith("m16") else x
    found = x.detach().to(device)
    found = found.bfloat16() if found.dtype is torch.float32 else found
    return found.requires_grad_(x.requires_grad)


@pytest.mark.parametrize(("family", "kind"), with_backward.KINDS)
def test_operators_are_what_they_say(family, kind):
    with_backward.check(family, tuple(map(moved, with_backward.samples(family, dim=128)[kind])))


@pytest.mark.parametrize(("family", "kind"), forwards.KINDS)
def test_operators_without_a_backward_are_what_they_say(family, kind):
    operator, arguments = forwards.samples({"sparse": sparse}, family, dim=128, device="cuda")[kind]
    torch.library.opcheck(getattr(torch.ops.attnbench, operator).default, tuple(map(moved, arguments)))
