"""``flash-triton``: right in the interpreter through the seam, its configurations by name, what it refuses."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.base import Budget, Machine
from attnbench.backends.registry import all_backends, resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.cli import main
from attnbench.errors import Unavailable, Unsupported, UsageError, WorkerError
from attnbench.kernels.flash.config.family import FAMILY
from attnbench.kernels.flash.config.forward import parse
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs

from .interpreter import interpreted

HOPPER, AMPERE = Machine("cuda", (9, 0)), Machine("cuda", (8, 0))


def case_of(**values):
    small = {"batch": 2, "seqlen": 40, "nheads": 2, "headdim": 16, "dtype": "fp16", "mode": "fwd"}
    return WORKLOAD.case(small | values)


def make(case, seed=1):
    return make_inputs(case, seed=seed, kind="normal", device="cpu")


@pytest.mark.parametrize(
    ("selector", "values"),
    [
        ("flash-triton", {"causal": True, "nheads_kv": 1, "seqlen_k": 51}),
        ("flash-triton[m64n64w4s1-fused]", {"window": (9, 3), "lengths": "40:17"}),
        ("flash-triton", {"causal": True, "mode": "fwd-bwd"}),
    ],
)
def test_right_through_the_seam(selector, values):
    pytest.importorskip("triton")
    case = case_of(**values)
    backend, inputs = resolve(selector, case), [make(case, seed) for seed in (1, 2)]
    with interpreted(), backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant="softmax", budget=Budget())
        assert (outcome.ok, outcome.reason, outcome.notes) == (True, None, ())
        assert launch.capturable
        config = selector.partition("[")[2].rstrip("]") or "m32n32w4s1"
        assert launch.notes[0] == f"forward {config}"
        assert len(launch.notes) == 1 + case.has_backward


def test_it_wants_a_forward_first_and_makes_the_calls_a_user_makes(monkeypatch):
    pytest.importorskip("triton")
    case = case_of(mode="fwd-bwd", batch=1)
    with interpreted(), all_backends()["flash-triton"].session(case, make(case)) as launch:
        for early in (launch.backward, launch.outputs):
            with pytest.raises(WorkerError, match="before forward"):
                early()
        launch.call("fwd-bwd")()
        first = launch.outputs()
        launch.call("fwd-bwd")()
        again = launch.outputs()
        assert set(first) == set(again) == {"out", "dq", "dk", "dv"}
        for name, x in again.items():
            assert x.data_ptr() != first[name].data_ptr(), "as a user's call, it allocates its results"
            torch.testing.assert_close(x, first[name], rtol=0, atol=0)
        calls = []
        monkeypatch.setattr(
            "attnbench.kernels.flash.api.flash_attention", lambda *qkv, **said: calls.append(said) or (qkv[0], None)
        )
        launch.forward()
        assert [said["causal"] for said in calls] == [case.causal]


def test_the_public_function_is_differentiable_on_slices_of_one_tensor_and_validates():
    pytest.importorskip("triton")
    with interpreted("attnbench.kernels.flash.api") as (kernels,):
        fused = torch.randn(2, 33, 2, 48, requires_grad=True)
        q, k, v = fused.split(16, dim=3)
        out, lse = kernels.flash_attention(q, k, v, causal=True)
        (grad,) = torch.autograd.grad(out.sum(), fused)
        want = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
        ).transpose(1, 2)
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(grad, torch.autograd.grad(want.sum(), fused)[0], rtol=1e-3, atol=1e-4)
        assert lse.shape == (2, 2, 33)
        assert not lse.requires_grad
        packed = fused.detach().flatten(0, 1).split(16, dim=2)
        offsets = torch.tensor([0, 33, 66], dtype=torch.int32)
        alone, _ = kernels.flash_attention(*packed, causal=True, cu_seqlens_q=offsets, max_seqlen_q=33, validate=True)
        torch.testing.assert_close(alone, out.detach().flatten(0, 1))
        with pytest.raises(ValueError, match=r"flash_attention: max_seqlen_q=20 is below the rows"):
            kernels.flash_attention(*packed, cu_seqlens_q=offsets, max_seqlen_q=20, validate=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": torch.zeros(1, 3, 2, 16, dtype=torch.float64)}, r"q\.dtype=torch\.float64 is not supported; bfloat16"),
        ({"q": torch.zeros(3, 2, 16)}, r"q\.shape=\(3, 2, 16\) does not fit; \[sequences, rows, heads, dims\]"),
        ({"k": torch.zeros(1, 3, 2, 8)}, r"k\.shape\[-1\]=8 does not fit; 16, q's dims"),
        (
            {"k": torch.zeros(1, 3, 3, 16), "v": torch.zeros(1, 3, 3, 16)},
            r"k\.shape\[-2\]=3 does not divide the 2 heads",
        ),
        ({"v": torch.zeros(1, 4, 2, 16)}, r"v\.shape=\(1, 4, 2\) does not fit; \(1, 3, 2\), k's rows and heads"),
        ({"q": torch.zeros(1, 3, 2, 257)}, r"q\.shape=\(1, 3, 2, 257\) has too many dims or none; 1 to 256"),
        ({"window": (3,)}, r"window=\(3,\) is not a window; \(left, right\)"),
        ({"scale": 0.0}, r"scale=0\.0 cannot be used; a finite number over 0"),
        ({"scale": 10**400}, r"scale=inf cannot be used; a finite number over 0"),
        ({"scale": "1"}, r"scale='1' is no number; a finite number over 0, or None"),
        ({"scale": True}, r"scale=True is no number"),
        ({"scale": torch.ones(2)}, r"scale=tensor\(\[1\., 1\.\]\) is no number"),
        ({"max_seqlen_q": 3}, r"max_seqlen_q=given is passed without cu_seqlens_q"),
        ({"cu_seqlens_q": torch.zeros(2)}, r"q\.shape=\(1, 3, 2, 16\) does not fit; .*packed"),
        (
            dict.fromkeys("qkv", torch.zeros(3, 2, 16)) | {"cu_seqlens_q": [0, 3], "max_seqlen_q": 3},
            r"cu_seqlens_q=list is no tensor; int32 \[sequences \+ 1\], contiguous",
        ),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(change, said):
    pytest.importorskip("triton")
    from attnbench.kernels.flash.problem import problem_of

    x = torch.zeros(1, 3, 2, 16)
    given = {"q": x, "k": x, "v": x} | change
    with pytest.raises(ValueError, match=f"^flash_attention: {said}"):
        problem_of(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"forward": "m128n128w8s2-tma-wss"},
            r"forward=m128n128w8s2-tma-wss has the word wss; one of tma, ahead, ws, .*is m128n128w8s2-tma-ws$",
        ),
        ({"forward": "m128n128w8s2-ws"}, r"forward=m128n128w8s2-ws has the order ws, which loads only by tensor maps"),
        (
            {"backward": "b64x128w8s2"},
            r"backward=b64x128w8s2 lacks rows; such as .*; the nearest valid one is b64x128w8s2-atomic-m2$",
        ),
        (
            {"backward": "b64x64w4s2-atomic", "deterministic": True},
            r"backward=b64x64w4s2-atomic accumulates dQ by atomics, which deterministic=True excludes; one with r…, or None",
        ),
        ({"forward": 0}, r"forward=0 is of type int; a ForwardConfig, its name, or None"),
        ({"backward": ["b64x64w4s2-atomic"]}, r"backward=.* is of type list; a BackwardConfig, its name, or None"),
        ({}, r"q\.device=cpu has no compiled kernels; a CUDA device"),
        (
            {"forward": "m128n128w8s2-tma-pp", "backward": "b128x128w8s2-atomic-tma-ws"},
            r"q\.device=cpu has no compiled",
        ),
    ],
)
def test_the_public_function_takes_configurations_by_name_and_refuses_in_one_line(given, said):
    kernels = pytest.importorskip("attnbench.kernels.flash.api")
    x = torch.zeros(1, 40, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=f"^flash_attention: {said}") as caught:
        kernels.flash_attention(x, x, x, **given)
    assert "\n" not in str(caught.value)


def test_a_configuration_by_name_is_the_same_as_by_its_fields():
    pytest.importorskip("triton")
    with interpreted("attnbench.kernels.flash.api") as (kernels,):
        x = torch.randn(1, 40, 1, 16, requires_grad=True)
        words = {"forward": "m16n16w4s1", "backward": "b16x16w4s1-r16x16w4s1"}
        fields = {"forward": kernels.parse(words["forward"]), "backward": kernels.parse_backward(words["backward"])}
        outs = [
            kernels.flash_attention(x, x, x, causal=True, deterministic=True, **given)[0] for given in (words, fields)
        ]
        grads = [torch.autograd.grad(out.sum(), x)[0] for out in outs]
        assert torch.equal(*outs)
        assert torch.equal(*grads)


def test_configurations_for_hopper_are_refused_on_other_cards_by_name(monkeypatch):
    kernels = pytest.importorskip("attnbench.kernels.flash.api")
    x = torch.zeros(1, 40, 1, 64, dtype=torch.bfloat16)
    monkeypatch.setattr("attnbench.kernels.flash.calls.capability_of", lambda x: (10, 0))
    with pytest.raises(
        ValueError,
        match=r"^flash_attention: forward=m128n128w8s2-tma-ws has the order ws, which is "
        r"for sm_90, not sm_100; plain$",
    ):
        kernels.flash_attention(x, x, x, forward="m128n128w8s2-tma-ws")


def test_an_order_that_is_wrong_on_a_card_is_refused_there_by_name(monkeypatch):
    kernels = pytest.importorskip("attnbench.kernels.flash.api")
    x = torch.zeros(1, 40, 1, 64, dtype=torch.bfloat16)
    said = "^flash_attention: forward=m64n64w4s2-ahead has the order ahead, which is wrong on sm_90: a product still"
    monkeypatch.setattr("attnbench.kernels.flash.calls.capability_of", lambda x: (9, 0))
    with pytest.raises(ValueError, match=said):
        kernels.flash_attention(x, x, x, forward="m64n64w4s2-ahead")
    monkeypatch.setattr("attnbench.kernels.flash.forward.capability_of", lambda x: (9, 0))
    problem = kernels.problem_of(x, x, x)
    with pytest.raises(ValueError, match=said):
        kernels.launch_forward(x, x, x, x, torch.zeros(1, 1, 40), problem, kernels.parse("m64n64w4s2-ahead"))
    monkeypatch.setattr("attnbench.kernels.flash.calls.capability_of", lambda x: (8, 0))
    with pytest.raises(ValueError, match="no compiled kernels"):
        kernels.flash_attention(x, x, x, forward="m64n64w4s2-ahead")


STRIDES = {
    "as-they-come": (lambda x: x, True),
    "packed": (lambda x: x.flatten(0, 1), True),
    "of-one-tensor": (lambda x: x.repeat(1, 1, 1, 3)[..., :64], True),
    "heads-first": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), False),
    "8-byte-rows": (lambda x: torch.zeros(2, 40, 2, 68, dtype=x.dtype)[..., :64], False),
    "shared-heads": (lambda x: x[:, :, :1].expand(2, 40, 4, 64), False),
    "unaligned": (lambda x: torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape), False),
    "none": (lambda x: x[:, :0], False),
}


@pytest.mark.parametrize("name", STRIDES)
def test_the_default_is_the_hopper_path_only_of_tensors_it_can_describe(name, monkeypatch):
    kernels = pytest.importorskip("attnbench.kernels.flash.api")
    monkeypatch.setattr("attnbench.kernels.flash.calls.capability_of", lambda x: (9, 0))
    change, hopper = STRIDES[name]
    x = change(torch.zeros(2, 40, 2, 64, dtype=torch.bfloat16))
    offsets = {"cu_seqlens_q": torch.tensor([0, 40, 80], dtype=torch.int32), "max_seqlen_q": 40}
    problem = kernels.problem_of(x, x, x, **(offsets if x.dim() == 3 else {}))
    assert kernels.default_forward(x, x, x, problem).order == ("ws" if hopper else "plain")
    assert (kernels.default_backward(x, x, x, problem).order == "ws") == hopper
    assert kernels.default_backward(x, x, x, problem, deterministic=True).deterministic


@pytest.mark.parametrize(
    ("dims", "forward", "backward"),
    [
        ((128, 96), "ws", "ws"),
        ((128, 64), "plain", "ws"),
        ((256, 256), "ws", "ws"),
        ((60, 60), "plain", "early"),
        ((16, 16), "plain", "ws"),
        ((64, 60), "plain", "early"),
    ],
)
def test_the_default_is_the_hopper_path_only_of_dims_it_has(dims, forward, backward, monkeypatch):
    kernels = pytest.importorskip("attnbench.kernels.flash.api")
    monkeypatch.setattr("attnbench.kernels.flash.calls.capability_of", lambda x: (9, 0))
    # Rows 16 bytes apart whatever the dims: of the slices of one tensor.
    q, v = (torch.zeros(9, 40, 2, 256, dtype=torch.bfloat16)[..., :dim] for dim in dims)
    problem = kernels.problem_of(q, q, v)  # 18 tiles, of which the two processors here have no two each
    assert kernels.default_forward(q, q, v, problem).order == forward
    assert (kernels.default_backward(q, q, v, problem).order == "ws") == (backward == "ws")


def test_a_gradient_of_the_output_that_the_kernel_cannot_take_is_copied_whatever_autograd_gives():
    kernels = pytest.importorskip("attnbench.kernels.flash.calls")
    hopper = pytest.importorskip("attnbench.kernels.shared.hopper")
    ws, portable = map(kernels.BackwardConfig.parse, ("b64x128w8s2-atomic-tma-ws", "b64x128w8s3-atomic-tma"))
    plain = torch.randn(2, 40, 3, 64)
    for grad in (
        plain,
        plain.transpose(1, 2).contiguous().transpose(1, 2),
        plain[:, :, :1].expand(plain.shape),
        torch.ones(1).expand(plain.shape),
    ):
        for config in (ws, portable):
            if kernels._takes_grad(grad, config):
                assert grad.stride(-1) == 1
                assert hopper.is_rows(grad) or config is portable
            assert kernels._takes_grad(grad.clone(memory_format=torch.contiguous_format), config)
    assert kernels._takes_grad(plain, ws)


@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_every_configuration_is_read_back_and_runs_on_the_card_it_is_for(mode):
    case = case_of(mode=mode, headdim=128, seqlen=4096, causal=True, dtype="bf16")
    backend = all_backends()["flash-triton"]
    shorts = [config.short for config in backend.configs(case)]
    assert len(shorts) == len(set(shorts)) >= (150 if mode == "fwd" else 50)
    for short in shorts:
        resolve(f"flash-triton[{short}]", case).check(case, HOPPER)


def test_a_configuration_is_of_the_forward_or_the_backward_or_both():
    forward, backward = "m64n64w4s2", "b64x64w4s2-atomic"
    assert FAMILY.split(forward) == {"forward": forward}
    assert FAMILY.split(backward) == {"backward": backward}
    assert FAMILY.split(f"{forward}+{backward}") == {"forward": forward, "backward": backward}
    case = case_of(mode="fwd-bwd", headdim=64)
    resolve("flash-triton[m64n64w4s2+b64x64w4s2-atomic]", case).check(case, HOPPER)
    with pytest.raises(UsageError, match="is for the backward, which mode=fwd does not have"):
        resolve("flash-triton[b64x64w4s2-atomic]", case_of())


def test_a_full_form_names_the_same_as_the_short_one():
    case = case_of(mode="fwd-bwd", headdim=128, seqlen=4096, dtype="bf16")
    backend = all_backends()["flash-triton"]
    for short in ("m128n128w8s2-tma-pp-persistent", "m64n64w4s2-fused-mix"):
        full = parse(short).full
        assert FAMILY.split(full) == {"forward": full}
        assert backend.config_of(full, case).values == backend.config_of(short, case).values
        assert FAMILY.split(f"{full}+b64x128w8s2-atomic-tma-ws")["forward"] == full
        resolve(f"flash-triton[{full}+b64x128w8s2-atomic-tma-ws]", case).check(case, HOPPER)


@pytest.mark.parametrize("short", ["b64x64w4s2-atomic+b64x64w4s2-atomic", "m64n64w4s2+m64n64w4s2", "m64n64w4s2+", "+"])
def test_more_than_a_forward_and_a_backward_is_refused(short):
    with pytest.raises(UsageError, match=r"has two parts for one side; m…, b… or m…\+b…$"):
        resolve(f"flash-triton[{short}]", case_of(mode="bwd"))


@pytest.mark.parametrize(
    ("values", "short", "near"),
    [
        ({"headdim": 64}, "b64x128w8s2-atomic-tma-ws", "b128x128w8s2-atomic-tma-ws"),
        ({"headdim": 128}, "b128x128w8s3-atomic-tma-ws", "b64x128w8s3-atomic-tma-ws"),
        ({"headdim": 128}, "b64x128w8s2-atomic-tma-wss", "b64x128w8s2-atomic-tma-ws"),
        ({"headdim": 128}, "b64x128w8s2-atomic-tma-ahead1", "b64x128w8s2-atomic-tma-ahead"),
        ({"headdim": 256}, "b64x64w8s2-r128x32w8s2-tma-wss", "b64x64w8s2-r128x32w8s2-tma"),
    ],
)
def test_of_a_backward_too_the_nearest_valid_one_is_near(values, short, near):
    case = case_of(mode="bwd", seqlen=4096, dtype="bf16", **values)
    with pytest.raises(UsageError, match=rf"config={short} (is not|has the word) .*; the nearest valid one is {near}$"):
        resolve(f"flash-triton[{short}]", case)
    resolve(f"flash-triton[{near}]", case).check(case, HOPPER)


def test_where_no_tile_is_as_short_as_the_rows_the_smallest_is_the_nearest():
    with pytest.raises(
        UsageError,
        match=r"length: it has tiles n128 for 1 rows; at most n32; the nearest valid one is "
        r"m128n32w8s2-tma-ws$",
    ):
        resolve("flash-triton[m128n128w8s2-tma-ws]", case_of(seqlen=1, headdim=128, dtype="bf16"))


@pytest.mark.parametrize(
    ("short", "said"),
    [
        (
            "m128n128w8s2-ws-tma",
            "is not how it is spelled; m128n128w8s2-tma-ws; the nearest valid one is m128n128w8s2-tma-ws$",
        ),
        ("m128n128w8s2-tma-pp1", "has the word pp1; .*; the nearest valid one is m128n128w8s2-tma-pp$"),
        (
            "m128n128w8s2-tma-ahead",
            "is not valid, ahead: it has the order ahead, which is wrong on sm_90: a product "
            "still reads the weights' registers; .*the nearest valid one is m128n128w8s2-tma$",
        ),
        (
            "m128n128w8s4-tma",
            "is not valid, shared-memory: it takes 288 KiB of shared memory, of 227 available; .*"
            "the nearest valid one is m128n128w8s3-tma$",
        ),
        ("m128n128w8s2-tma-fuse", "has the word fuse; one of tma, .*the nearest valid one is m128n128w8s2-tma-fused$"),
        ("fast", "is not a short form; such as m128n128w8s2-tma-pp; the nearest valid one is m"),
    ],
)
def test_an_invalid_configuration_is_answered_with_what_is_wrong_and_the_nearest(short, said, capsys):
    command = ["run", "quick", "--device", "cpu", "--no-save", "--dtype", "fp16", "--headdim", "128"]
    assert main([*command, "--seqlen", "1024", "--backends", f"flash-triton[{short}]"]) == 2
    answer = capsys.readouterr().err.strip()
    assert "\n" not in answer
    with pytest.raises(UsageError, match=f"flash-triton: config={short} {said}"):
        resolve(f"flash-triton[{short}]", case_of(headdim=128, seqlen=1024))


def test_configurations_are_listed_by_name(capsys):
    assert main(["list", "configs", "flash-triton"]) == 0
    listed = capsys.readouterr().out
    assert "flash-triton[m128n128w8s2-tma-fused]" in listed
    assert "-ahead" not in listed
    assert "block_m" in listed


def test_it_refuses_what_it_does_not_take():
    backend, case = all_backends()["flash-triton"], case_of()
    backend.check(case_of(causal=True, window=(5, 0), nheads_kv=1, headdim=96, headdim_v=40, mode="fwd-bwd"), AMPERE)
    for values, said in (
        ({"headdim": 257}, "headdim=257 is too large; at most 256"),
        ({"dtype": "fp32"}, "dtype=fp32 is not supported; one of fp16, bf16"),
    ):
        with pytest.raises(Unsupported, match=f"flash-triton: {said}"):
            backend.check(case_of(**values), HOPPER)
    with pytest.raises(Unsupported, match=r"compute capability=7\.5 is too old; at least 8\.0"):
        backend.check(case, Machine("cuda", (7, 5)))
    with pytest.raises(Unsupported, match="device=cpu is not supported"):
        backend.check(case, Machine("cpu"))
    with pytest.raises(
        Unsupported, match="is not valid, tma: it loads by TMA, which sm_80 does not have; pointer loads"
    ):
        resolve("flash-triton[m64n64w4s2-tma]", case_of(seqlen=64)).check(case_of(seqlen=64), AMPERE)


def test_it_asks_for_triton(monkeypatch):
    monkeypatch.setattr("attnbench.backends.our_triton.module_exists", lambda name: False)
    with pytest.raises(Unavailable, match="flash-triton: module=triton is not installed"):
        all_backends()["flash-triton"].probe()
