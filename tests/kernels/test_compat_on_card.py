"""Other packages' names, transformers, AOTInductor and the operators without a backward, on a card."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from attnbench.kernels import flash_attention, flash_quant_attention, flash_sparse_attention, hstu_attention
from attnbench.kernels.compat import flash_attn_func, hstu_attn_varlen_func, hstu_mha
from attnbench.kernels.compat import flash_attn_interface as third
from attnbench.kernels.hstu.paged.api import Step, hstu_paged_append, hstu_paged_attention

pytestmark = pytest.mark.gpu


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).bfloat16()


@pytest.mark.parametrize(
    ("queries", "keys", "dim", "heads_kv", "causal", "window"),
    [
        (1023, 1024, 64, 6, True, (-1, -1)),
        (113, 203, 59, 2, False, (-1, -1)),
        (512, 256, 96, 1, True, (-1, -1)),
        (256, 512, 128, 3, False, (111, 22)),
        (2048, 2048, 256, 6, True, (300, 0)),
    ],
)
def test_flash_attention_2_and_3_are_one_function(queries, keys, dim, heads_kv, causal, window):
    """Shapes of FlashAttention's own tests; both orders of arguments launch the same kernels."""
    q, k, v = drawn(2, queries, 6, dim), drawn(2, keys, heads_kv, dim, seed=1), drawn(2, keys, heads_kv, dim, seed=2)
    for x in (q, k, v):
        x.requires_grad_()
    found = flash_attn_func(q, k, v, causal=causal, window_size=window, deterministic=True)
    other = third.flash_attn_func(q, k, v, causal=causal, window_size=window, deterministic=True)
    assert torch.equal(found, other)
    place = torch.arange(queries, device="cuda")[:, None] + keys - queries
    key = torch.arange(keys, device="cuda")[None]
    see = torch.ones(queries, keys, dtype=torch.bool, device="cuda")
    if window[0] >= 0:
        see &= key >= place - window[0]
    if causal or window[1] >= 0:
        see &= key <= place + (0 if causal else window[1])
    wide = [x.detach().double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    scores = wide[0] @ wide[1].repeat_interleave(6 // heads_kv, 1).mT / dim**0.5
    weights = torch.where(see, scores.masked_fill(~see, -torch.inf).softmax(-1), 0.0)
    wanted = (weights @ wide[2].repeat_interleave(6 // heads_kv, 1)).transpose(1, 2)
    upstream = drawn(*found.shape, seed=3)
    ours = torch.autograd.grad(found, (q, k, v), upstream)
    right = [x.transpose(1, 2) for x in torch.autograd.grad(wanted, wide, upstream.double())]
    for one, truth in zip((found, *ours), (wanted, *right), strict=True):
        assert (one - truth).abs().max() <= 0.02 * truth.abs().max()


def test_beside_flash_attention_3_itself():
    theirs = pytest.importorskip("fa3_fwd_interface")
    q, k, v = drawn(2, 1000, 8, 128), drawn(2, 1500, 2, 128, seed=1), drawn(2, 1500, 2, 128, seed=2)
    given: dict[str, Any] = {"causal": True, "return_attn_probs": True}
    out, lse = third.flash_attn_func(q, k, v, **given)
    found = theirs.flash_attn_func(q, k, v, **given)
    torch.testing.assert_close(out, found[0], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, found[1], atol=1e-3, rtol=1e-3)


def test_hstu_functions_are_hstu_attention():
    ends = torch.tensor([0, 700, 1900], dtype=torch.int32, device="cuda")
    targets = torch.tensor([20, 7], dtype=torch.int32, device="cuda")
    q, k, v = (drawn(1900, 4, 128, seed=seed) for seed in range(3))
    wanted = hstu_attention(q, k, v, ends, 1200, num_targets=targets, alpha=0.1, contextual_len=5, scaling_seqlen=1200)
    found = hstu_attn_varlen_func(
        q, k, v, ends, ends.clone(), None, None, 1200, 1200, -1, 5, targets, 1, (-1, 0), alpha=0.1
    )
    assert torch.equal(found, wanted)
    assert torch.equal(hstu_mha(1200, 0.1, q, k, v, ends, num_targets=targets, contextual_seq_len=5), wanted)


def test_transformers_is_fed_by_our_kernels():
    transformers = pytest.importorskip("transformers", minversion="5.23")
    from attnbench.kernels.compat.transformers import NAME, register

    register()
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=100, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).cuda().bfloat16().eval()
    ids = torch.randint(1, 100, (2, 300), device="cuda")
    seen = torch.ones_like(ids)
    seen[1, :40] = 0
    found = []
    with torch.no_grad():
        for name in (NAME, "sdpa"):
            model.set_attn_implementation(name)
            found.append(model(input_ids=ids, attention_mask=seen).logits[seen.bool()])
        model.set_attn_implementation(NAME)
        assert model.generate(ids, attention_mask=seen, max_new_tokens=4, do_sample=False).shape == (2, 304)
    torch.testing.assert_close(*found, atol=3e-2, rtol=3e-2)


class Forwards(torch.nn.Module):
    """The forwards that have no backward, and two that have one, of one sequence [n, 4, 128]."""

    def forward(self, q, ends, block_map, pool, table):
        n, batched = q.shape[0], q[None]
        dense = flash_attention(batched, batched, batched, causal=True)[0]
        sparse = flash_sparse_attention(dense, batched, batched, block_map, block=(128, 128))[0]
        quantised = flash_quant_attention(sparse, sparse, sparse)[0][0]
        jagged = hstu_attention(quantised, q, q, ends, n)
        step = Step(**table, num_targets=None, max_new=n, max_cached=100)
        return jagged, hstu_paged_attention(jagged, q, q, pool, step, scaling_seqlen=2048)


def inputs(n: int) -> tuple[Any, ...]:
    table = {"offsets": [0, n], "cached": [100], "indptr": [0, 2], "indices": [2, 0]}
    whole = {name: torch.tensor(values, dtype=torch.int32, device="cuda") for name, values in table.items()}
    blocks = -(-n // 128)
    block_map = torch.ones(1, 4, blocks, blocks, dtype=torch.bool, device="cuda").tril()
    ends = torch.tensor([0, n], dtype=torch.int32, device="cuda")
    return drawn(n, 4, 128, seed=n), ends, block_map, drawn(3, 2, 64, 4, 128), whole


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_forwards_give_what_eager_ones_do(mode):
    torch._dynamo.reset()
    layers, dynamic = Forwards(), mode == "default"
    compiled = torch.compile(layers, fullgraph=True, dynamic=dynamic, mode=mode)
    with torch.no_grad():
        for n in (700, 500, 900) if dynamic else (700,) * 4:
            given = inputs(n)
            wanted = layers(*given)
            torch.compiler.cudagraph_mark_step_begin()
            assert all(map(torch.equal, compiled(*given), wanted))


def test_an_append_changes_the_pool_in_what_is_compiled():
    torch._dynamo.reset()
    _, _, _, pool, table = inputs(20)
    k, step = drawn(20, 4, 128, seed=5), Step(**table, num_targets=None, max_new=20, max_cached=100)

    def run(k, pool):
        hstu_paged_append(k, k, pool, step)
        return pool.sum()

    eager, other = pool.clone(), pool.clone()
    run(k, eager)
    torch.compile(run, fullgraph=True)(k, other)
    assert torch.equal(eager, other)
    assert not torch.equal(eager, pool)


LOADS = """
import sys, torch
exported = torch.export.export(torch.nn.ReLU(), (torch.ones(4, device="cuda"),))
torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1]))
"""


@pytest.fixture
def packages_load(tmp_path):
    """A torch that loads a package without anything of ours; a build of 2.11 ends the process there."""
    path = str(tmp_path / "relu.pt2")
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", LOADS, path], capture_output=True)
    if ended.returncode < 0:
        pytest.skip(
            f"torch {torch.__version__} crashes when it loads a package of one ReLU: signal {-ended.returncode}"
        )


@pytest.mark.usefixtures("packages_load")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_package_of_aot_inductor_runs_on_other_lengths(tmp_path):
    layers, given = Forwards(), inputs(700)
    fixed = torch.utils._pytree.tree_map(lambda x: None, given[1:])
    with torch.no_grad():
        length = torch.export.Dim("length", min=641, max=768)
        exported = torch.export.export(layers, given, dynamic_shapes=({0: length}, *fixed))
        path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "layers.pt2"))
        package = torch._inductor.aoti_load_package(path)
        assert all(map(torch.equal, package(*inputs(650)), layers(*inputs(650))))
