"""What only a card can show of the flash forward: each mask by tensor maps, each configuration, graphs."""

from __future__ import annotations

import re

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends, resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.errors import Unsupported
from attnbench.kernels.flash.api import flash_attention
from attnbench.kernels.flash.config.forward import HOPPER, parse
from attnbench.kernels.flash.config.space import Shape, nearest
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs

pytestmark = pytest.mark.gpu

CASES = {
    "one": {"seqlen": 1, "seqlen_k": 1000, "causal": True},
    "odd": {"seqlen": 127, "seqlen_k": 1000, "causal": True},
    "full": {"seqlen": 1000},
    "rows-without-keys": {"seqlen": 1000, "seqlen_k": 129, "causal": True},
    "window": {"seqlen": 1000, "window": (200, 30)},
    "window-causal": {"seqlen": 1000, "window": (63, 0), "causal": True},
    "grouped": {"seqlen": 1000, "nheads": 8, "nheads_kv": 2, "causal": True},
    "packed": {"batch": 4, "seqlen": 1000, "lengths": "1000:129:1:63", "causal": True},
    "packed-keys": {"batch": 3, "seqlen": 500, "seqlen_k": 1000, "lengths": "500/129:1/1000:63/63", "nheads_kv": 1},
}


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 2, "seqlen": 1000, "nheads": 4, "headdim": 128, "dtype": "bf16", "mode": "fwd"} | values
    )


def make(case, seed=1):
    return make_inputs(case, seed=seed, kind="normal", device="cuda")


def wrong_with(selector, case):
    """What is wrong with the outputs, or nothing."""
    backend, inputs = resolve(selector, case), [make(case, seed) for seed in (1, 2)]
    backend.check(case, Machine("cuda", torch.cuda.get_device_capability()))
    references = References(WORKLOAD, case, *inputs)
    with backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, references, variant="softmax", budget=backend.budget(case))
    return [] if outcome.ok else [f"{selector} {case.id}: {outcome.reason}"]


@pytest.mark.parametrize("dim", [32, 40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("name", CASES)
def test_the_default_is_right_for_every_mask(name, dim):
    dtype = "fp16" if dim in (40, 128) else "bf16"
    assert not wrong_with("flash-triton", case_of(headdim=dim, dtype=dtype, **CASES[name]))


FEW = {
    "one-query": {"batch": 1, "seqlen": 1, "seqlen_k": 33_001, "nheads": 32, "nheads_kv": 8, "causal": True},
    "batch": {"batch": 64, "seqlen": 1, "seqlen_k": 2048, "nheads": 32, "nheads_kv": 8},
    "sixteen-queries": {"batch": 2, "seqlen": 16, "seqlen_k": 4097, "nheads": 32, "nheads_kv": 8, "causal": True},
    "window": {"batch": 3, "seqlen": 4, "seqlen_k": 5000, "nheads": 8, "window": (1000, 0), "causal": True},
    "packed": {"batch": 4, "seqlen": 4, "seqlen_k": 9000, "lengths": "4/9000:1/1:2/513:1/64", "nheads_kv": 1},
}


@pytest.mark.parametrize("dim", [40, 64, 128, 256])
@pytest.mark.parametrize("name", FEW)
def test_few_queries_are_right_and_the_same_bits_in_every_call(name, dim):
    case = case_of(headdim=dim, **FEW[name])
    assert not wrong_with("flash-triton", case)
    with resolve("flash-triton", case).session(case, make(case)) as launch:
        launch.forward()
        first = launch.outputs()["out"].clone()
        for _ in range(20):
            launch.forward()
            assert torch.equal(launch.outputs()["out"], first)


def of_hopper(*values):
    """Parameters that only an sm_90 can run."""
    return [pytest.param(value, marks=pytest.mark.hopper) for value in values]


@pytest.mark.hopper
@pytest.mark.parametrize("dim", [32, 40, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("name", [*CASES, "long"])
def test_the_hopper_path_is_right_for_every_mask(name, dim):
    forms = {
        64: ("m192n64w12s3-tma-pp-persistent", "m256n64w16s2-tma-ws-mix-ticket", "m192n128w12s2-tma-pp-few"),
        128: (
            "m128n128w8s2-tma-pp",
            "m128n128w8s2-tma-ws-ticket",
            "m128n128w8s2-tma-pp-few",
            "m128n128w8s2-tma-ws-deep-lazy-double-ticket-l16",
        ),
        256: ("m128n64w8s2-tma-ws", "m128n64w8s2-tma-pp-ticket", "m128n64w8s2-tma-pp-few"),
    }
    # Longer than the ring of tiles many times over, and more tiles than a card has SMs.
    values = CASES.get(name, {"batch": 1, "seqlen": 4100, "nheads": 16, "causal": True})
    case = case_of(headdim=dim, dtype="fp16" if dim == 40 else "bf16", **values)
    shape = Shape(dim=dim, dim_v=dim, seqlen_q=case.seqlen, seqlen_k=case.seqlen_k, packed=case.packed)
    for form in forms[next(most for most in forms if dim <= most)]:
        short = nearest(form, shape)  # of few rows with fewer to a tile
        assert parse(short).order in HOPPER
        assert not wrong_with(f"flash-triton[{short}]", case), short


@pytest.mark.hopper
@pytest.mark.parametrize("dim", [72, 80, 96, 160, 192])
@pytest.mark.parametrize("name", [*CASES, "long"])
def test_dims_in_pieces_are_right_for_every_mask(name, dim):
    narrow = ("m128n128w8s2-tma-ws-deep-lazy-pieces-ticket-l16", "m192n128w12s2-tma-ws-pieces-stored-ticket-l16")
    wide = (
        "m128n64w8s2-tma-ws-pieces-ticket-l16",
        "m128n64w8s2-tma-pp-lazy-pieces-stored",
        "m128n128w8s3-tma-ws-joint-lazy-pieces-ticket-l16",
    )
    values = CASES.get(name, {"batch": 1, "seqlen": 4100, "nheads": 16, "causal": True})
    case = case_of(headdim=dim, dtype="fp16" if dim in (72, 160) else "bf16", **values)
    shape = Shape(dim=dim, dim_v=dim, seqlen_q=case.seqlen, seqlen_k=case.seqlen_k, packed=case.packed)
    for form in narrow if dim <= 96 else wide:
        short = nearest(form, shape)  # of few rows with fewer to a tile
        assert parse(short).dims == "pieces"
        assert not wrong_with(f"flash-triton[{short}]", case), short


MASKS = ("window", "odd", "packed")
SHARES = [("plain", 0, 1), *((order, part, 4) for order in HOPPER for part in range(4))]
"An order, and which part of its configurations, of how many: each is compiled."


@pytest.mark.parametrize(
    ("order", "part", "parts"),
    [pytest.param(*share, marks=[pytest.mark.hopper] * (share[0] in HOPPER)) for share in SHARES],
)
@pytest.mark.parametrize("name", MASKS)
def test_every_configuration_is_right_or_does_not_fit_the_card(name, order, part, parts):
    """Those for Hopper by one of the masks, for there are hundreds; the size of a section is no other code."""
    case, wrong, ran = case_of(**CASES[name]), [], 0
    forms = [config for config in all_backends()["flash-triton"].configs(case) if parse(config.short).order == order]
    if parts > 1:
        forms = [one for one in forms if not re.search(r"-l\d", one.short)][MASKS.index(name) + len(MASKS) * part :: 12]
    for config in forms:
        try:
            wrong += wrong_with(f"flash-triton[{config.short}]", case)
        except Unsupported:
            continue
        except Exception as error:
            # Triton's own word for too much shared memory or too many registers.
            if type(error).__name__ != "OutOfResources":
                raise
            continue
        ran += 1
    assert not wrong, "\n".join(wrong)
    # Of few rows there are few forms for Hopper.
    assert ran >= (20 if parts == 1 else 1)


@pytest.mark.hopper
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("dim", "seqlen", "forward"),
    [
        *((dim, seqlen, None) for dim, seqlen in ((64, 512), (128, 512), (256, 512), (256, 1024))),
        *((dim, 4096, None) for dim in (64, 128, 256)),
        *((96, seqlen, "m128n128w8s2-tma-ws-deep-lazy-pieces-ticket-l16") for seqlen in (512, 4096)),
        *((96, seqlen, "m192n128w12s2-tma-ws-pieces-stored-ticket-l16") for seqlen in (512, 4096)),
        (192, 4096, "m128n64w8s2-tma-ws-pieces-ticket-l16"),
        *((dim, 4096, "m128n128w8s3-tma-ws-joint-lazy-pieces-ticket-l16") for dim in (160, 192)),
        *((128, seqlen, "m128n128w8s2-tma-ws-deep-lazy-double-ticket-l16") for seqlen in (512, 4096)),
        (128, 4096, "m128n128w8s2-tma-ws-lazy-double-ticket-l16"),
        (96, 4096, "m128n128w8s2-tma-ws-deep-lazy-pieces-double-ticket-l16"),
    ],
)
def test_a_configuration_has_the_same_bits_in_every_call(dim, seqlen, forward, causal):
    """What one job leaves and the next takes up meets in hundreds of calls: once single rows were wrong in a tenth."""
    q, k, v = (
        torch.randn(16384 // seqlen, seqlen, 2048 // dim, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    first = flash_attention(q, k, v, causal=causal, forward=forward)[0]
    differ = torch.zeros(300, *first.shape[:3], device="cuda", dtype=torch.bool)
    for turn in range(300):
        torch.any(flash_attention(q, k, v, causal=causal, forward=forward)[0] != first, -1, out=differ[turn])
    found = differ.nonzero()
    assert not len(found), (
        f"{len(found)} rows of {len(found[:, 0].unique())} calls; (call, sequence, row, head) from "
        f"{found[0].tolist()} to {found[-1].tolist()}"
    )


@pytest.mark.parametrize(
    "selector",
    [
        "flash-triton",
        *of_hopper("flash-triton[m128n128w8s2-tma-pp-persistent]", "flash-triton[m128n128w8s2-tma-ws-ticket]"),
    ],
)
def test_a_call_is_captured_in_a_graph_and_has_the_same_bits_on_new_values(selector):
    captured(selector, case_of(causal=True))


@pytest.mark.parametrize("name", FEW)
def test_few_queries_are_captured_in_a_graph_whose_second_kernel_waits_for_the_first(name):
    captured("flash-triton", case_of(**FEW[name]))


def captured(selector, case):
    """A call in a graph has the bits of a plain call, on values that came later, each time."""
    first, second = make(case), make(case, seed=2)
    with resolve(selector, case).session(case, first) as launch:
        launch.forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch.forward()
        captured_out = launch.outputs()["out"]
        launch.reload(second)
        launch.forward()
        want = launch.outputs()["out"].clone()
        for _ in range(3):
            captured_out.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(captured_out, want)


@pytest.mark.parametrize("short", ["m128n64w8s2", "m128n64w8s2-mix", *of_hopper("m128n128w8s2-tma-pp-mix")])
def test_nan_reaches_the_output_by_either_exponential(short):
    case = case_of(seqlen=256, headdim=64)
    inputs = make(case)
    inputs.q[0, 3] = torch.nan
    with resolve(f"flash-triton[{short}]", case).session(case, inputs) as launch:
        launch.forward()
        out = launch.outputs()["out"]
    assert not out[0, 3].isfinite().any()
    assert out[0, 4:].isfinite().all()
