"""Adapters of block-sparse libraries that are not installed: stand-ins convert each library's format back to a map."""

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends, resolve
from attnbench.backends.sparse import lists_of, map_of_lists
from attnbench.backends.sparse_flashinfer import bsr_form, map_of_bsr, variable_form
from attnbench.errors import Unavailable, Unsupported, UsageError
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.inputs import SparseInputs
from attnbench.workloads.sparse.patterns import tile_window

from .test_library_adapters import install

sys.path.append(str(Path(__file__).parents[1] / "workloads"))

from naive_sparse import attention

HOPPER = Machine("cuda", (9, 0))
SEEN = {}


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 2, "seqlen": 256, "nheads": 2, "headdim": 64, "dtype": "bf16", "block": "64x64", "density": 0.5}
        | values
    )


def computed(case, q, k, v, blocks, shape):
    """Attention [B, H, S, D] over a map in blocks of a shape, as the libraries give it."""
    whole = replace(
        case,
        batch=len(q),
        nheads=q.shape[1],
        nheads_kv=k.shape[1],
        seqlen=q.shape[2],
        seqlen_k=k.shape[2],
        block="x".join(map(str, shape)),
        pattern="full",
        density=1.0,
        widen=False,
    )
    inputs = SparseInputs(
        **{name: x.transpose(1, 2) for name, x in zip("qkv", (q, k, v), strict=True)}, block_map=blocks
    )
    return attention(whole, inputs)[0].transpose(1, 2).to(q.dtype)


def opened(name, case, machine=HOPPER):
    backend = resolve(name, case)
    backend.probe()
    backend.check(case, machine)
    return backend.session(case, WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu"))


def holds(name, case):
    """The adapter's output is attention over the case's map, again with new data and after its phases."""
    with opened(name, case) as launch:
        for seed in (3, 4):
            inputs = WORKLOAD.inputs(case, seed=seed, kind="normal", device="cpu")
            launch.reload(inputs)
            for phase in launch.phases.values():
                phase()
            launch.forward()
            out = launch.outputs()
            truth = attention(case, inputs, out.get("block_map"))[0]
            torch.testing.assert_close(out["out"].double(), truth, rtol=2e-2, atol=2e-2)
    return launch, out


@pytest.mark.parametrize(
    "name",
    [
        "sparse-flashinfer",
        "fastvideo-vsa",
        "fastvideo-sta",
        "cudnn-bsa",
        "sparse-flash-attn-4",
        "block-sparse-attn",
        "sparge",
        "sparge-fp8",
    ],
)
def test_each_says_how_it_is_installed(name):
    with pytest.raises(Unavailable, match=f"{name}: module=.* is not installed; (pip install|git clone)"):
        all_backends()[name].probe()


# ── FlashInfer ─────────────────────────────────────────────────────────────────────────────────────


class Variable:
    def __init__(self, workspace, backend):
        SEEN["kernel"] = backend

    def plan(self, blocks, rows, columns, heads, heads_kv, dim, *, sm_scale, q_data_type):
        assert heads == heads_kv == len(blocks) == len(rows) == len(columns)
        assert sm_scale == dim**-0.5
        assert q_data_type == torch.bfloat16
        self.rows, self.columns = rows, columns
        self.tokens = torch.stack(
            [
                one.repeat_interleave(r.long(), 0).repeat_interleave(c.long(), 1)
                for one, r, c in zip(blocks, rows, columns, strict=True)
            ]
        )

    def run(self, q, k, v):
        scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~self.tokens, -torch.inf).softmax(-1)
        return (weights @ v.double()).to(q.dtype)


class Bsr(Variable):
    def plan(self, indptr, indices, rows, columns, r, c, heads, heads_kv, dim, *, sm_scale, q_data_type, o_data_type):
        blocks = map_of_bsr(indptr, indices, columns // c)
        self.tokens = blocks.repeat_interleave(r, 0).repeat_interleave(c, 1)

    def run(self, q, k, v):
        return Variable.run(self, *(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1)


@pytest.fixture
def flashinfer(monkeypatch):
    monkeypatch.setattr("attnbench.backends.sparse_flashinfer.WORKSPACE_BYTES", 16)
    install(
        monkeypatch, "flashinfer.sparse", VariableBlockSparseAttentionWrapper=Variable, BlockSparseAttentionWrapper=Bsr
    )


@pytest.mark.usefixtures("flashinfer")
def test_flashinfer_takes_a_map_for_each_head_and_tails():
    launch, _ = holds("sparse-flashinfer", case_of(seqlen=200, seqlen_k=300, block="128x64"))
    assert launch.notes == ("kernel pinned: fa2",)
    assert SEEN["kernel"] == "fa2"
    holds("sparse-flashinfer[variable+fa3]", case_of())
    assert SEEN["kernel"] == "fa3"
    same = case_of(batch=1, pattern="window")
    holds("sparse-flashinfer[bsr]", same)
    for values, words in [
        ({}, "batch=2 is not supported; 1"),
        (
            {"batch": 1},
            "pattern=random gives each head a map of its own; one map for all heads; "
            "sparse-flashinfer.variable. takes it",
        ),
        ({"batch": 1, "pattern": "window", "seqlen": 250, "seqlen_k": 256}, "seqlen=250 is cut by"),
    ]:
        with pytest.raises(Unsupported, match=words):
            opened("sparse-flashinfer[bsr]", case_of(**values))
    with pytest.raises(Unsupported, match="makes 32800 rows of blocks over all heads; at most 32768"):
        opened("sparse-flashinfer", case_of(batch=1, nheads=1, headdim=64, seqlen=32800 * 64, seqlen_k=64, density=1.0))
    with pytest.raises(Unsupported, match="causal=True is not supported; false"):
        opened("sparse-flashinfer", case_of(causal=True))


# ── FastVideo ──────────────────────────────────────────────────────────────────────────────────────


def fastvideo(monkeypatch, **compiled):
    def attend(q, k, v, indices, counts, sizes):
        SEEN["sizes"] = sizes.tolist()
        assert q.is_contiguous()
        assert indices.dtype == counts.dtype == sizes.dtype == torch.int32
        blocks = map_of_lists(counts, indices, len(sizes))
        room = k.shape[2]
        keys = int(sizes.sum())
        assert room == 64 * len(sizes)
        return computed(SEEN["case"], q, k[:, :, :keys], v[:, :, :keys], blocks, (64, 64)), None

    operators = types.SimpleNamespace(block_sparse_attn_sm90=attend, block_sparse_attn_triton=attend)
    monkeypatch.setattr(torch.ops, "fastvideo_kernel", operators, raising=False)
    install(monkeypatch, "fastvideo_kernel.block_sparse_attn")
    install(monkeypatch, "fastvideo_kernel._C.fastvideo_kernel_ops", **compiled)


def test_vsa_cuts_maps_into_its_blocks_and_pads(monkeypatch):
    fastvideo(monkeypatch, block_sparse_fwd=1)
    for values in ({}, {"seqlen": 200, "seqlen_k": 300}, {"block": "128x128", "seqlen": 300}):
        SEEN["case"] = case_of(**values)
        launch, _ = holds("fastvideo-vsa", SEEN["case"])
        assert SEEN["sizes"][-1] == ((SEEN["case"].seqlen_k - 1) % 64) + 1
    assert launch.notes == ("kernel block_sparse_attn_sm90", "padded to whole blocks outside the call")
    assert holds("fastvideo-vsa[triton]", case_of())[0].notes[0] == "kernel block_sparse_attn_triton"
    with pytest.raises(Unsupported, match=r"config=tk runs on compute capability 9\.0; triton"):
        opened("fastvideo-vsa", case_of(), Machine("cuda", (8, 0)))
    with pytest.raises(Unsupported, match="dtype=fp16 is not supported; one of bf16"):
        opened("fastvideo-vsa", case_of(dtype="fp16"))


def test_vsa_without_its_compiled_module_is_not_replaced_in_silence(monkeypatch):
    fastvideo(monkeypatch)
    with pytest.raises(
        Unavailable,
        match=r"fastvideo-vsa: module=fastvideo_kernel._C.fastvideo_kernel_ops has no "
        r"block_sparse_fwd; its compiled kernels; .*libcuda\.so\.1",
    ):
        opened("fastvideo-vsa", case_of()).__enter__()


def test_an_empty_row_is_refused_where_the_kernel_would_compute_one(monkeypatch, tmp_path):
    fastvideo(monkeypatch, block_sparse_fwd=1)
    monkeypatch.setenv("ATTNBENCH_GIVEN_FILES", "")
    blocks = np.ones((2, 2, 4, 4), bool)
    blocks[1, 0, 2] = False
    np.save(tmp_path / "holes.npy", blocks)
    pattern = next(axis for axis in WORKLOAD.axes if axis.name == "pattern").parse(str(tmp_path / "holes.npy"))
    with pytest.raises(Unsupported, match="leaves 64 queries without a visible key; a key for every query"):
        opened("fastvideo-vsa", case_of(pattern=pattern, density=None))
    all_backends()["sparse-eager"].check(case_of(pattern=pattern, density=None), Machine("cpu"))


def test_sta_is_given_the_window_of_the_pattern_alone(monkeypatch):
    fastvideo(monkeypatch, sta_fwd=1)
    case = case_of(
        batch=1, seqlen=18 * 48 * 80, headdim=128, pattern="sta", grid="18:48:80", density=0.15, block="128x128"
    )

    def slide(q, k, v, windows, text, has_text, shape):
        SEEN.update(windows=windows, shape=shape, text=(text, has_text))
        return q * 2

    install(monkeypatch, "fastvideo_kernel.ops", sliding_tile_attention=slide)
    with opened("fastvideo-sta", case) as launch:
        launch.forward()
    assert SEEN["windows"] == [tile_window(case)] * 2 == [(3, 3, 3)] * 2
    assert (SEEN["shape"], SEEN["text"]) == ("18x48x80", (0, False))
    assert launch.notes == ("window 3x3x3 tiles",)
    for values, words in [
        ({"headdim": 64}, "headdim=64 is not supported; one of 128"),
        ({"pattern": "random"}, "pattern=random is no window of tiles; sta"),
        (
            {"grid": "6:48:80", "seqlen": 6 * 48 * 80, "seqlen_k": 6 * 48 * 80},
            "grid=6:48:80 is not compiled; one of 36:48:48, 18:48:80",
        ),
    ]:
        with pytest.raises(Unsupported, match=words):
            opened("fastvideo-sta", replace(case, **values))


# ── cuDNN, FlashAttention 4 ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cudnn(monkeypatch):
    def forward(q, k, v, *, q2k_block_index, q2k_block_nums, sparse_block_size, layout, softmax_scale):
        assert (layout, softmax_scale) == ("bhsd", q.shape[-1] ** -0.5)
        SEEN["block"] = sparse_block_size
        blocks = map_of_lists(q2k_block_nums, q2k_block_index, -(-k.shape[2] // sparse_block_size))
        return computed(SEEN["case"], q, k, v, blocks, (sparse_block_size,) * 2), None

    def quantised(q, k, v, *, q2k_block_index, block_sparse_num, sparse_block_size):
        counts = torch.full(q2k_block_index.shape[:3], block_sparse_num, dtype=torch.int32)
        blocks = map_of_lists(counts, q2k_block_index, -(-k.shape[2] // sparse_block_size))
        SEEN["block"] = sparse_block_size
        return computed(SEEN["case"], q, k, v, blocks, (sparse_block_size,) * 2), None

    bsa = types.SimpleNamespace(block_sparse_attention_forward=forward, block_sparse_attention_fp8_forward=quantised)
    install(monkeypatch, "cudnn.block_sparse_attention")
    sys.modules["cudnn"].BSA = bsa


@pytest.mark.usefixtures("cudnn")
def test_cudnn_takes_blocks_of_64_and_128_and_equal_counts_in_8_bits():
    for values, block in [
        ({}, 64),
        ({"block": "128x128"}, 128),
        ({"nheads": 4, "nheads_kv": 2}, 64),
        ({"block": "128x64", "seqlen": 512}, 64),
        ({"block": "128x128", "seqlen": 200}, 128),
    ]:
        SEEN["case"] = case_of(**values)
        launch, _ = holds("cudnn-bsa", SEEN["case"])
        assert SEEN["block"] == block
        assert launch.notes == (f"blocks of {block}x{block}",)
    SEEN["case"] = case_of(headdim=128)
    holds("cudnn-bsa[fp8]", SEEN["case"])
    budget = resolve("cudnn-bsa[fp8]", SEEN["case"]).budget(SEEN["case"])
    assert (budget.rel_l1, budget.head_rel_l1) == (0.08, 0.1)
    assert resolve("cudnn-bsa", SEEN["case"]).budget(SEEN["case"]).rel_l1 is None
    for name, values, words in [
        ("cudnn-bsa", {"seqlen": 200}, "seqlen=200 is cut by blocks of 64 queries; a multiple of 64"),
        (
            "cudnn-bsa[fp8]",
            {"headdim": 128, "pattern": "random-uneven", "seqlen": 512},
            "gives rows different numbers of blocks",
        ),
        ("cudnn-bsa[fp8]", {"headdim": 64}, "headdim=64 is not supported; one of 128"),
        ("cudnn-bsa[fp8]", {"headdim": 128, "seqlen_k": 250}, "seqlen_k=250 is cut by the blocks of the map"),
    ]:
        with pytest.raises(Unsupported, match=words):
            opened(name, case_of(**values))


class Tensors(NamedTuple):
    mask_block_cnt: torch.Tensor
    mask_block_idx: torch.Tensor
    full_block_cnt: torch.Tensor
    full_block_idx: torch.Tensor
    block_size: tuple


def test_flash_attention_4_lists_blocks_as_full(monkeypatch):
    def forward(q, k, v, softmax_scale, block_sparse_tensors):
        form = block_sparse_tensors
        assert not form.mask_block_cnt.any()
        blocks = map_of_lists(form.full_block_cnt, form.full_block_idx, -(-k.shape[1] // 128))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return computed(SEEN["case"], q, k, v, blocks, form.block_size).transpose(1, 2), None

    install(monkeypatch, "flash_attn.cute.block_sparsity", BlockSparseTensorsTorch=Tensors)
    install(monkeypatch, "flash_attn.cute.interface", _flash_attn_fwd=forward)
    SEEN["case"] = case_of(block="128x128", seqlen=300, nheads=4, nheads_kv=2)
    holds("sparse-flash-attn-4", SEEN["case"])
    with pytest.raises(Unsupported, match="block=64x64 does not fit blocks of 128x128"):
        opened("sparse-flash-attn-4", case_of())
    SEEN["case"] = case_of(widen=True, seqlen=300)
    _, outputs = holds("sparse-flash-attn-4", SEEN["case"])
    given = WORKLOAD.inputs(SEEN["case"], seed=0, kind="zeros", device="cpu").block_map
    assert not (given & ~outputs["block_map"]).any()
    monkeypatch.setattr(sys.modules["flash_attn.cute.interface"], "_flash_attn_fwd", lambda q, k, v: q)
    with pytest.raises(Unavailable, match="has no block sparsity; block_sparse_tensors"):
        opened("sparse-flash-attn-4", SEEN["case"]).__enter__()


# ── Block-Sparse-Attention ─────────────────────────────────────────────────────────────────────────


def test_block_sparse_attn_is_given_lists_that_end_with_the_first_block(monkeypatch):
    def convert(blocks):
        """As upstream's: a row's blocks from the last to the first, then -1."""
        kept, places = blocks.to(torch.uint8).sort(dim=-1, stable=True, descending=False)
        return places.masked_fill(kept == 0, -1).flip(-1).contiguous().int()

    def forward(  # with upstream's order of arguments
        q, k, v, cu_q, cu_k, rows, columns, heads, streaming, lists, most_q, most_k, dropout, scale, causal, exact,
        weights, left, right,
    ):  # fmt: skip
        case = SEEN["case"]
        assert (rows, columns, dropout, exact, weights, left, right) == (128, 128, 0.0, False, False, -1, -1)
        assert (scale, causal) == (case.scale, case.causal)
        assert heads.tolist() == list(range(1, case.nheads + 1))
        assert streaming.tolist() == [0] * (2 * case.nheads)
        assert lists.dtype == cu_q.dtype == cu_k.dtype == torch.int32
        assert cu_q.tolist() == [0, case.seqlen, 2 * case.seqlen]
        assert (cu_k.tolist(), most_q, most_k) == ([0, case.seqlen_k, 2 * case.seqlen_k], case.seqlen, case.seqlen_k)
        count = -(-most_k // columns)
        found = torch.zeros(*lists.shape[:-1], count + 1, dtype=torch.bool)
        found.scatter_(-1, lists.long().masked_fill(lists < 0, count), True)
        q, k, v = (x.unflatten(0, (2, -1)).transpose(1, 2) for x in (q, k, v))
        return computed(case, q, k, v, found[..., :count], (rows, columns)).transpose(1, 2).flatten(0, 1), None

    name = "block_sparse_attn.block_sparse_attn_interface"
    install(monkeypatch, name, convert_blockmask_row_reverse=convert, _block_sparse_attn_forward=forward)
    for values in ({"seqlen": 300, "seqlen_k": 500}, {"nheads": 4, "nheads_kv": 2}, {"seqlen": 300, "causal": True}):
        SEEN["case"] = case_of(block="128x128", **values)
        launch, _ = holds("block-sparse-attn", SEEN["case"])
        assert list(launch.phases) == ["convert"]
    for values, words in [
        ({"headdim": 96}, "headdim=96 is not supported; one of 32, 64, 128"),
        ({"block": "64x64"}, "block=64x64 does not fit blocks of 128x128"),
        ({"causal": True, "seqlen_k": 512}, "would be aligned to the top left; equal lengths"),
    ]:
        with pytest.raises(Unsupported, match=words):
            opened("block-sparse-attn", case_of(**{"block": "128x128"} | values))


# ── SpargeAttn ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def spas(monkeypatch):
    def predict(q, k, km, *, is_causal, simthreshd1, cdfthreshd=None, topk=None, return_lut, block=(128, 64)):
        """With the arguments and results of upstream's; its lists hold steps from one block to the next."""
        assert return_lut
        assert (cdfthreshd is None) != (topk is None)
        rows, columns = (-(-x.shape[2] // size) for x, size in zip((q, k), block, strict=True))
        share = topk if cdfthreshd is None else cdfthreshd
        torch.manual_seed(int(100 * share))
        blocks = torch.rand(*q.shape[:2], rows, columns) < share
        blocks[..., 0] = True
        if simthreshd1 > 0.5:
            blocks[:] = True
        lists = lists_of(blocks)
        deltas = lists["indices"].diff(dim=-1, prepend=torch.zeros_like(lists["indices"][..., :1]))
        deltas[torch.arange(columns) >= lists["counts"][..., None]] = 0
        SEEN["blocks"] = blocks
        return deltas, lists["counts"], None, None, None, None

    def attends(block, rule):
        def function(q, k, v, *, is_causal, scale, tensor_layout, simthreshd1, pvthreshd, **share):
            assert (is_causal, tensor_layout, pvthreshd, list(share)) == (False, "HND", 50.0, [rule])
            assert q.is_contiguous()
            SEEN["thresholds"] = simthreshd1, *share.values()
            sys.modules["spas_sage_attn.core"].get_block_map_meansim_fuse_quant(
                q, k, k.mean(2), is_causal=is_causal, simthreshd1=simthreshd1, return_lut=True, block=block, **share
            )
            return computed(SEEN["case"], q, k, v, SEEN["blocks"], block)

        return function

    def given(q, k, v, *, mask_id, scale, tensor_layout):
        return computed(SEEN["case"], q, k, v, mask_id, (64, 128))

    for module in ("sparge_call", "sparge_fp8"):
        monkeypatch.setattr(f"attnbench.backends.{module}.machine_of", lambda inputs: HOPPER)
    install(
        monkeypatch,
        "spas_sage_attn.core",
        get_block_map_meansim_fuse_quant=predict,
        spas_sage_attn_meansim_cuda=attends((128, 64), "cdfthreshd"),
        spas_sage_attn_meansim_topk_cuda=attends((128, 64), "topk"),
        spas_sage2_attn_meansim_cuda=attends((64, 128), "cdfthreshd"),
        spas_sage2_attn_meansim_topk_cuda=attends((64, 128), "topk"),
        block_sparse_sage2_attn_cuda=given,
    )
    return predict


def test_sparge_predicts_and_says_what_it_used(spas):
    SEEN["case"] = case_of(seqlen=300)
    before = sys.modules["spas_sage_attn.core"].get_block_map_meansim_fuse_quant
    for name, thresholds in [
        ("sparge", (0.6, 0.98)),
        ("sparge[sim0-cdf0.3-pv50]", (0.0, 0.3)),
        ("sparge-fp8[sim0-cdf0.5-pv50]", (0.0, 0.5)),
        ("sparge[topk0.5]", (-0.1, 0.5)),
        ("sparge-fp8[sim0.1-topk0.3-pv50]", (0.1, 0.3)),
    ]:
        launch, outputs = holds(name, SEEN["case"])
        assert SEEN["thresholds"] == thresholds
        assert outputs["block_map"].all() == (name == "sparge")
        assert not launch.capturable
        assert "map predicted by SpargeAttn: simthreshd1" in launch.notes[0]
        assert resolve(name, SEEN["case"]).variant_of(SEEN["case"]) == "chosen"
    assert sys.modules["spas_sage_attn.core"].get_block_map_meansim_fuse_quant is before


@pytest.mark.usefixtures("spas")
def test_sparge_fp8_takes_a_map_in_the_cards_blocks():
    SEEN["case"] = case_of(seqlen=300, block="64x128")
    launch, _ = holds("sparge-fp8", SEEN["case"])
    assert "density" in launch.counters
    assert resolve("sparge-fp8", SEEN["case"]).variant_of(SEEN["case"]) == "given"
    SEEN["case"] = case_of(seqlen=300, block="128x128")
    assert list(holds("sparge-fp8", SEEN["case"])[0].phases) == ["convert"]
    with pytest.raises(
        Unsupported, match="block=128x64 does not fit blocks of 64x128: the map keeps some of them in part"
    ):
        opened("sparge-fp8", case_of(block="128x64"))
    for name in ("sparge-fp8", "sparge-fp8[sim0-cdf0.5-pv50]"):
        with pytest.raises(Unsupported, match=r"causal=True hides whole blocks only: .*; false; sparge takes it"):
            opened(name, case_of(block="64x128", causal=True))
    with pytest.raises(
        Unsupported, match="block=128x128 cannot say the map that it predicts; blocks that divide 128x64, such as 64x64"
    ):
        opened("sparge", case_of(block="128x128"))
    with pytest.raises(Unsupported, match="seqlen=100 is too short; at least 128"):
        opened("sparge", case_of(seqlen=100, density=1.0))
    for short in ("cdf0.5", "sim0-cdf1.5-pv50", "sim2-cdf0.5-pv50", "topk2", "topk0.5-pv", "sim0-cdf0.5-pv-1"):
        with pytest.raises(UsageError, match="cannot be read; simX-cdfY-pvZ, simX-topkY-pvZ or topkY"):
            resolve(f"sparge[{short}]", SEEN["case"])
    assert [config.short for config in all_backends()["sparge"].configs(SEEN["case"])][:2] == [
        "sim0.6-cdf0.98-pv50",
        "sim0-cdf0.2-pv50",
    ]


# ── formats ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_compressed_rows_turn_back_into_the_map(seed):
    blocks = torch.rand(7, 9, generator=torch.Generator().manual_seed(seed)) < 0.4
    blocks[2] = False
    assert torch.equal(map_of_bsr(*bsr_form(blocks), 9), blocks)
    case = case_of(seqlen=200, seqlen_k=300)
    maps = WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu").block_map
    flat, rows, columns = variable_form(case, maps)
    assert torch.equal(flat.unflatten(0, maps.shape[:2]), maps)
    assert (rows.sum(-1) == 200).all()
    assert (columns.sum(-1) == 300).all()
