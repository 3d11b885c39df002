"""The adapters for HSTU kernels: attnbench's in the interpreter, others by stand-ins that compute the function."""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
import types
from dataclasses import replace

import pytest
import torch

from attnbench.backends.base import Budget, Machine
from attnbench.backends.checkouts import name_checkouts
from attnbench.backends.registry import all_backends, resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.errors import Unavailable, Unsupported, UsageError, WorkerError
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD, oracle
from attnbench.workloads.hstu.inputs import make_inputs
from kernels.interpreter import interpreted

HOPPER = Machine("cuda", (9, 0))


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 2, "seqlen": 20, "nheads": 2, "attn_dim": 32, "dtype": "fp16", "mode": "fwd-bwd", "lengths": "20:9"}
        | values
    )


def make(case, seed=1):
    return make_inputs(case, seed=seed, kind="normal", device="cpu")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr("attnbench.check.examine.SETTLE_S", 0.0)


# ── ours ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("selector", "values"),
    [
        ("hstu-triton", {"mode": "fwd", "num_targets": "3:0", "contextual_len": 4}),
        ("hstu-triton", {"delta_q": 7, "max_attn_len": 5}),
        ("hstu-triton[deterministic]", {"dtype": "fp32", "causal": False}),
    ],
)
def test_ours_is_right_and_survives_the_examination(selector, values):
    pytest.importorskip("triton")
    case = case_of(**values)
    backend, inputs = resolve(selector, case), [make(case, seed) for seed in (1, 2)]
    with interpreted(), backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant="hstu", budget=Budget())
        assert (outcome.ok, outcome.reason, outcome.notes) == (True, None, ())
        assert launch.capturable
        words = " ".join(launch.notes)
        assert ("deterministic" in words) == ("[" in selector)
        assert ("atomics" in words) == (case.mode != "fwd" and "[" not in selector)
        assert (launch.executed_flops is None) == ("[" not in selector)


def test_ours_wants_a_forward_first_and_makes_the_calls_a_user_makes(monkeypatch):
    pytest.importorskip("triton")
    case = case_of()
    with interpreted(), all_backends()["hstu-triton"].session(case, make(case)) as launch:
        for early in (launch.backward, launch.outputs):
            with pytest.raises(WorkerError, match="before forward"):
                early()
        launch.call("fwd-bwd")()
        first = launch.outputs()
        launch.call("fwd-bwd")()
        again = launch.outputs()
        assert set(first) == set(again) == {"out", "dq", "dk", "dv"}
        assert all(again[name].data_ptr() != x.data_ptr() for name, x in first.items()), "results are a call's own"
        torch.testing.assert_close(again["out"], first["out"], rtol=0, atol=0)
        calls = []
        monkeypatch.setattr(
            "attnbench.kernels.hstu.dense.api.hstu_attention", lambda *qkv, **said: calls.append(said) or qkv[0]
        )
        launch.forward()
        assert [said["causal"] for said in calls] == [case.causal]


def test_a_configuration_of_ours_is_of_the_forward_or_the_backward_or_both():
    backend, case = all_backends()["hstu-triton"], case_of(mode="fwd-bwd", attn_dim=128, linear_dim=128)
    forward, backward = (backend.config_of(short, case).values for short in ("f128x128w8s2-ws", "a64x128w8s2-ws"))
    for joined in ("f128x128w8s2-ws+a64x128w8s2-ws", "a64x128w8s2-ws+f128x128w8s2-ws"):
        assert backend.config_of(joined, case).values == {**forward, **backward}
    both = backend.config_of("f128x128w8s2-ws+deterministic-c64x128w8s2", case).values
    assert set(both) == {"forward", "deterministic", "columns"}


@pytest.mark.parametrize(
    ("mode", "short", "said"),
    [
        (
            "fwd",
            "f128x128w8s2-wss",
            "f128x128w8s2-wss has the word wss; one of masked_stagesN, loadstma, registersN, exp, "
            "tf32x3, tf32, section_mibN, ahead, ws, partsN; the nearest valid one is f128x128w8s2-ws",
        ),
        (
            "fwd",
            "f128x65w8s3-plain",
            "f128x65w8s3-plain is not known; one of the 29 listed for this shape; the nearest "
            "valid one is f128x64w8s3-plain",
        ),
        (
            "fwd",
            "f128x64w8s3-section_mib8",
            "f128x64w8s3-section_mib8 is not how it is spelled; "
            "f128x64w8s3-section_mib8.0; the nearest valid one is f128x64w8s3-section_mib8.0",
        ),
        (
            "fwd",
            "x64",
            "x64 is not a name; f…, a…, deterministic, deterministic-c… or deterministic-r…; the nearest valid one "
            "is f128x64w8s4-ws",
        ),
        (
            "bwd",
            "determinstic",
            "determinstic is not a name; f…, a…, deterministic, deterministic-c… or deterministic-r…; the "
            "nearest valid one is deterministic",
        ),
        (
            "fwd",
            "a64x128w8s2-ws",
            "a64x128w8s2-ws is for the backward, which mode=fwd does not have; f… of the forward",
        ),
        (
            "bwd",
            "f128x128w8s2-ws+a64x128w8s2-pp",
            "a64x128w8s2-pp has the word pp; one of masked_stagesN, loadstma, registersN, "
            "exp, tf32x3, tf32, section_mibN, ws, split, lag, carried, serial; the nearest valid one is a64x128w8s2",
        ),
        ("bwd", "a64x128w8s2-ws+a64x128w8s2", "a64x128w8s2-ws+a64x128w8s2 has two parts for one side; f…, a… or f…+a…"),
    ],
)
def test_one_that_is_none_is_answered_with_the_nearest_and_where_all_are(mode, short, said):
    with pytest.raises(UsageError, match=f"^hstu-triton: config={re.escape(said)}$"):
        all_backends()["hstu-triton"].config_of(short, case_of(mode=mode, attn_dim=128, linear_dim=128))


def test_the_order_that_does_not_fit_is_the_one_that_is_named():
    backend, case = all_backends()["hstu-triton"], case_of(mode="fwd-bwd", attn_dim=128, linear_dim=128, dtype="bf16")
    backend = type(backend)(backend.config_of("f128x128w8s2-ahead+a64x128w8s2-ws", case))
    with pytest.raises(
        Unsupported,
        match=(
            r"^hstu-triton: config=a64x128w8s2-ws has the order ws, which is for sm_90 alone, not sm_100; "
            r"another order; the nearest valid one is a64x128w8s2$"
        ),
    ):
        backend.check(case, Machine("cuda", (10, 0)))
    backend.check(case, Machine("cuda", (9, 0)))


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_configuration_for_hopper_that_is_offered_can_be_launched(dim, monkeypatch):
    """Whatever the defaults are that its other fields come from: over 128 dims the portable one makes dV apart."""
    from attnbench.kernels.hstu.dense.api import configs_of
    from attnbench.kernels.hstu.dense.configs import hopper_columns_fault, hopper_fault

    monkeypatch.setattr("attnbench.kernels.hstu.dense.calls._capability", lambda x: (9, 0))
    x = torch.empty(1, 1, dim, dtype=torch.bfloat16, device="meta")
    shape = {"capability": (9, 0), "item_bytes": 2, "attn_dim": dim, "linear_dim": dim}
    for mode in ("fwd", "bwd"):
        for config in all_backends()["hstu-triton"].configs(case_of(mode=mode, attn_dim=dim, linear_dim=dim)):
            forward, backward = configs_of(x, x, x, 1024, config.values)
            wanted = "ws" in config.short.split("-")
            changed, fault = (forward, hopper_fault) if mode == "fwd" else (backward.columns, hopper_columns_fault)
            assert changed.hopper == wanted, config.short
            assert not wanted or fault(changed, **shape) is None, config.short


@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_every_configuration_of_ours_is_another_launch(mode, monkeypatch):
    from attnbench.kernels.hstu.dense.api import configs_of

    monkeypatch.setattr("attnbench.kernels.hstu.dense.calls._capability", lambda x: (9, 0))
    case, x = case_of(mode=mode), torch.empty(1, 1, 128, dtype=torch.bfloat16, device="meta")
    configs = list(all_backends()["hstu-triton"].configs(case))
    cuts = [configs_of(x, x, x, 1024, config.values) for config in configs]
    shorts = [config.short for config in configs]
    assert len(set(shorts)) == len(shorts) > 10
    assert not any(character in short for short in shorts for character in ", []")
    if mode == "fwd":
        assert len({forward for forward, _ in cuts}) == len(cuts)
    else:
        assert sum(backward.deterministic for _, backward in cuts) > 5 < sum(not b.deterministic for _, b in cuts)
        # The default is spelled out too: as deterministic, and by its columns and rows.
        assert len({backward for _, backward in cuts}) >= len(cuts) - 2


@pytest.mark.parametrize("name", ["hstu-triton", "hstu-fbgemm", "hstu-meta-triton"])
def test_on_a_cpu_they_say_what_they_need(name):
    with pytest.raises(Unsupported, match=rf"{name}: device=cpu is not supported; cuda$"):
        all_backends()[name].check(case_of(), Machine("cpu"))


def test_ours_takes_every_case_up_to_its_dims(monkeypatch):
    backend = all_backends()["hstu-triton"]
    backend.check(case_of(causal=False, dtype="fp32", attn_dim=24, linear_dim=256, num_targets=3), HOPPER)
    with pytest.raises(Unsupported, match="linear_dim=257 is not supported; at most 256"):
        backend.check(case_of(linear_dim=257), HOPPER)
    monkeypatch.setattr("attnbench.backends.our_triton.module_exists", lambda name: False)
    with pytest.raises(Unavailable, match="hstu-triton: module=triton is not installed"):
        backend.probe()


# ── others' ────────────────────────────────────────────────────────────────────────────────────────


def attend(q, k, v, case):
    """The dense function by autograd, for stand-ins."""
    out, row, key = [], 0, 0
    for shape in case.sequences:
        see = oracle.visible(case, shape, range(shape.queries), q.device)
        here, there = slice(row, row + shape.queries), slice(key, key + shape.length)
        scores = torch.einsum("ihd,jhd->hij", q[here].float(), k[there].float()) * case.alpha
        weights = torch.nn.functional.silu(scores) * see
        out.append(torch.einsum("hij,jhd->ihd", weights, v[there].float()) / case.scaling_seqlen)
        row, key = row + shape.queries, key + shape.length
    return torch.cat(out).to(q.dtype)


def held(backend, case):
    inputs = [make(case, seed) for seed in (1, 2)]
    with backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant="hstu", budget=backend.budget(case))
        assert (outcome.ok, outcome.reason) == (True, None)
        return launch.notes


def install(monkeypatch, **modules):
    for name, attributes in modules.items():
        whole = name.replace("__", ".")
        module = types.ModuleType(whole)
        module.__spec__ = importlib.machinery.ModuleSpec(whole, None, is_package=True)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, whole, module)


def fbgemm(case, seen, *, scaling=True, renamed=False):
    """The library's function, of a version with or without a divisor of its own, or with offsets by another name."""

    def newer(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        max_seqlen_q,
        max_seqlen_k,
        scaling_seqlen,
        num_contexts=None,
        num_targets=None,
        target_group_size=1,
        window_size=(-1, -1),
        alpha=1.0,
    ):
        seen.append(
            {
                "scaling": scaling_seqlen,
                "contexts": num_contexts,
                "targets": num_targets,
                "window": window_size,
                "dtype": cu_seqlens_k.dtype,
                "lengths": (max_seqlen_q, max_seqlen_k),
            }
        )
        assert alpha == case.alpha
        assert seqused_q is seqused_k is None
        return attend(q, k, v, case)

    def older(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        num_contexts=None,
        num_targets=None,
        target_group_size=1,
        window_size=(-1, -1),
        alpha=1.0,
    ):
        return newer(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            None,
            None,
            max_seqlen_q,
            max_seqlen_k,
            None,
            num_contexts,
            num_targets,
            target_group_size,
            window_size,
            alpha,
        )

    def other(
        q,
        k,
        v,
        seq_offsets_q,
        seq_offsets_k,
        max_seqlen_q,
        max_seqlen_k,
        scaling_seqlen,
        num_contexts,
        num_targets,
        target_group_size=1,
        window_size=(-1, -1),
        alpha=1.0,
    ):
        return newer(
            q,
            k,
            v,
            seq_offsets_q,
            seq_offsets_k,
            None,
            None,
            max_seqlen_q,
            max_seqlen_k,
            scaling_seqlen,
            num_contexts,
            num_targets,
            target_group_size,
            window_size,
            alpha,
        )

    return other if renamed else newer if scaling else older


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize(
    ("values", "window", "contexts", "targets"),
    [
        ({}, (-1, 0), None, None),
        ({"causal": False}, (-1, -1), None, None),
        ({"max_attn_len": 6}, (6, 0), None, None),
        ({"max_attn_len": 6, "causal": False}, (6, 6), None, None),
        ({"contextual_len": 10, "num_targets": "4:2"}, (-1, 0), [10, 7], [4, 2]),
        ({"delta_q": 5, "scaling_seqlen": 100, "alpha": 0.3}, (-1, 0), None, None),
    ],
)
def test_fbgemm_is_asked_for_the_case(monkeypatch, values, window, contexts, targets, renamed):
    case, seen = case_of(**values), []
    backend = all_backends()["hstu-fbgemm"]
    install(
        monkeypatch,
        fbgemm_gpu={},
        fbgemm_gpu__experimental={},
        fbgemm_gpu__experimental__hstu={"hstu_attn_varlen_func": fbgemm(case, seen, renamed=renamed)},
    )
    backend.probe()
    backend.check(case, HOPPER)
    held(backend, case)
    one = seen[0]
    assert (one["window"], one["scaling"], one["dtype"]) == (window, case.scaling_seqlen, torch.int32)
    assert one["lengths"] == (5 if case.delta_q else 20, 20)
    for name, want in (("contexts", contexts), ("targets", targets)):
        assert want is None if one[name] is None else one[name].tolist() == want
        assert one[name] is None or one[name].dtype == torch.int32


def test_fbgemm_of_an_older_version_divides_by_the_bound_of_the_lengths(monkeypatch):
    case, seen = case_of(), []

    def with_divisor(other):
        install(
            monkeypatch,
            fbgemm_gpu={},
            fbgemm_gpu__experimental={},
            fbgemm_gpu__experimental__hstu={"hstu_attn_varlen_func": fbgemm(other, seen, scaling=False)},
        )
        return all_backends()["hstu-fbgemm"]

    held(with_divisor(case), case)
    for other, lengths in ((case, (20, 20)), (replace(case, scaling_seqlen=30), (30, 30))):
        with with_divisor(other).session(other, make(other)) as launch:
            launch.forward()
        assert seen[-1]["lengths"] == lengths
    for changed in ({"scaling_seqlen": 10}, {"scaling_seqlen": 30, "delta_q": 5}):
        with (
            pytest.raises(
                Unsupported, match=f"scaling_seqlen={changed['scaling_seqlen']} is not taken by this version"
            ),
            with_divisor(case).session(other := replace(case, **changed), make(other)),
        ):
            pass


def test_fbgemm_says_when_its_kernels_will_end_the_process(monkeypatch):
    case = case_of()
    install(
        monkeypatch,
        fbgemm_gpu={},
        fbgemm_gpu__experimental={},
        fbgemm_gpu__experimental__hstu={"hstu_attn_varlen_func": fbgemm(case, [])},
    )
    backend = all_backends()["hstu-fbgemm"]
    for built, warned in (("13.0", True), ("12.8", False), (None, False)):
        monkeypatch.setattr(torch.version, "cuda", built)
        assert any("ends the process" in note for note in held(backend, case)) == warned


def test_fbgemm_says_why_it_does_not_import(monkeypatch):
    install(monkeypatch, fbgemm_gpu={}, fbgemm_gpu__experimental={}, fbgemm_gpu__experimental__hstu={})
    with (
        pytest.raises(Unavailable, match=r"fbgemm: fbgemm_gpu.experimental.hstu does not import: .*; a wheel for"),
        all_backends()["hstu-fbgemm"].session(case_of(), make(case_of())),
    ):
        pass


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dtype": "fp32"}, "dtype=fp32 is not supported; bf16, fp16"),
        ({"attn_dim": 48}, "attn_dim=48 is not supported; one of 32, 64, 128, 256"),
        ({"linear_dim": 64}, "linear_dim=64 is not supported; attn_dim=32"),
        ({"max_attn_len": 4, "num_targets": 2}, "num_targets=2 is not supported; 0 with a window or without causal"),
        (
            {"causal": False, "contextual_len": 2},
            "contextual_len=2 is not supported; 0 with a window or without causal",
        ),
    ],
)
def test_fbgemm_refuses_what_it_does_not_compute(values, words):
    with pytest.raises(Unsupported, match=f"hstu-fbgemm: {words}"):
        all_backends()["hstu-fbgemm"].check(case_of(**values), HOPPER)
    with pytest.raises(Unsupported, match=r"compute capability=10.0 is not supported; below 10.0"):
        all_backends()["hstu-fbgemm"].check(case_of(), Machine("cuda", (10, 0)))


META = """
from typing import Optional

import torch
{more}
from generative_recommenders.common import CALLS

try:
    import not_there_at_all
except ImportError:
    pass

def triton_hstu_mha(N, alpha, q, k, v, seq_offsets, num_targets, max_attn_len, contextual_seq_len, sort_by_length,
                    enable_tma):
    CALLS.append((N, num_targets is not None, max_attn_len, contextual_seq_len, sort_by_length, enable_tma))
    return CALLS[0](q, k, v)
"""
COMMON = "CALLS = []\nBY_LENGTH = []\n\n\ndef set_use_runtime_max_seq_len(on):\n    BY_LENGTH.append(on)\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    folder = tmp_path / "generative-recommenders"
    ops = folder / "generative_recommenders" / "ops" / "triton"
    ops.mkdir(parents=True)
    (ops / "triton_hstu_attention.py").write_text(META.format(more=""), encoding="utf-8")
    (folder / "generative_recommenders" / "common.py").write_text(COMMON, encoding="utf-8")
    monkeypatch.setenv("ATTNBENCH_GENERATIVE_RECOMMENDERS", str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "generative_recommenders"]:
        del sys.modules[name]


def test_meta_is_found_in_the_folder_that_is_named_and_called_fairly(checkout):
    import importlib

    backend = all_backends()["hstu-meta-triton"]
    backend.probe()
    assert "generative_recommenders" not in sys.modules
    case, path = case_of(num_targets="3:0", contextual_len=4, max_attn_len=6), list(sys.path)
    backend.check(case, HOPPER)
    inputs = make(case)
    with backend.session(case, inputs) as launch:
        assert sys.path == path
        common = importlib.import_module("generative_recommenders.common")
        common.CALLS.append(lambda q, k, v: attend(q, k, v, case))
        launch.call("fwd-bwd")()
        found = launch.outputs()
    assert common.CALLS[1:] == [(20, True, 6, 4, False, False)]
    assert common.BY_LENGTH == [True]
    for name, right in WORKLOAD.oracle("hstu", case, inputs, dtype=torch.float64, draw=Draw()).items():
        torch.testing.assert_close(found[name].double(), right, rtol=1e-2, atol=1e-3)


def test_meta_names_what_the_folder_or_this_python_lacks(checkout, monkeypatch):
    backend, variable = all_backends()["hstu-meta-triton"], "ATTNBENCH_GENERATIVE_RECOMMENDERS"
    file = checkout / "generative_recommenders" / "ops" / "triton" / "triton_hstu_attention.py"
    file.write_text(
        META.format(more="import made_up_fbgemm\nfrom generative_recommenders.deep import x"), encoding="utf-8"
    )
    (checkout / "generative_recommenders" / "deep.py").write_text("import made_up_rec\nx = 1\n", encoding="utf-8")
    with pytest.raises(Unavailable, match=rf"{variable}=.* needs made_up_fbgemm, made_up_rec, which this Python does"):
        backend.probe()
    with (
        pytest.raises(Unavailable, match=r"does not import from .*: ModuleNotFoundError: No module named 'made_up"),
        backend.session(case_of(), make(case_of())),
    ):
        pass
    file.unlink()
    with pytest.raises(Unavailable, match=rf"{variable}=.* holds no generative_recommenders/ops/triton/triton_hstu"):
        backend.probe()
    for place in (str(checkout / "nowhere"), "9" * 400, "~nobody-of-that-name/nowhere"):
        monkeypatch.setenv(variable, place)
        with pytest.raises(Unavailable, match=rf"{variable}=\S+ is no folder; a checkout of generative-recommenders"):
            backend.probe()
    monkeypatch.delenv(variable)
    with pytest.raises(Unavailable, match=rf"module=generative_recommenders is not on the Python path and {variable}"):
        backend.probe()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"causal": False}, "causal=false is not supported; true"),
        ({"delta_q": 3}, "delta_q=3 is not supported; none"),
        ({"scaling_seqlen": 7}, "scaling_seqlen=7 is not supported; seqlen=20"),
        ({"contextual_len": 10}, "lengths=20:9 is not supported; sequences that hold contextual_len and their targets"),
    ],
)
def test_meta_refuses_what_it_does_not_compute(values, words):
    with pytest.raises(Unsupported, match=f"hstu-meta-triton: {words}"):
        all_backends()["hstu-meta-triton"].check(case_of(**values), HOPPER)


def test_path_names_a_checkout_to_whoever_looks_for_it(checkout, monkeypatch):
    monkeypatch.delenv("ATTNBENCH_GENERATIVE_RECOMMENDERS")
    monkeypatch.chdir(checkout.parent)
    name_checkouts([checkout.name], "attnbench run")
    assert os.environ["ATTNBENCH_GENERATIVE_RECOMMENDERS"] == str(checkout)
    all_backends()["hstu-meta-triton"].probe()
    with pytest.raises(
        UsageError,
        match=r"^attnbench run: --path=\S+ is no checkout that a backend looks for; a "
        r"folder that holds generative_recommenders/ops/\S+ \(hstu-meta-triton\)$",
    ):
        name_checkouts([str(checkout / "generative_recommenders")], "attnbench run")


def test_a_note_names_a_launch_by_its_short_form():
    from attnbench.kernels.hstu.dense.configs import ColumnConfig, ForwardConfig

    tiles = {"block_m": 192, "block_n": 64, "warps": 12, "stages": 3}
    assert ForwardConfig(**tiles, order="ws", section_mib=16.0).short == "192x64w12s3-section_mib16.0-ws"
    assert ColumnConfig(block_m=64, block_n=32, warps=4, stages=2, atomic=True).short == "64x32w4s2"
