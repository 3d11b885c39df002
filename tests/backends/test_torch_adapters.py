"""eager and SDPA on the CPU against the reference: values, gradients, reload, no settings left changed."""

import warnings

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.differentiable import Operands
from attnbench.backends.mask import Mask
from attnbench.backends.registry import all_backends
from attnbench.backends.sdpa_call import Call, choice, pinned
from attnbench.errors import Unsupported, WorkerError
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import make_inputs

from .reference import expected

CPU = Machine("cpu")
HERE = ("eager", "sdpa", "sdpa-math", "sdpa-flash")
REFUSES = {"sdpa-flash": {"wide values"}}
"""Labels of `CASES`, and precisions, that an adapter of `HERE` refuses; what is not named here it has to compute."""


def case_of(batch=2, seqlen=33, nheads=3, headdim=16, dtype="fp32", mode="fwd-bwd", **more):
    return AttentionCase(batch=batch, seqlen=seqlen, nheads=nheads, headdim=headdim, dtype=dtype, mode=mode, **more)


CASES = {
    "one": case_of(1, 1, 1, 8),
    "odd": case_of(2, 33, 3, 20),
    "causal": case_of(2, 65, 2, causal=True),
    "decode": case_of(2, 1, 4, seqlen_k=63, nheads_kv=2, causal=True),
    "more keys": case_of(1, 17, 2, seqlen_k=40, causal=True),
    "fewer keys": case_of(1, 23, 2, seqlen_k=9, causal=True),
    "cross": case_of(1, 23, 2, seqlen_k=9),
    "grouped": case_of(2, 19, 6, nheads_kv=2),
    "one kv head": case_of(2, 19, 4, nheads_kv=1, causal=True),
    "window": case_of(1, 37, 2, window=(5, 3)),
    "causal window": case_of(1, 37, 2, seqlen_k=50, causal=True, window=(7, 0)),
    "left bound only": case_of(1, 20, 1, window=(4, -1)),
    "wide values": case_of(1, 18, 2, headdim=8, headdim_v=24, causal=True),
}


LOW = {dtype: case_of(1, 31, 2, dtype=dtype, causal=True) for dtype in ("fp16", "bf16")}


def pairs(cases):
    return [(name, label) for name in HERE for label in cases if label not in REFUSES.get(name, ())]


@pytest.mark.parametrize("name", HERE)
def test_an_adapter_refuses_what_is_named_and_nothing_else(name):
    def refuses(case):
        try:
            all_backends()[name].check(case, CPU)
        except Unsupported:
            return True
        return False

    assert {label for label, case in {**CASES, **LOW}.items() if refuses(case)} == REFUSES.get(name, set())


def opened(name, case, inputs):
    backend = all_backends()[name]
    backend.probe()
    backend.check(case, CPU)
    return backend.session(case, inputs)


def close(got, want, rtol=2e-5):
    assert set(got) == set(want)
    for key, tensor in want.items():
        assert got[key].shape == tensor.shape, key
        torch.testing.assert_close(got[key].double(), tensor, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("name", "label"), pairs(CASES))
def test_values_and_gradients(name, label):
    case = CASES[label]
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    kept = {key: value.clone() for key, value in inputs.tensors().items()}
    with opened(name, case, inputs) as launch:
        launch.forward()
        launch.backward()
        close(launch.outputs(), expected(case, inputs))
    for key, value in inputs.tensors().items():
        assert torch.equal(value, kept[key])
        assert value.grad is None
        assert not value.requires_grad


@pytest.mark.parametrize(("name", "dtype"), pairs(LOW))
def test_low_precision(name, dtype):
    case = LOW[dtype]
    inputs = make_inputs(case, seed=2, kind="normal", device="cpu")
    with opened(name, case, inputs) as launch:
        launch.forward()
        launch.backward()
        got = launch.outputs()
        assert {tensor.dtype for tensor in got.values()} == {inputs.q.dtype}
        close(got, expected(case, inputs), rtol=1e-2 if dtype == "fp16" else 6e-2)


@pytest.mark.parametrize("name", HERE)
def test_reload_gives_the_new_answer_and_leaves_the_shared_inputs_alone(name):
    case = case_of(1, 21, 2, causal=True)
    first, second = (make_inputs(case, seed=seed, kind="normal", device="cpu") for seed in (3, 4))
    with opened(name, case, first) as launch, opened(name, case, first) as other:
        for session in (launch, other):
            session.forward()
            session.backward()
        launch.reload(second)
        with pytest.raises(WorkerError, match="there is no output: forward returned none"):
            launch.outputs()
        with pytest.raises(WorkerError, match="backward was called before forward"):
            launch.backward()
        launch.forward()
        assert set(launch.outputs()) == {"out"}  # the old gradients are gone with the old graph
        launch.backward()
        close(launch.outputs(), expected(case, second))
        other.forward()
        other.backward()
        close(other.outputs(), expected(case, first))


@pytest.mark.parametrize("name", HERE)
def test_gradients_do_not_accumulate(name):
    case = case_of(1, 21, 2, mode="bwd")
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    with opened(name, case, inputs) as launch:
        launch.forward()
        launch.backward()
        once = {key: value.clone() for key, value in launch.outputs().items()}
        for _ in range(3):
            launch.call("bwd")()
        launch.call("fwd-bwd")()
        for key, value in launch.outputs().items():
            assert torch.equal(value, once[key])
        assert not launch.capturable


@pytest.mark.parametrize("name", HERE)
def test_forward_alone_keeps_no_graph(name):
    case = case_of(1, 21, 2, mode="fwd")
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    with opened(name, case, inputs) as launch:
        assert launch.backward is None
        launch.forward()
        assert torch.is_grad_enabled()
        out = launch.outputs()
        close(out, expected(case, inputs))
        assert not out["out"].requires_grad
        assert launch.capturable


def switches():
    return {
        name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
        for name in ("flash", "mem_efficient", "math", "cudnn")
    }


def test_a_pin_holds_inside_the_call_only(monkeypatch):
    case = case_of(1, 9, 1, mode="fwd")
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: (seen.append(switches()), attend(*args, **kwargs))[1],
    )
    before = switches()
    inputs = make_inputs(case, seed=7, kind="normal", device="cpu")
    with opened("sdpa-math", case, inputs) as math, opened("sdpa-flash", case, inputs) as flash:
        assert switches() == before
        math.forward()
        flash.forward()
        assert switches() == before
    assert [{name for name, on in each.items() if on} for each in seen] == [{"math"}, {"flash"}]


def test_a_pin_is_taken_back_when_torch_refuses():
    case = case_of(1, 9, 1, headdim=8, headdim_v=16, mode="fwd")
    before = switches()
    inputs = make_inputs(case, seed=8, kind="normal", device="cpu")
    with (
        all_backends()["sdpa-flash"].session(case, inputs) as launch,
        pytest.warns(UserWarning, match="lash attention"),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        launch.forward()
    assert switches() == before


@pytest.mark.parametrize(
    ("label", "kernel", "masked"),
    [
        ("odd", "FLASH_ATTENTION", False),
        ("wide values", "MATH", False),
        ("window", "FLASH_ATTENTION", True),
        ("more keys", "FLASH_ATTENTION", True),
        ("decode", "FLASH_ATTENTION", False),
    ],
)
def test_sdpa_names_the_kernel_torch_chose(label, kernel, masked):
    case = CASES[label]
    with opened("sdpa", case, make_inputs(case, seed=9, kind="normal", device="cpu")) as launch:
        assert launch.notes[0] == f"torch chose {kernel}"
        assert (len(launch.notes) == 2) == masked
    if masked:
        assert launch.notes[1] == "the mask is a tensor: hidden keys are computed and then dropped"


@pytest.mark.parametrize(
    ("name", "case", "machine", "words"),
    [
        ("sdpa-efficient", case_of(), CPU, "sdpa-efficient: device=cpu is not supported; cuda"),
        ("sdpa-cudnn", case_of(), CPU, "sdpa-cudnn: device=cpu is not supported; cuda"),
        ("sdpa-flash", CASES["wide values"], CPU, "sdpa-flash: headdim_v=24 differs from headdim; the headdim, 8"),
        ("eager", case_of(lengths="uniform"), CPU, "eager: lengths=uniform is not supported; full"),
        ("sdpa", case_of(lengths="uniform"), CPU, "sdpa: lengths=uniform is not supported; full"),
        (
            "sdpa-flash",
            case_of(headdim=320, dtype="bf16"),
            Machine("cuda", (9, 0)),
            "sdpa-flash: headdim=320 is too large; at most 256",
        ),
        (
            "sdpa-flash",
            case_of(),
            Machine("cuda", (9, 0)),
            "sdpa-flash: dtype=fp32 is not supported; one of fp16, bf16",
        ),
        (
            "sdpa-flash",
            case_of(dtype="bf16"),
            Machine("cuda", (7, 5)),
            "sdpa-flash: compute capability=7.5 is too old; at least 8.0",
        ),
        (
            "sdpa-flash",
            case_of(dtype="bf16", window=(3, 3)),
            Machine("cuda", (9, 0)),
            "sdpa-flash: window=(3, 3) is not supported; none",
        ),
        (
            "sdpa-cudnn",
            case_of(dtype="bf16", headdim=20),
            Machine("cuda", (9, 0)),
            "sdpa-cudnn: headdim=20 does not fit; a multiple of 8",
        ),
        (
            "sdpa-cudnn",
            case_of(dtype="bf16", causal=True, seqlen_k=64),
            Machine("cuda", (9, 0)),
            "sdpa-cudnn: causal=True with seqlen=33, seqlen_k=64 would be aligned to the top left; equal lengths, "
            "or seqlen=1",
        ),
        (
            "sdpa-efficient",
            case_of(causal=True, seqlen_k=30),
            Machine("cuda", (9, 0)),
            "sdpa-efficient: seqlen_k=30 leaves 3 rows without a visible key; at least seqlen=33",
        ),
    ],
)
def test_refusals(name, case, machine, words):
    with pytest.raises(Unsupported) as refused:
        all_backends()[name].check(case, machine)
    assert str(refused.value) == words


def test_what_top_left_libraries_may_take():
    hopper = Machine("cuda", (9, 0))
    cudnn = all_backends()["sdpa-cudnn"]
    cudnn.check(case_of(seqlen=1, seqlen_k=64, causal=True, dtype="bf16"), hopper)
    cudnn.check(case_of(causal=True, dtype="bf16"), hopper)
    cudnn.check(case_of(seqlen=20, seqlen_k=10, dtype="bf16"), hopper)
    all_backends()["sdpa-efficient"].check(case_of(causal=True, seqlen_k=64), hopper)


def test_the_bottom_right_bias_of_a_gpu_is_right_here_too():
    case = case_of(1, 17, 4, nheads_kv=2, seqlen_k=40, causal=True, mode="fwd")
    inputs = make_inputs(case, seed=10, kind="normal", device="cpu")
    call = Call.bottom_right(case, Mask.of(case))
    assert call.lower_right
    assert call.notes == ()
    operands = Operands(case, inputs, heads_first=True)
    launch = operands.launch(pinned("math", call.attend()))
    launch.forward()
    close(launch.outputs(), expected(case, inputs))
    assert choice(call, operands) == "FLASH_ATTENTION"  # neither GPU kernel: torch makes a mask tensor


def test_what_torch_says_against_a_kernel_is_passed_on(monkeypatch):
    case = case_of(1, 9, 1, mode="fwd")
    operands = Operands(case, make_inputs(case, seed=11, kind="normal", device="cpu"), heads_first=True)

    def refuse(params, debug):
        assert debug
        assert [name for name, on in switches().items() if on] == ["cudnn"]
        warnings.warn("cuDNN wants more. (Triggered internally at a/path.cpp:99.)", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.backends.cuda, "can_use_cudnn_attention", refuse)
    before = switches()
    words = f"sdpa-cudnn: case={case.id} is refused by torch: cuDNN wants more.; what torch says this kernel takes"
    with pytest.raises(Unsupported) as refused:
        all_backends()["sdpa-cudnn"]._ask(
            case, Call.of(case, Mask.of(case), operands.q.device), operands.q, operands.k, operands.v
        )
    assert str(refused.value) == words
    assert switches() == before
