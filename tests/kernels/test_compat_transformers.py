"""`flash_attention` in models of Hugging Face's transformers, in Triton's interpreter, beside their own attention."""

from __future__ import annotations

import types

import pytest
import torch

pytest.importorskip("triton")

from torch.utils.flop_counter import FlopCounterMode

from .interpreter import interpreted

transformers = pytest.importorskip("transformers")

TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


@pytest.fixture(scope="module")
def ours():
    with interpreted("attnbench.kernels.compat.transformers") as (module,):
        module.register()
        yield module


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).eval()


def both(ours, model, **given):
    """Outputs of a model with our attention, and with PyTorch's."""
    outputs = []
    for name in (ours.NAME, "sdpa"):
        model.set_attn_implementation(name)
        outputs.append(model(**given))
    return outputs


def tokens(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(1, 40, (rows, columns), generator=torch.Generator().manual_seed(rows))


def test_a_causal_model_with_gradients(ours, model):
    ids = tokens(2, 37)
    found, wanted = both(ours, model, input_ids=ids, labels=ids)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-4, atol=1e-5)
    weights = [layer.self_attn.k_proj.weight for layer in model.model.layers]
    for one, other in zip(
        torch.autograd.grad(found.loss, weights), torch.autograd.grad(wanted.loss, weights), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_a_model_without_memory_counts_its_attention(ours):
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, attn_implementation=ours.NAME))
        ids = torch.zeros(2, 37, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids, labels=ids).loss.backward()
    pairs = TINY["num_hidden_layers"] * 2 * 37 * 37
    counts = counter.get_flop_counts()["Global"]
    operators = torch.ops.attnbench.flash_forward, torch.ops.attnbench.flash_backward
    assert [counts[one] for one in operators] == [4 * TINY["hidden_size"] * pairs, 10 * TINY["hidden_size"] * pairs]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out(ours, model, side):
    ids, seen = tokens(3, 20), torch.ones(3, 20, dtype=torch.long)
    for row, padded in enumerate((0, 5, 19)):
        seen[row, : padded if side == "left" else 0] = 0
        if side == "right" and padded:
            seen[row, -padded:] = 0
    with torch.no_grad():
        found, wanted = both(ours, model, input_ids=ids, attention_mask=seen)
    torch.testing.assert_close(found.logits[seen.bool()], wanted.logits[seen.bool()], rtol=1e-4, atol=1e-5)


def test_generation_is_theirs(ours, model):
    ids, seen = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    seen[1, :4] = 0
    found = []
    for name in (ours.NAME, "sdpa"):
        model.set_attn_implementation(name)
        found.append(model.generate(ids, attention_mask=seen, max_new_tokens=6, do_sample=False))
    assert torch.equal(*found)


def test_packed_sequences_do_not_see_each_other(ours, model):
    lengths = [7, 1, 12]
    ids = tokens(1, sum(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        alone = torch.cat([model(input_ids=part).logits for part in ids.split(lengths, 1)], 1)
        model.set_attn_implementation(ours.NAME)
        found = model(input_ids=ids, position_ids=positions).logits
        packed = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 12, "max_length_k": 12}
        given = model(input_ids=ids, position_ids=positions, **packed).logits
        rows = model(input_ids=ids.repeat(2, 1), position_ids=positions.repeat(2, 1)).logits
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows, alone.repeat(2, 1, 1), rtol=1e-4, atol=1e-5)


def test_a_window_is_followed(ours):
    torch.manual_seed(1)
    config = transformers.MistralConfig(**TINY, sliding_window=6)
    model, ids = transformers.MistralForCausalLM(config).eval(), tokens(2, 30)
    with torch.no_grad():
        found, wanted = both(ours, model, input_ids=ids)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-4, atol=1e-5)
    texts = []  # with a cache of the window's keys alone
    for name in (ours.NAME, "sdpa"):
        model.set_attn_implementation(name)
        texts.append(model.generate(ids[:, :9], max_new_tokens=5, do_sample=False))
    assert torch.equal(*texts)


def test_a_compiled_model_of_packed_sequences_is_one_graph(ours, model):
    torch._dynamo.reset()
    model.set_attn_implementation(ours.NAME)
    ids, ends = tokens(1, 20), torch.tensor([0, 8, 20], dtype=torch.int32)
    packed = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 12, "max_length_k": 12}
    given = {"input_ids": ids, "position_ids": torch.cat([torch.arange(8), torch.arange(12)])[None], "use_cache": False}

    def run():
        return model(**given, **packed).logits

    with torch.no_grad():
        found = torch.compile(run, fullgraph=True, backend="aot_eager")()
        torch.testing.assert_close(found, run(), rtol=1e-4, atol=1e-5)


def test_an_encoder_sees_both_ways(ours):
    torch.manual_seed(2)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=40)).eval()
    seen = torch.ones(2, 15, dtype=torch.long)
    seen[1, 9:] = 0
    with torch.no_grad():
        found, wanted = both(ours, model, input_ids=tokens(2, 15), attention_mask=seen)
    found, wanted = found.last_hidden_state, wanted.last_hidden_state
    torch.testing.assert_close(found[seen.bool()], wanted[seen.bool()], rtol=1e-4, atol=1e-5)


def test_what_is_not_there_is_refused_by_name(ours, model):
    module, q = types.SimpleNamespace(is_causal=True), torch.randn(1, 2, 5, 16)
    for given, words in (
        ({"dropout": 0.1}, r"dropout=0.1 is not supported; 0.0"),
        ({"softcap": 30.0}, r"softcap=30.0 is not supported; None"),
        ({"s_aux": torch.ones(2)}, r"s_aux=a tensor \(2,\) is not supported; None"),
        ({"position_bias": q}, r"position_bias=.* is not supported; None"),
        ({"output_attentions": True}, r"output_attentions=True is not supported; False"),
        ({"cu_seq_lens_q": torch.ones(2)}, r"cu_seq_lens_k=None is not supported; all of"),
    ):
        with pytest.raises(ValueError, match=f"^attnbench: {words}"):
            ours.attend(module, q, q, q, None, **given)
    with pytest.raises(ValueError, match=r"^attnbench: attention_mask=.* is not supported; \(1, 5\)"):
        ours.attend(module, q, q, q, torch.ones(1, 1, 5, 5, dtype=torch.bool))
    model.set_attn_implementation(ours.NAME)
    with pytest.raises(ValueError, match=r"past_key_values=.*fixed length.* is not supported"):
        model.generate(tokens(1, 5), max_new_tokens=2, cache_implementation="static")


def test_masks_of_other_patterns_are_refused(ours):
    """Of chunks, of blocks that see both ways, and of a model's own: each would be taken for a causal one."""
    masks = transformers.masking_utils
    blocks = torch.tensor([[-1, 0, 0, -1, -1]])
    causal, packed = masks.causal_mask_function, torch.tensor([[0, 0, 1, 1, 1]])
    for wrong in (
        masks.chunked_causal_mask_function(3, torch.zeros(1, dtype=torch.long)),
        masks.or_masks(causal, masks.blockwise_overlay(blocks)),
        masks.and_masks(causal, lambda b, h, q, k: q - k < 2),
        masks.packed_sequence_compatibility_function(masks.blockwise_overlay(blocks), packed, packed),
    ):
        with pytest.raises(ValueError, match=r"^attnbench: mask_function=.* is not supported; causal"):
            ours.mask(1, 5, 5, mask_function=wrong)
    for right in (causal, masks.sliding_window_causal_mask_function(3), masks.bidirectional_mask_function):
        assert ours.mask(1, 5, 5, mask_function=right) is None
        both = masks.packed_sequence_compatibility_function(right, packed, packed)
        assert ours.mask(1, 5, 5, mask_function=both) is None


def test_a_window_to_both_sides_is_followed(ours):
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = transformers.ModernBertConfig(**sizes, **special, vocab_size=40, local_attention=8)
    model = transformers.ModernBertModel(config).eval()
    seen = torch.ones(2, 30, dtype=torch.long)
    seen[1, 19:] = 0
    with torch.no_grad():
        found, wanted = (
            one.last_hidden_state for one in both(ours, model, input_ids=tokens(2, 30), attention_mask=seen)
        )
    torch.testing.assert_close(found[seen.bool()], wanted[seen.bool()], rtol=1e-4, atol=1e-5)


def test_another_version_of_masks_is_refused(ours, monkeypatch):
    monkeypatch.setattr("transformers.masking_utils.sdpa_mask", lambda batch_size, cache_position, kv_length: None)
    with pytest.raises(ImportError, match=r"do not take q_length.*5\.23"):
        ours.register("another")


@pytest.mark.parametrize("wanted", [True, None])
def test_what_a_model_says_of_determinism_reaches_the_kernel(monkeypatch, wanted):
    from attnbench.kernels.compat import transformers as ours

    seen = {}
    monkeypatch.setattr(ours, "flash_attention", lambda q, k, v, **options: (seen.update(options), None))
    q = torch.zeros(1, 2, 8, 16)
    ours.attend(torch.nn.Module(), q, q, q, None, deterministic=wanted)
    assert seen.get("deterministic") == wanted
