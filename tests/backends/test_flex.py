import pytest
import torch

from attnbench.backends import flex
from attnbench.backends.base import Machine
from attnbench.backends.mask import Mask
from attnbench.backends.registry import all_backends
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import make_inputs

from .reference import expected

SHAPE = {"batch": 2, "seqlen": 21, "nheads": 4, "headdim": 16, "dtype": "fp32"}
RAGGED = {
    "batch": 3,
    "seqlen": 20,
    "nheads": 1,
    "headdim": 16,
    "dtype": "fp32",
    "seqlen_k": 30,
    "lengths": "20/9:1/30:13/13",
}


def run(case, seeds=(1,)):
    backend = all_backends()["flex"]
    backend.check(case, Machine("cpu"))
    first = make_inputs(case, seed=seeds[0], kind="normal", device="cpu")
    with backend.session(case, first) as launch:
        for seed in seeds:
            inputs = make_inputs(case, seed=seed, kind="normal", device="cpu")
            launch.reload(inputs)
            launch.forward()
            torch.testing.assert_close(
                launch.outputs()["out"].double(), expected(case, inputs)["out"], rtol=2e-5, atol=2e-5
            )


def test_compiled_forward_of_documents():
    run(AttentionCase(**RAGGED, causal=True), seeds=(1, 2))


def test_one_shape_after_another_is_compiled(monkeypatch):
    """With room for one shape a function, a shared function would be refused at the second."""
    import torch._dynamo

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn, **how: real(fn, backend="eager", **how))

    def made(weight):
        def attend(q, k, v):
            return q * weight + k + v

        return attend

    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (3, 4, 5):
            ones = torch.ones(size)
            assert torch.equal(flex.compiled_alone(made(size))(ones, ones, ones), ones * (size + 2))
        shared = torch.compile(made(1), fullgraph=True, dynamic=False)
        shared(ones, ones, ones)
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            torch.compile(made(2), fullgraph=True, dynamic=False)(ones[:1], ones[:1], ones[:1])


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        (SHAPE, {}),
        (SHAPE, {"causal": True}),
        (SHAPE, {"seqlen_k": 9, "causal": True}),
        (SHAPE, {"seqlen_k": 30, "window": (4, 2)}),
        (SHAPE, {"window": (-1, 2)}),
        (SHAPE, {"headdim_v": 24}),
        (RAGGED, {}),
        (RAGGED, {"causal": True}),
        (RAGGED, {"causal": True, "window": (3, 0)}),
    ],
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_masks_and_layouts_without_compiling(monkeypatch, shape, more):
    monkeypatch.setattr(flex, "compiled_alone", lambda attend: attend)
    run(AttentionCase(**shape, **more), seeds=(1, 2))


def rule_of(case):
    return Mask.of(case).rule(case, None)


def test_no_mask_is_no_block_mask():
    assert rule_of(AttentionCase(**SHAPE)) is None
    assert rule_of(AttentionCase(**{**SHAPE, "seqlen": 1}, causal=True, seqlen_k=9)) is None


def test_buffers_are_kept_while_the_first_call_compiles(monkeypatch):
    from torch._functorch import config

    seen = []
    monkeypatch.setattr(
        torch, "compile", lambda fn, **how: lambda *args: (seen.append((config.donated_buffer, how)), fn(*args))[1]
    )
    before = config.donated_buffer
    attend = flex.compiled_alone(lambda q, k, v: q + k + v)
    assert [attend(1, 2, 3), attend(1, 2, 4)] == [6, 7]
    assert seen == [(False, {"fullgraph": True, "dynamic": False}), (before, {"fullgraph": True, "dynamic": False})]
    assert config.donated_buffer is before
