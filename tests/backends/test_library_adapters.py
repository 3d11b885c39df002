"""Adapters of libraries that are not installed: fake modules record the calls and compute with the reference."""

import importlib.machinery
import sys
import types

import pytest
import torch

from attnbench.backends.base import Config, Machine
from attnbench.backends.registry import all_backends, resolve
from attnbench.errors import Unavailable, Unsupported
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import make_inputs

from .reference import dense, expected, packed

HOPPER = Machine("cuda", (9, 0))
CALLS = []


def case_of(batch=2, seqlen=17, nheads=4, headdim=64, dtype="bf16", mode="fwd-bwd", **more):
    return AttentionCase(batch=batch, seqlen=seqlen, nheads=nheads, headdim=headdim, dtype=dtype, mode=mode, **more)


RAGGED = {"batch": 3, "seqlen": 20, "seqlen_k": 30, "lengths": "20/9:1/30:13/13"}
SQUARE = {"batch": 3, "seqlen": 20, "lengths": "20:1:13"}
CASES = {
    "odd": case_of(),
    "causal": case_of(causal=True),
    "more keys": case_of(causal=True, seqlen_k=40),
    "fewer keys": case_of(causal=True, seqlen_k=9),
    "decode": case_of(seqlen=1, seqlen_k=33, causal=True),
    "grouped": case_of(nheads_kv=2, causal=True),
    "window": case_of(window=(3, 2)),
    "causal window": case_of(window=(3, 0), causal=True, seqlen_k=25),
    "left bound": case_of(window=(4, -1)),
    "ragged": case_of(**RAGGED, nheads_kv=2),
    "ragged causal": case_of(**RAGGED, causal=True),
    "square ragged causal": case_of(**SQUARE, causal=True),
    "ragged window": case_of(**RAGGED, window=(4, 4)),
    "square ragged": case_of(**SQUARE),
}


def install(monkeypatch, name, **attributes):
    """Put a module and its parents where import and find_spec find them."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        if whole not in sys.modules or depth == len(parts):
            module = types.ModuleType(whole)
            module.__spec__ = importlib.machinery.ModuleSpec(whole, None)
            monkeypatch.setitem(sys.modules, whole, module)
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], sys.modules[whole])
    vars(sys.modules[name]).update(attributes)


@pytest.fixture(autouse=True)
def _fresh_calls():
    CALLS.clear()


def flash(*, tupled, unbounded=-1, windows=True):
    """The two functions of a FlashAttention package of some version."""

    def finish(out):
        return (out, torch.zeros(1)) if tupled else out

    def seen(name, q, k, v, softmax_scale, causal, window):
        assert q.is_contiguous()
        assert k.is_contiguous()
        assert v.is_contiguous()
        CALLS.append({"name": name, "scale": softmax_scale, "causal": causal, "window": window})
        plain = tuple(-1 if bound == unbounded else bound for bound in window)
        return {"scale": softmax_scale, "causal": causal, "window": None if plain == (-1, -1) else plain}

    none = (unbounded, unbounded)

    def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=none):
        return finish(dense(q, k, v, **seen("dense", q, k, v, softmax_scale, causal, window_size)))

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale=None,
        causal=False,
        window_size=none,
    ):
        assert (max_seqlen_q, max_seqlen_k) == (int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()))
        how = seen("varlen", q, k, v, softmax_scale, causal, window_size)
        return finish(packed(q, k, v, cu_seqlens_q, cu_seqlens_k, **how))

    def without_windows(q, k, v, softmax_scale=None, causal=False):
        return flash_attn_func(q, k, v, softmax_scale, causal)

    return {
        "flash_attn_func": flash_attn_func if windows else without_windows,
        "flash_attn_varlen_func": flash_attn_varlen_func,
    }


def sage():
    def smooth(q, k, v, is_causal, sm_scale):
        CALLS.append({"name": "sage", "scale": sm_scale, "causal": is_causal})
        k -= k.mean(dim=-3, keepdim=True)  # as 1.0.6 does: in place
        return {"scale": sm_scale, "causal": is_causal}

    def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, smooth_k=True, **ignored):
        assert (tensor_layout, ignored) == ("NHD", {})
        return dense(q, k, v, **smooth(q, k, v, is_causal, sm_scale))

    def sageattn_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        is_causal=False,
        sm_scale=None,
        smooth_k=True,
        **ignored,
    ):
        assert ignored == {}
        return packed(q, k, v, cu_seqlens_q, cu_seqlens_k, **smooth(q, k, v, is_causal, sm_scale))

    return {"sageattn": sageattn, "sageattn_varlen": sageattn_varlen}


def eight_bits():
    """The wheel's function as it takes tensors of 8 bits."""

    def flash_attn_func(q, k, v, softmax_scale, causal, q_descale, k_descale, v_descale):
        CALLS.append({"name": "eight bits", "scale": softmax_scale, "causal": causal})
        undone = []
        for x, scale in zip((q, k, v), (q_descale, k_descale, v_descale), strict=True):
            assert (x.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
            assert scale.shape == (len(x), k.shape[2])
            undone.append(x.float() * scale.repeat_interleave(x.shape[2] // k.shape[2], 1)[:, None, :, None])
        return dense(*undone, scale=softmax_scale, causal=causal).bfloat16()

    return {"flash_attn_func": flash_attn_func}


def sage_2():
    """Its function for sm_90, with one scale a head in place of its finer ones; the kernel writes into its argument."""

    def kernel(q, k, v, out, q_scale, k_scale, causal, sm_scale):
        CALLS.append({"name": "kernel", "scale": sm_scale, "causal": causal})
        assert q.dtype == k.dtype == torch.int8
        out.copy_(dense(q.float() * q_scale, k.float() * k_scale, v.float(), scale=sm_scale, causal=causal))

    kernels = types.SimpleNamespace(qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf=kernel)

    def function(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, **ignored):
        assert (tensor_layout, ignored) == ("NHD", {})
        CALLS.append({"name": "function", "scale": sm_scale})
        smooth = k.float() - k.float().mean(1, keepdim=True)
        scales = [x.abs().amax((1, 3), keepdim=True).float() / 127 + 1e-7 for x in (q, smooth)]
        eight = [(x / scale).round().to(torch.int8) for x, scale in zip((q, smooth), scales, strict=True)]
        out = torch.empty_like(q)
        kernels.qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf(*eight, v, out, *scales, is_causal, sm_scale)
        return out

    return {"sageattn_qk_int8_pv_fp8_cuda_sm90": function, "sm90_compile": kernels}


class Wrapper:
    """FlashInfer's ragged prefill wrapper."""

    def __init__(self, workspace, kv_layout="NHD", backend="auto"):
        assert (workspace.dtype, workspace.numel(), kv_layout) == (torch.uint8, 128 << 20, "NHD")
        CALLS.append({"name": "wrapper", "backend": backend})

    def plan(
        self,
        qo_indptr,
        kv_indptr,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        head_dim_vo=None,
        *,
        causal=False,
        window_left=-1,
        sm_scale=None,
        q_data_type="float16",
    ):
        assert {qo_indptr.dtype, kv_indptr.dtype} == {torch.int32}
        CALLS.append(
            {
                "name": "plan",
                "causal": causal,
                "window": window_left,
                "dtype": q_data_type,
                "heads": (num_qo_heads, num_kv_heads, head_dim_qk),
            }
        )
        self.offsets = qo_indptr, kv_indptr
        self.how = {"causal": causal, "window": (window_left, -1), "scale": sm_scale}

    def run(self, q, k, v):
        assert q.dim() == k.dim() == v.dim() == 3
        return packed(q, k, v, *self.offsets, **self.how)


class Bias:
    """xFormers' masks: what they were made with."""

    def __init__(self, **how):
        self.how = how


class Blocks(Bias):
    @classmethod
    def from_seqlens(cls, queries, keys, device):
        offsets = [torch.tensor([0, *lengths]).cumsum(0) for lengths in (queries, keys)]
        return cls(offsets=offsets, causal=False)

    def make_causal_from_bottomright(self):
        return Blocks(offsets=self.how["offsets"], causal=True)


def xformers(reasons=()):
    def operator(name):
        return type(name, (), {"not_supported_reasons": staticmethod(lambda asked: list(reasons))})

    ops = {
        kind: types.SimpleNamespace(FwOp=operator(f"{kind}F"), BwOp=operator(f"{kind}B"))
        for kind in ("flash", "cutlass")
    }

    def memory_efficient_attention(q, k, v, attn_bias=None, p=0.0, scale=None, *, op=None):
        CALLS.append({"name": "xformers", "op": op, "bias": attn_bias, "dims": q.dim(), "scale": scale})
        how = dict(attn_bias.how) if attn_bias else {}
        if q.dim() == 5:
            assert k.stride(3) == v.stride(3) == 0 or k.shape[3] == 1
            q, k, v = q.flatten(2, 3), k[:, :, :, 0], v[:, :, :, 0]
        offsets = how.pop("offsets", None)
        out = (
            packed(q[0], k[0], v[0], *offsets, scale=scale, **how)[None]
            if offsets
            else dense(q, k, v, scale=scale, **how)
        )
        return out.reshape(*q.shape[:-1], v.shape[-1])

    masks = types.SimpleNamespace(
        BlockDiagonalMask=Blocks,
        LowerTriangularFromBottomRightMask=lambda: Bias(causal=True),
        LocalAttentionFromBottomRightMask=lambda window_left, window_right: Bias(window=(window_left, window_right)),
    )
    return {
        **ops,
        "attn_bias": masks,
        "memory_efficient_attention": memory_efficient_attention,
        "Inputs": lambda *tensors, scale: types.SimpleNamespace(tensors=tensors),
    }


LIBRARIES = {
    "flash-attn-2": ("flash_attn.flash_attn_interface", lambda: flash(tupled=False)),
    "flash-attn-3": ("flash_attn_interface", lambda: flash(tupled=True)),
    "fa3-fwd": ("fa3_fwd_interface", lambda: flash(tupled=False)),
    "flash-attn-4": ("flash_attn.cute.interface", lambda: flash(tupled=True, unbounded=None)),
    "sage1": ("sageattention.attn_qk_int8_per_block_h96", dict),
    "sage2": ("sageattention._qattn_sm90", dict),
    "flashinfer": ("flashinfer.prefill", lambda: {"BatchPrefillWithRaggedKVCacheWrapper": Wrapper}),
    "xformers-flash": ("xformers.ops.fmha", xformers),
    "xformers-cutlass": ("xformers.ops.fmha", xformers),
}


@pytest.fixture
def library(monkeypatch, request):
    name = request.param
    module, make = LIBRARIES[name]
    install(monkeypatch, module, **make())
    if name == "sage1":
        vars(sys.modules["sageattention"]).update(sage())
    if name == "sage2":
        install(monkeypatch, "sageattention.core", **sage_2())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    return all_backends()[name]


def takes(backend, case):
    """The case, in the mode the backend has, or None where it is refused."""
    for mode in (case.mode, "fwd"):
        one = AttentionCase(**{**case.to_dict(), "window": case.window, "mode": mode})
        try:
            backend.check(one, HOPPER)
        except Unsupported:
            continue
        return one
    return None


REFUSED = {
    "flash-attn-2": set(),
    "flash-attn-3": set(),
    "flash-attn-4": set(),
    "fa3-fwd": {"window", "causal window", "left bound", "ragged window"},
    "sage1": {"window", "causal window", "left bound", "ragged window", "more keys", "fewer keys", "ragged causal"},
    "sage2": {label for label in CASES if "window" in label or "ragged" in label or label == "left bound"}
    | {"more keys", "fewer keys"},
    "flashinfer": {"window", "ragged window", "fewer keys", "ragged causal"},
    "xformers-flash": {"ragged window"},
    "xformers-cutlass": {
        "window",
        "causal window",
        "left bound",
        "ragged window",
        "fewer keys",
        "ragged causal",
        "grouped",
        "ragged",
    },
}
INFERENCE = {"fa3-fwd", "sage1", "sage2", "flashinfer"}


@pytest.mark.parametrize("label", CASES)
@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_every_case_is_right_or_refused(library, label):
    library.probe()
    case = takes(library, CASES[label])
    assert (case is None) == (label in REFUSED[library.name])
    if case is None:
        return
    assert (case.mode == "fwd") == (
        library.name in INFERENCE
        or (library.name, label) in (("xformers-flash", "grouped"), ("xformers-flash", "ragged"))
    )
    first, second = (make_inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2))
    with library.session(case, first) as launch:
        for inputs in (first, second):
            if inputs is second:
                launch.reload(second)
            for _ in range(2):
                launch.forward()
                if launch.backward:
                    launch.backward()
            got, want = launch.outputs(), expected(case, inputs)
            assert set(got) == set(want)
            for key, tensor in want.items():
                assert got[key].shape == tensor.shape
                torch.testing.assert_close(got[key].double(), tensor, rtol=5e-2, atol=8e-2)
    assert all(call.get("scale", case.scale) == case.scale for call in CALLS)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_said_with_its_install_line(name):
    with pytest.raises(Unavailable) as missing:
        all_backends()[name].probe()
    assert f"{name}: module={LIBRARIES[name][0]} is not installed; " in str(missing.value)
    assert all_backends()[name].install in str(missing.value)
    assert all_backends()[name].version() is None


@pytest.mark.parametrize("name", ["flash-attn-2", "flash-attn-3"])
def test_what_must_be_built_leaves_the_jobs_open(name):
    line = all_backends()[name].install.format(max_jobs=7)
    assert line.startswith("MAX_JOBS=7 pip install --no-build-isolation ")


def test_sage_2_is_not_taken_for_sage_1(monkeypatch):
    install(monkeypatch, "sageattention.triton.attn_qk_int8_per_block")
    with pytest.raises(Unavailable, match="attn_qk_int8_per_block_h96 is not installed"):
        all_backends()["sage1"].probe()


def test_sage_1_is_not_taken_for_sage_2(monkeypatch):
    install(monkeypatch, "sageattention.attn_qk_int8_per_block_h96")
    install(monkeypatch, "sageattention.core")
    with pytest.raises(Unavailable, match="_qattn_sm90 is not installed; git clone"):
        all_backends()["sage2"].probe()


def test_flash_attention_4_alone_is_not_flash_attention_2(monkeypatch, tmp_path):
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "interface.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    all_backends()["flash-attn-4"].probe()
    with pytest.raises(Unavailable):
        all_backends()["flash-attn-2"].probe()
    assert "flash_attn" not in sys.modules


@pytest.mark.parametrize("module", ["flash_attn_interface", "flash_attn_3.flash_attn_interface"])
@pytest.mark.parametrize("tupled", [True, False])
def test_both_places_and_return_shapes_of_flash_attention_3(monkeypatch, module, tupled):
    install(monkeypatch, module, **flash(tupled=tupled))
    backend, case = all_backends()["flash-attn-3"], CASES["causal"]
    backend.probe()
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    with backend.session(case, inputs) as launch:
        launch.forward()
        torch.testing.assert_close(
            launch.outputs()["out"].double(), expected(case, inputs)["out"], rtol=5e-2, atol=5e-2
        )
    assert CALLS == [{"name": "dense", "scale": 0.125, "causal": True, "window": (-1, -1)}]


def test_an_old_flash_attention_without_windows_is_refused_by_name(monkeypatch):
    install(monkeypatch, "flash_attn_interface", **flash(tupled=True, windows=False))
    backend = all_backends()["flash-attn-3"]
    inputs = make_inputs(CASES["window"], seed=3, kind="normal", device="cpu")
    words = r"flash-attn-3: window=\(3, 2\) is not an argument of this version; none"
    with pytest.raises(Unsupported, match=words), backend.session(CASES["window"], inputs):
        pass
    with backend.session(CASES["causal"], make_inputs(CASES["causal"], seed=3, kind="normal", device="cpu")) as launch:
        launch.forward()


@pytest.mark.parametrize("library", ["flash-attn-4"], indirect=True)
def test_flash_attention_4_spells_no_bound_none(library):
    case = CASES["left bound"]
    with library.session(case, make_inputs(case, seed=3, kind="normal", device="cpu")) as launch:
        launch.forward()
    assert CALLS == [{"name": "dense", "scale": 0.125, "causal": False, "window": (4, None)}]


@pytest.mark.parametrize("library", ["flashinfer"], indirect=True)
def test_flashinfer_plans_once_and_says_its_kernel(library):
    case = case_of(mode="fwd", nheads_kv=2, causal=True, window=(5, 0))
    inputs = make_inputs(case, seed=4, kind="normal", device="cpu")
    plan = {"name": "plan", "causal": True, "window": 5, "dtype": torch.bfloat16, "heads": (4, 2, 64)}
    with library.session(case, inputs) as launch:
        assert launch.notes == ("kernel pinned: fa3",)
        launch.forward()
        launch.forward()
        launch.phases["plan"]()
    assert [call["name"] for call in CALLS] == ["wrapper", "plan", "plan"]
    assert (CALLS[0]["backend"], CALLS[1], CALLS[2]) == ("fa3", plan, plan)
    CALLS.clear()
    with resolve("flashinfer[fa2]", case).session(case, inputs) as launch:
        assert launch.notes == ("kernel pinned: fa2",)
    assert CALLS[0]["backend"] == "fa2"
    assert [config.short for config in library.configs(case)] == ["fa2", "fa3"]


@pytest.mark.parametrize("library", ["xformers-flash", "xformers-cutlass"], indirect=True)
def test_xformers_runs_the_pinned_pair(library):
    from xformers.ops import fmha

    case = CASES["more keys"]
    with library.session(case, make_inputs(case, seed=5, kind="normal", device="cpu")) as launch:
        launch.forward()
    kind = getattr(fmha, library.name.split("-")[1])
    assert [call["op"] for call in CALLS] == [(kind.FwOp, kind.BwOp)]


def test_xformers_own_reasons_are_passed_on(monkeypatch):
    install(monkeypatch, "xformers.ops.fmha", **xformers(["requires device with capability > (8, 0)"]))
    case = CASES["odd"]
    inputs = make_inputs(case, seed=5, kind="normal", device="cpu")
    with (
        pytest.raises(Unsupported, match=r"is refused by xFormers: requires device with capability > \(8, 0\);"),
        all_backends()["xformers-flash"].session(case, inputs),
    ):
        pass
    assert CALLS == []


@pytest.mark.parametrize("library", ["sage1"], indirect=True)
def test_sage_changes_its_own_keys_only(library):
    case = case_of(mode="fwd")
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    kept = inputs.k.clone()
    with library.session(case, inputs) as launch:
        launch.forward()
        assert launch.notes == ("subtracts the mean of K in place",)
    assert torch.equal(inputs.k, kept)


@pytest.mark.parametrize("library", ["sage2"], indirect=True)
def test_sage_2_is_timed_up_to_its_kernel_and_in_it(library):
    case = case_of(mode="fwd", causal=True)
    inputs = make_inputs(case, seed=6, kind="normal", device="cpu")
    own = sys.modules["sageattention.core"].sm90_compile.qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf
    with library.session(case, inputs) as launch:
        assert list(launch.phases) == ["quantise", "kernel"]
        assert not launch.capturable
        launch.phases["quantise"]()
        assert [call["name"] for call in CALLS] == ["function"]
        launch.phases["kernel"]()
        assert [call["name"] for call in CALLS] == ["function", "kernel"]
        launch.forward()
        assert [call["name"] for call in CALLS[2:]] == ["function", "kernel"]
    assert sys.modules["sageattention.core"].sm90_compile.qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf is own


@pytest.mark.parametrize("label", ["odd", "causal", "more keys", "grouped", "decode"])
def test_flash_attention_3_in_8_bits_takes_what_the_call_quantises(monkeypatch, label):
    install(monkeypatch, "fa3_fwd_interface", **eight_bits())
    backend = all_backends()["fa3-fwd-fp8"]
    backend.probe()
    case = takes(backend, CASES[label])
    budget = backend.budget(case)
    for kind in ("normal", "channel-bias"):
        inputs = make_inputs(case, seed=6, kind=kind, device="cpu")
        with backend.session(case, inputs) as launch:
            for phase in launch.phases.values():
                phase()
            launch.forward()
            out, truth = launch.outputs()["out"].double(), expected(case, inputs)["out"]
        assert list(launch.phases) == ["quantise", "kernel"]
        off = (out - truth).abs()
        assert off.sum() / truth.abs().sum() < budget.rel_l1
        assert off.max() < budget.relative * truth.square().mean().sqrt()
    assert {call["name"] for call in CALLS} == {"eight bits"}


def test_flash_attention_3_in_8_bits_of_zeros_is_zero(monkeypatch):
    install(monkeypatch, "fa3_fwd_interface", **eight_bits())
    case = case_of(mode="fwd")
    inputs = make_inputs(case, seed=6, kind="zeros", device="cpu")
    with all_backends()["fa3-fwd-fp8"].session(case, inputs) as launch:
        launch.forward()
        assert not launch.outputs()["out"].any()


@pytest.mark.parametrize(("selector", "said"), [("fa3-fwd", {}), ("fa3-fwd[split]", {"num_splits": 0})])
def test_flash_attention_3_splits_keys_where_it_is_asked_to(monkeypatch, selector, said):
    given = []

    def flash_attn_func(q, k, v, softmax_scale, causal, **further):
        given.append(further)
        return dense(q, k, v, scale=softmax_scale, causal=causal, window=None)

    install(monkeypatch, "fa3_fwd_interface", flash_attn_func=flash_attn_func)
    case = case_of(mode="fwd", seqlen=1, seqlen_k=33, causal=True)
    with resolve(selector, case).session(case, make_inputs(case, seed=6, kind="normal", device="cpu")) as launch:
        launch.forward()
    assert given == [said]


def test_sage_has_a_budget_of_its_own():
    backend = all_backends()["sage1"]
    assert backend.budget(case_of(mode="fwd")).relative == 0.5
    assert backend.budget(case_of(mode="fwd", seqlen=4096, causal=True)).relative == pytest.approx(2.146, rel=1e-3)
    assert backend.budget(case_of(mode="fwd", seqlen=1, seqlen_k=4096, causal=True)).relative == 0.5
    assert all_backends()["flash-attn-3"].budget(case_of()).relative == 0.0


@pytest.mark.parametrize(
    ("name", "case", "machine", "words"),
    [
        ("flash-attn-2", case_of(), Machine("cpu"), "flash-attn-2: device=cpu is not supported; cuda"),
        ("flash-attn-2", case_of(dtype="fp32"), HOPPER, "flash-attn-2: dtype=fp32 is not supported; one of fp16, bf16"),
        ("flash-attn-2", case_of(headdim=264), HOPPER, "flash-attn-2: headdim=264 is too large; at most 256"),
        (
            "flash-attn-2",
            case_of(headdim_v=32),
            HOPPER,
            "flash-attn-2: headdim_v=32 differs from headdim; the headdim, 64",
        ),
        (
            "flash-attn-2",
            case_of(),
            Machine("cuda", (7, 5)),
            "flash-attn-2: compute capability=7.5 is too old; at least 8.0",
        ),
        (
            "flash-attn-3",
            case_of(),
            Machine("cuda", (10, 0)),
            "flash-attn-3: compute capability=10.0 is not supported; below 10.0",
        ),
        (
            "flash-attn-3",
            case_of(headdim=60, headdim_v=64),
            HOPPER,
            "flash-attn-3: headdim=60 does not fit; a multiple of 8",
        ),
        ("flash-attn-3", case_of(headdim=264), HOPPER, "flash-attn-3: headdim=264 is too large; at most 256"),
        (
            "flash-attn-3",
            case_of(headdim=128, headdim_v=64, mode="fwd"),
            HOPPER,
            "flash-attn-3: headdim_v=64 does not go with headdim=128, mode=fwd; the headdim; in mode fwd also 97 to 128 with "
            "headdim 129 to 192, or up to 512 with headdim up to 64",
        ),
        (
            "flash-attn-3",
            case_of(headdim=192, headdim_v=128),
            HOPPER,
            "flash-attn-3: headdim_v=128 does not go with headdim=192, mode=fwd-bwd; the headdim; in mode fwd also 97 to 128 "
            "with headdim 129 to 192, or up to 512 with headdim up to 64",
        ),
        ("fa3-fwd", case_of(dtype="fp16", mode="fwd"), HOPPER, "fa3-fwd: dtype=fp16 is not supported; one of bf16"),
        ("fa3-fwd", case_of(), HOPPER, "fa3-fwd: mode=fwd-bwd has no backward; fwd"),
        (
            "fa3-fwd-fp8",
            case_of(**RAGGED, mode="fwd"),
            HOPPER,
            f"fa3-fwd-fp8: lengths={RAGGED['lengths']} is not supported; full",
        ),
        (
            "fa3-fwd-fp8",
            case_of(headdim=72, mode="fwd"),
            HOPPER,
            "fa3-fwd-fp8: headdim=72 does not fit; a multiple of 16",
        ),
        (
            "fa3-fwd-fp8",
            case_of(mode="fwd"),
            Machine("cuda", (8, 0)),
            "fa3-fwd-fp8: compute capability=8.0 is too old; at least 9.0",
        ),
        ("sage2", case_of(dtype="fp32", mode="fwd"), HOPPER, "sage2: dtype=fp32 is not supported; one of fp16, bf16"),
        ("sage2", case_of(headdim=136, mode="fwd"), HOPPER, "sage2: headdim=136 is too large; at most 128"),
        (
            "sage2",
            case_of(mode="fwd"),
            Machine("cuda", (8, 9)),
            "sage2: compute capability=8.9 is too old; at least 9.0",
        ),
        ("fa3-fwd", case_of(mode="fwd", window=(3, 3)), HOPPER, "fa3-fwd: window=(3, 3) is not supported; none"),
        (
            "flash-attn-4",
            case_of(headdim=192, headdim_v=192),
            Machine("cuda", (10, 0)),
            "flash-attn-4: headdim, headdim_v=192, 192 are too large on compute capability 10; at most 128, or 192 with 128, "
            "or 256 with 256",
        ),
        (
            "flash-attn-4",
            case_of(),
            Machine("cuda", (8, 9)),
            "flash-attn-4: mode=fwd-bwd has no backward on compute capability 8; fwd",
        ),
        ("flash-attn-4", case_of(headdim=20), HOPPER, "flash-attn-4: headdim=20 does not fit; a multiple of 8"),
        (
            "xformers-cutlass",
            case_of(nheads_kv=1),
            HOPPER,
            "xformers-cutlass: nheads_kv=1 differs from nheads; the nheads, 4",
        ),
        (
            "xformers-cutlass",
            case_of(),
            Machine("cuda", (10, 0)),
            "xformers-cutlass: compute capability=10.0 is not supported; below 9.1",
        ),
        (
            "xformers-flash",
            case_of(nheads_kv=1),
            HOPPER,
            "xformers-flash: nheads_kv=1 has no backward; the nheads, 4, or mode fwd",
        ),
        (
            "xformers-flash",
            case_of(**SQUARE, window=(2, 2)),
            HOPPER,
            "xformers-flash: window=(2, 2) has no variable length; none",
        ),
        ("flashinfer", case_of(), HOPPER, "flashinfer: mode=fwd-bwd has no backward; fwd"),
        (
            "flashinfer",
            case_of(mode="fwd", headdim=96),
            HOPPER,
            "flashinfer: headdim=96 is not supported; one of 64, 128, 256",
        ),
        (
            "flashinfer",
            case_of(mode="fwd", window=(4, 4)),
            HOPPER,
            "flashinfer: window=(4, 4) is bounded on the right; a bound on the left, causal or not",
        ),
        (
            "flashinfer[fa3]",
            case_of(mode="fwd"),
            Machine("cuda", (8, 0)),
            "flashinfer: config=fa3 runs on compute capability 9.0; fa2",
        ),
        ("sage1", case_of(), HOPPER, "sage1: mode=fwd-bwd has no backward; fwd"),
        ("sage1", case_of(mode="fwd", headdim=32), HOPPER, "sage1: headdim=32 is not supported; one of 64, 96, 128"),
        (
            "sage1",
            case_of(mode="fwd", window=(4, 0), causal=True),
            HOPPER,
            "sage1: window=(4, 0) is not supported; none",
        ),
        (
            "sage1",
            case_of(mode="fwd", causal=True, seqlen_k=20),
            HOPPER,
            "sage1: causal=True with seqlen=17, seqlen_k=20 would be aligned to the top left; equal lengths, or seqlen=1",
        ),
        (
            "sage1",
            case_of(mode="fwd", headdim=96, **SQUARE),
            HOPPER,
            "sage1: headdim=96 has no variable length; 64 or 128",
        ),
        ("flex", case_of(headdim=8), HOPPER, "flex: headdim=8 is too small on a GPU; at least 16"),
        ("flex", case_of(), Machine("cpu"), "flex: mode=fwd-bwd has no backward on a CPU; fwd"),
    ],
)
def test_refusals(name, case, machine, words):
    with pytest.raises(Unsupported) as refused:
        resolve(name, case).check(case, machine)
    assert str(refused.value) == words


def test_a_configured_backend_keeps_its_configuration():
    assert resolve("flashinfer[fa2]", CASES["odd"]).config == Config("fa2")
