"""Softmax attention over pages: pages in random order with NaN beyond, FlashInfer's wrappers as fakes that read them."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.kv_pages import PAGE_SIZES, SPARE, KvPages
from attnbench.backends.registry import all_backends, resolve
from attnbench.errors import Unsupported
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import make_inputs

from .reference import expected, packed
from .test_library_adapters import install

HOPPER = Machine("cuda", (9, 0))


def case_of(batch=3, seqlen=17, seqlen_k=150, nheads=4, headdim=64, dtype="bf16", **more):
    return AttentionCase(
        batch=batch, seqlen=seqlen, seqlen_k=seqlen_k, nheads=nheads, headdim=headdim, dtype=dtype, **more
    )


CASES = {
    "append": case_of(causal=True, nheads_kv=2),
    "whole": case_of(),
    "uneven": case_of(causal=True, lengths="1/1:17/129:5/64"),
    "decode": case_of(seqlen=1, nheads_kv=1, lengths="1/150:1/16:1/17"),
    "decode of all heads": case_of(seqlen=1, causal=True),
    "left bound": case_of(causal=True, window=(20, 0)),
}


def made(case, seed=1):
    return make_inputs(case, seed=seed, kind="normal", device="cpu")


class Paged:
    """What both wrappers share: keys and values taken from the pages that the table names."""

    def __init__(self, workspace, kv_layout="NHD", **how):
        assert (workspace.dtype, workspace.numel(), kv_layout) == (torch.uint8, 128 << 20, "NHD")
        self.made = how

    def keep(self, indptr, indices, last_page_len, heads, size, **how):
        assert {x.dtype for x in (indptr, indices, last_page_len)} == {torch.int32}
        assert how.pop("q_data_type") == torch.bfloat16
        self.table, self.heads, self.size = (indptr.tolist(), indices.tolist(), last_page_len.tolist()), heads, size
        self.how = {"scale": how["sm_scale"], "window": (how["window_left"], -1), "causal": how["causal"]}

    def run(self, q, pool):
        indptr, indices, last = self.table
        assert pool.shape[1:] == (2, self.size, *self.heads[1:])
        keys = [
            pool[indices[first:end]].transpose(0, 1).flatten(1, 2)[:, : (end - first - 1) * self.size + rest]
            for first, end, rest in zip(indptr, indptr[1:], last, strict=False)
        ]
        offsets = torch.tensor([0, *(one.shape[1] for one in keys)]).cumsum(0)
        k, v = (torch.cat([one[which] for one in keys]) for which in (0, 1))
        return packed(q.double(), k.double(), v.double(), self.offsets, offsets, **self.how).to(q.dtype)


class Prefill(Paged):
    def plan(self, qo_indptr, indptr, indices, last_page_len, num_qo, num_kv, dim, page_size, *, causal=False, **how):
        self.offsets = qo_indptr
        self.keep(indptr, indices, last_page_len, (num_qo, num_kv, dim), page_size, causal=causal, **how)


class Decode(Paged):
    def plan(self, indptr, indices, last_page_len, num_qo, num_kv, dim, page_size, **how):
        self.offsets = torch.arange(len(indptr), dtype=torch.int32)
        assert self.made == {"use_tensor_cores": num_qo > num_kv}
        self.keep(indptr, indices, last_page_len, (num_qo, num_kv, dim), page_size, causal=False, **how)


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch):
    install(monkeypatch, "flashinfer.prefill", BatchPrefillWithPagedKVCacheWrapper=Prefill)
    install(monkeypatch, "flashinfer.decode", BatchDecodeWithPagedKVCacheWrapper=Decode)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("label", CASES)
def test_pages_are_in_random_order_and_hold_each_key_once(label, page_size):
    case = CASES[label]
    inputs = made(case)
    pages = KvPages(case, inputs.k, inputs.v, page_size)
    used = pages.indices.tolist()
    assert len(set(used)) == len(used) == len(pages.pool) - SPARE
    assert used != sorted(used)
    for found, x in zip(pages.gathered(), (inputs.k, inputs.v), strict=True):
        assert torch.equal(found, x.flatten(0, -3))
    assert pages.pool.isfinite().sum() == inputs.k.numel() + inputs.v.numel()
    held = pages.indptr.diff()
    assert ((held - 1) * page_size + pages.last_page_len).tolist() == [keys for _, keys in case.sequences]


@pytest.mark.parametrize("label", CASES)
@pytest.mark.parametrize(
    "selector", ["flashinfer-paged", "flashinfer-paged[p16]", "flashinfer-paged[p128+decode]", "gathered-sdpa[p32]"]
)
def test_every_case_is_right_or_refused(selector, label):
    case = CASES[label]
    backend = resolve(selector, case)
    backend.probe()
    machine = HOPPER if "flashinfer" in selector else Machine("cpu")
    if ("decode" in selector and case.seqlen > 1) or ("sdpa" in selector and case.packed):
        with pytest.raises(Unsupported):
            backend.check(case, machine)
        return
    backend.check(case, machine)
    first, second = made(case, 1), made(case, 2)
    with backend.session(case, first) as launch:
        for inputs in (first, second):
            launch.reload(inputs)
            launch.forward()
            out = launch.outputs()["out"]
            torch.testing.assert_close(out.double(), expected(case, inputs)["out"], rtol=0.02, atol=0.02)
        for phase in launch.phases.values():
            phase()
        assert launch.backward is None


def test_rows_say_page_and_wrapper():
    case = CASES["decode"]
    shorts = [config.short for config in all_backends()["flashinfer-paged"].configs(case)]
    assert shorts == ["p16", "p32", "p64", "p128", "p16+decode", "p32+decode", "p64+decode", "p128+decode"]
    for selector, note in (("flashinfer-paged[p16+decode]", "True"), ("flashinfer-paged", "fa3")):
        with resolve(selector, case).session(case, made(case)) as launch:
            assert note in launch.notes[0]
    with pytest.raises(Unsupported, match=r"flashinfer-paged: seqlen=17 is no decoding; 1, or no \+decode"):
        resolve("flashinfer-paged[p64+decode]", case).check(CASES["whole"], HOPPER)
    assert all_backends()["gathered-sdpa"].attend(case, torch.device("cpu")) is None
