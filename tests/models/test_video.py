"""Video models: sizes, shapes that are refused, weights by seed or from a folder, and the attention of every layer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")

from attnbench.errors import Unsupported, UsageError
from attnbench.models.video.attention import Exchanged, Spans, exchange, opaque, plain
from attnbench.models.video.build import check_folder, local_parts, random_parts
from attnbench.models.video.config import MODELS, model_of
from attnbench.models.video.denoise import Denoiser, predictor

TINY, WAN = MODELS["tiny"], MODELS["tiny-wan"]
SMALL = {"tiny": (9, 16, 32), "tiny-wan": (5, 32, 16)}


def parts_of(model, dtype=torch.float32, seed=0):
    return random_parts(model, SMALL[model.name], seed=seed, dtype=dtype, device="cpu")


def tensors(model, dtype=torch.float32, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    frames, rows, columns = model.latents(*SMALL[model.name])
    first = (frames, model.channels) if model.joint else (model.channels, frames)
    return (
        torch.randn(1, *first, rows, columns, generator=drawn).to(dtype),
        torch.randn(2, model.text_tokens, model.text_dim, generator=drawn).to(dtype),
    )


def predict(transformer, model, dtype=torch.float32):
    latents, embeds = tensors(model, dtype)
    with torch.no_grad():
        return predictor(transformer)(torch.cat([latents, latents]), embeds, torch.tensor([900, 900]))


def test_the_sizes_are_those_of_the_published_models():
    cog, wan = MODELS["cogvideox-2b"], MODELS["wan-1.3b"]
    assert cog.latents(cog.frames, cog.height, cog.width) == (13, 60, 90)
    assert cog.tokens(cog.frames, cog.height, cog.width) == 13 * 30 * 45 + 226 == 17_776
    assert wan.tokens(wan.frames, wan.height, wan.width) == 32_760
    assert (cog.heads, cog.dim, cog.layers, wan.heads, wan.dim, wan.layers) == (30, 64, 30, 12, 128, 30)


@pytest.mark.parametrize(("name", "parameters"), [("cogvideox-2b", 1_693_783_872), ("wan-1.3b", 1_418_996_800)])
def test_a_model_of_full_size_has_the_published_number_of_weights(name, parameters):
    model = model_of(name)
    made = random_parts(model, (model.frames, model.height, model.width), seed=0, dtype=torch.bfloat16, device="meta")
    assert sum(weight.numel() for weight in made.transformer.parameters()) == parameters


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (
            (49, 480, 728),
            "video: width=728 cannot be used: 16 does not divide it; a multiple of 16; the nearest is 736",
        ),
        ((49, 488, 720), "video: height=488 cannot be used: 16 does not divide it"),
        ((49, 8, 720), "video: height=8 cannot be used"),
        ((48, 480, 720), "video: frames=48 is not of the form 4k + 1; 1, 5, 9, …; the nearest is 49"),
        ((0, 480, 720), "video: frames=0 is not of the form 4k + 1; 1, 5, 9, …; the nearest is 1"),
        ((True, 480, 720), "video: frames=True is not of the form 4k + 1"),
        ((49, 480.0, 720), "video: height=480.0 cannot be used"),
    ],
)
def test_a_shape_that_the_model_cannot_make_is_refused_at_once(shape, said):
    with pytest.raises(UsageError) as refused:
        TINY.check_shape(*shape)
    assert str(refused.value).startswith(said)


def test_a_model_that_is_not_known():
    with pytest.raises(UsageError, match=r"video: model=huge"):
        model_of("huge")


@pytest.mark.parametrize("model", [TINY, WAN], ids=lambda model: model.name)
def test_our_processors_give_what_those_of_diffusers_give(model):
    parts = parts_of(model)
    theirs = predict(parts.transformer, model)
    for attend in (
        plain,
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v))
        ).transpose(1, 2),
    ):
        mine, exchanged = parts.with_own_modules(), Exchanged(attend)
        exchange(mine, model, exchanged)
        torch.testing.assert_close(predict(mine, model), theirs, rtol=0, atol=3e-6)
        assert exchanged.calls == model.layers
    # The model itself still has their processors: sessions of a group do not see each other.
    assert torch.equal(predict(parts.transformer, model), theirs)


@pytest.mark.parametrize("model", [TINY, WAN], ids=lambda model: model.name)
def test_an_attention_that_is_exchanged_is_the_one_that_counts(model):
    parts, seen = parts_of(model), []
    theirs, mine = predict(parts.transformer, model), parts.with_own_modules()
    exchanged = Exchanged(lambda q, k, v: torch.zeros_like(v))
    exchanged.look = lambda layer, q, k, v, out: seen.append((layer, tuple(q.shape)))
    exchange(mine, model, exchanged)
    assert (predict(mine, model) - theirs).abs().max() > 0.01
    shape = (2, model.tokens(*SMALL[model.name]), model.heads, model.dim)
    assert seen == [(layer, shape) for layer in range(model.layers)]


def test_the_weights_are_shared_and_a_copy_in_another_precision_is_not():
    parts = parts_of(TINY)
    same, wider = parts.with_own_modules(), parts.with_own_modules(torch.float64)
    for name, weight in parts.transformer.named_parameters():
        assert same.get_parameter(name) is weight
        assert wider.get_parameter(name).dtype == torch.float64
        assert torch.equal(wider.get_parameter(name).float(), weight)


def test_weights_follow_the_seed_and_nothing_else_and_settings_are_put_back():
    torch.manual_seed(7)
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    first, again, other = (parts_of(TINY, seed=seed).transformer.proj_out.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.get_default_dtype() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_wan_keeps_in_fp32_what_diffusers_keeps_there():
    made = parts_of(WAN, torch.bfloat16).transformer
    kept = {name for name, weight in made.named_parameters() if weight.dtype == torch.float32}
    assert "scale_shift_table" in kept
    assert "blocks.0.norm2.weight" in kept
    assert made.blocks[0].attn1.to_q.weight.dtype == torch.bfloat16
    assert {x.dtype for x in parts_of(TINY, torch.bfloat16).transformer.parameters()} == {torch.bfloat16}


def test_a_mask_is_refused_and_not_ignored():
    parts = parts_of(TINY)
    exchange(parts.transformer, TINY, Exchanged(plain))
    layer = parts.transformer.transformer_blocks[0].attn1
    tokens = torch.zeros(1, 4, TINY.width_of_tokens)
    with pytest.raises(Unsupported, match="a mask or a rotary embedding was given"):
        layer(hidden_states=tokens, encoder_hidden_states=tokens, attention_mask=torch.zeros(1, 8))


@pytest.mark.parametrize("model", [TINY, WAN], ids=lambda model: model.name)
def test_a_generation_is_the_same_again_and_calls_the_attention_in_every_layer_and_step(model):
    parts, (latents, embeds) = parts_of(model), tensors(model)
    mine, exchanged = parts.with_own_modules(), Exchanged(plain)
    exchange(mine, model, exchanged)
    denoiser = Denoiser(parts, predictor(mine), steps=3, guidance=5.0, device=torch.device("cpu"))
    told: list[int] = []
    first, second = (
        denoiser.generate(3, latents, embeds, decode=False, after=lambda n, _: told.append(n)) for _ in range(2)
    )
    assert torch.equal(first.latents, second.latents)
    assert first.frames is None
    assert told == [1, 2, 3, 1, 2, 3]
    assert exchanged.calls == 2 * 3 * model.layers
    other = denoiser.generate(4, latents, embeds, decode=False)
    assert not torch.equal(other.latents, first.latents)
    assert len(denoiser.times) == 4


def test_guidance_over_one_computes_with_and_without_the_prompt():
    parts, (latents, embeds) = parts_of(TINY), tensors(TINY)
    shapes: list[tuple[int, ...]] = []

    def seen(latents, embeds, timesteps):
        shapes.append((len(latents), len(embeds), len(timesteps)))
        return latents * torch.tensor([1.0, 2.0])[: len(latents)].view(-1, 1, 1, 1, 1)

    found = []
    for guidance, some in ((1.0, embeds[1:]), (2.0, embeds)):
        denoiser = Denoiser(parts, seen, steps=2, guidance=guidance, device=torch.device("cpu"))
        found.append(denoiser.step(1, latents, some))
    assert shapes == [(1, 1, 1), (2, 2, 2)]
    # 1 without, 2 with the prompt, guidance 2: the scheduler is given 1 + 2 (2 - 1) = 3 times the latents.
    expected = denoiser.scheduler.step(3 * latents, denoiser.scheduler.timesteps[1], latents, return_dict=False)[0]
    torch.testing.assert_close(found[1][1], expected)
    assert not torch.equal(found[0][1], found[1][1])


def test_frames_are_those_that_were_asked_for():
    parts, (latents, embeds) = parts_of(TINY), tensors(TINY)
    denoiser = Denoiser(parts, predictor(parts.transformer), steps=1, guidance=6.0, device=torch.device("cpu"))
    one = denoiser.generate(1, latents, embeds)
    assert one.frames.shape == (1, 3, *SMALL["tiny"])
    assert 0 < one.decode_s <= one.total_s


def test_spans_are_recorded_only_where_asked_for():
    spans = Spans()
    exchanged = Exchanged(plain, spans)
    q = torch.randn(1, 8, 2, 16)
    exchanged(q, q, q)
    assert spans.total_ms("attention") == 0
    with spans.recorded():
        exchanged(q, q, q)
        one = spans.total_ms("attention")
        exchanged(q, q, q)
    assert spans.total_ms("attention") > one > 0
    assert spans.total_ms("copies") == 0


def test_a_compiler_sees_one_operator_and_breaks_no_graph():
    parts, (latents, embeds) = parts_of(TINY), tensors(TINY)
    mine, exchanged = parts.with_own_modules(), Exchanged(plain)
    exchange(mine, TINY, opaque(exchanged))
    both, times = torch.cat([latents, latents]), torch.tensor([900, 900])
    found = torch._dynamo.explain(predictor(mine))(both, embeds, times)
    assert (found.graph_count, found.graph_break_count) == (1, 0)
    calls = [node for node in found.graphs[0].graph.nodes if "video_attention" in str(node.target)]
    assert len(calls) == TINY.layers
    assert not [node for node in found.graphs[0].graph.nodes if "scaled_dot_product" in str(node.target)]
    before = exchanged.calls
    with torch.no_grad():
        torch.testing.assert_close(
            predictor(mine, exchanged)(both, embeds, times), predict(parts.transformer, TINY), rtol=0, atol=3e-6
        )
    assert exchanged.calls == before + TINY.layers


# ── a local folder ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights")
    parts = parts_of(TINY, seed=3)
    for name in ("transformer", "vae", "scheduler"):
        getattr(parts, name).save_pretrained(path / name)
    return path


def test_a_local_folder_gives_its_own_weights(folder):
    mine = local_parts(TINY, SMALL["tiny"], folder, dtype=torch.float32, device="cpu")
    other = parts_of(TINY, seed=3)
    assert torch.equal(predict(mine.transformer, TINY), predict(other.transformer, TINY))
    assert mine.scheduler.config["prediction_type"] == "v_prediction"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("transformer/config.json", None, "has no transformer/config.json; a diffusers folder with transformer, vae"),
        ("vae/config.json", None, "has no vae/config.json"),
        ("scheduler/scheduler_config.json", "{", "is not JSON"),
        ("transformer/diffusion_pytorch_model.safetensors", None, "has no transformer/*.safetensors"),
        ("transformer/config.json", {"num_layers": 30}, "transformer num_layers=30 is not that of model=tiny; 2"),
        ("transformer/config.json", {"_class_name": "WanTransformer3DModel"}, "is not that of model=tiny"),
        ("vae/diffusion_pytorch_model.safetensors", "no weights", "weights="),
    ],
)
def test_a_folder_that_is_not_whole_or_of_another_model_is_refused(folder, tmp_path, name, text, said):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    if text is None:
        (copy / name).unlink()
    else:
        (copy / name).write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(UsageError) as refused:
        local_parts(TINY, SMALL["tiny"], copy, dtype=torch.float32, device="cpu")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


class Pickled:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.popitem(), "weights=copy/transformer lacks 1 tensors of the model, "),
        (
            lambda tensors: tensors.update({"proj_out.bias": torch.zeros(7)}),
            "weights=copy/transformer proj_out.bias=[7] does not fit the model; [16]",
        ),
    ],
)
def test_tensors_that_are_missing_or_of_another_shape_are_named(folder, tmp_path, change, said):
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(folder, tmp_path / "copy")
    place = copy / "transformer/diffusion_pytorch_model.safetensors"
    tensors = load_file(place)
    change(tensors)
    save_file(tensors, place)
    with pytest.raises(UsageError) as refused:
        local_parts(TINY, SMALL["tiny"], copy, dtype=torch.float32, device="cpu")
    assert said in str(refused.value)


def test_a_pickle_is_not_opened(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    place = copy / "transformer/diffusion_pytorch_model.safetensors"
    place.rename(copy / "transformer/other.safetensors")
    torch.save(Pickled(tmp_path / "opened"), place.with_suffix(".bin"))
    with pytest.raises(UsageError, match="weights=copy/transformer cannot be read"):
        local_parts(TINY, SMALL["tiny"], copy, dtype=torch.float32, device="cpu")
    assert not (tmp_path / "opened").exists()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"weights=nowhere has no transformer/config\.json"):
        check_folder(TINY, tmp_path / "nowhere")


def test_tiny_models_differ_from_their_originals_in_size_alone():
    for small, large in (("tiny", "cogvideox-2b"), ("tiny-wan", "wan-1.3b")):
        one, other = MODELS[small], MODELS[large]
        assert replace(one, scheduler={}).family == other.family
        assert one.scheduler == other.scheduler
