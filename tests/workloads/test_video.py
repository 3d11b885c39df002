"""The workload `video`: refused cases, exact work, inputs by seed, an oracle that finds wrong attention."""

from __future__ import annotations

import pytest
import torch

from attnbench.errors import UsageError
from attnbench.models.video.attention import ROWS
from attnbench.record import Work
from attnbench.workloads.base import Draw, load_workload
from attnbench.workloads.given_files import known_as
from attnbench.workloads.video import KEPT_ROWS
from attnbench.workloads.video.case import VideoCase
from attnbench.workloads.video.work import attention_flops, weights, work

WORKLOAD = load_workload("video")
TINY = {"model": "tiny", "height": 32, "width": 32, "dtype": "fp32"}
WAN = {"model": "tiny-wan", "height": 32, "width": 32, "dtype": "fp32"}


def case(**values):
    return WORKLOAD.case(TINY | values)


def test_what_is_not_given_follows_the_model():
    cog, wan = WORKLOAD.case({}), WORKLOAD.case({"model": "wan-1.3b"})
    assert cog.id == "cogvideox-2b-f49-480x720-s50-g6-fp16"
    assert wan.id == "wan-1.3b-f81-480x832-s50-g5-fp16"
    assert (cog.tokens, cog.batch, cog.latents) == (17_776, 2, (1, 13, 16, 60, 90))
    assert (wan.tokens, wan.batch, wan.latents) == (32_760, 2, (1, 16, 21, 60, 104))
    assert WORKLOAD.case({"guidance": 1.0}).batch == 1


def test_a_case_is_read_back_from_its_data_and_named_by_every_field():
    one = case(compile="default", generations=2, guidance=2.5, weights="some/where", prompt="p.safetensors")
    assert WORKLOAD.case(one.to_dict()) == one
    assert one.id.startswith("tiny-f9-32x32-s4-g2_5-fp32-compile_default-n2w2-weights")
    assert "some" not in one.id
    assert case(weights="other").id != case(weights="some/where").id
    assert WORKLOAD.flags(case())[:2] == ["--model", "tiny"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"height": 40}, "video: height=40 cannot be used: 16 does not divide it; a multiple of 16"),
        ({"width": 24}, "video: width=24 cannot be used: 16 does not divide it"),
        ({"width": 0}, "video: width=0 cannot be used; a whole number from 16 to 8192"),
        ({"height": 1_000_000}, "video: height=1000000 cannot be used; a whole number from 16 to 8192"),
        ({"frames": 10}, "video: frames=10 is not of the form 4k + 1; 1, 5, 9, …; the nearest is 9"),
        ({"frames": 0}, "video: frames=0 cannot be used; a whole number from 1 to 1025"),
        ({"frames": 9.0}, "video: frames=9.0 cannot be used"),
        ({"steps": 0}, "video: steps=0 cannot be used; a whole number from 1 to 1000"),
        ({"steps": -5}, "video: steps=-5 cannot be used; a whole number from 1 to 1000"),
        ({"guidance": -1}, "video: guidance=-1 cannot be used; a finite number from 0"),
        ({"guidance": float("nan")}, "video: guidance=nan cannot be used"),
        ({"guidance": "6"}, "video: guidance=6 cannot be used"),
        ({"dtype": "fp8"}, "video: dtype=fp8"),
        ({"compile": "fast"}, "video: compile=fast"),
        ({"model": "sora"}, "video: model=sora"),
        ({"generations": -1}, "video: generations=-1 cannot be used"),
        ({"weights": ""}, "video: weights= is no name"),
        (
            {"lpips": "net@1234"},
            "video: lpips=net compares frames, and random weights make none that say anything; beside",
        ),
    ],
)
def test_what_is_not_possible_is_refused_by_its_field(values, said):
    with pytest.raises(UsageError) as refused:
        case(**values)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_the_work_of_the_published_shapes():
    cog = WORKLOAD.case({})
    assert attention_flops(cog) == 2 * 30 * 4 * 30 * 64 * 17_776**2
    assert work(cog).flops == pytest.approx(240.0e12, rel=1e-3)
    assert attention_flops(cog) / work(cog).flops == pytest.approx(0.607, abs=0.001)
    assert weights(cog.config) == pytest.approx(1_693_783_872, rel=2e-3)
    assert isinstance(work(cog), Work)


def test_a_case_that_does_not_fit_becomes_shorter():
    assert WORKLOAD.shrink(WORKLOAD.case({}), 0.5).frames == 25
    assert WORKLOAD.shrink(case(frames=1), 0.5) is None


# ── with the model ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _diffusers(request):
    if "made" in request.fixturenames:
        pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")


@pytest.fixture
def made():
    return lambda one, seed=1, kind="normal": WORKLOAD.inputs(one, seed=seed, kind=kind, device="cpu")


@pytest.mark.parametrize("values", [TINY, WAN, TINY | {"guidance": 1.0}, TINY | {"frames": 1, "width": 48}], ids=str)
def test_the_work_is_what_torch_counts(made, values):
    from torch.utils.flop_counter import FlopCounterMode

    from attnbench.workloads.video.oracle import evaluate

    one = WORKLOAD.case(values)
    inputs = made(one)
    with FlopCounterMode(display=False) as counted:
        evaluate(inputs, dtype=torch.float32)
    model, uncounted = one.config, 0
    if not model.joint:  # torch counts no fused attention on a CPU: that to the text
        uncounted = one.batch * model.layers * 4 * model.width_of_tokens * one.tokens * model.text_tokens
    assert work(one).flops == counted.get_total_flops() + uncounted


def test_inputs_follow_the_seed_and_share_one_model(made):
    first, again, other = made(case(), 1), made(case(), 1), made(case(), 2)
    assert first.parts is other.parts
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, again.tensors()[name])
        assert not torch.equal(tensor, other.tensors()[name])
    assert first.latents.shape == case().latents
    assert first.embeds.shape == (2, 16, 32)
    assert not made(case(), kind="zeros").latents.any()
    with pytest.raises(UsageError, match="video: input"):
        made(case(), kind="wild")


def test_weights_that_memory_has_no_room_for_are_refused(made, monkeypatch):
    monkeypatch.setattr("attnbench.workloads.video.inputs.available_memory", lambda: 4096 * 10**6)
    with pytest.raises(MemoryError, match=r"the weights of model cogvideox-2b take 3.4 GB, 4.1 GB are free"):
        made(WORKLOAD.case({}))


def test_embeddings_come_from_a_file(made, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "prompt.safetensors"
    mine = {name: torch.randn(1, 16, 32) for name in ("prompt_embeds", "negative_prompt_embeds")}
    save_file(mine, path)
    found = made(case(prompt=known_as(str(path)))).embeds
    assert torch.equal(found, torch.cat([mine["negative_prompt_embeds"], mine["prompt_embeds"]]))
    alone = made(case(prompt=known_as(str(path)), guidance=0.0)).embeds
    assert torch.equal(alone, mine["prompt_embeds"])
    save_file({"prompt_embeds": torch.randn(1, 8, 32)}, path)
    with pytest.raises(UsageError, match=r"prompt=prompt.safetensors negative_prompt_embeds=nothing does not fit"):
        made(case(prompt=known_as(str(path))))
    with pytest.raises(UsageError, match=r"prompt_embeds=\[1, 8, 32\] does not fit the model; \[1, 16, 32\]"):
        made(case(prompt=known_as(str(path)), guidance=1.0))
    save_file(mine | {"prompt_embeds": torch.full((1, 16, 32), torch.nan)}, path)
    with pytest.raises(UsageError, match=r"prompt=prompt\.safetensors prompt_embeds is not finite; finite embeddings"):
        made(case(prompt=known_as(str(path))))


@pytest.mark.parametrize("values", [TINY, TINY | {"dtype": "bf16"}, WAN | {"dtype": "fp16"}], ids=str)
def test_an_honest_evaluation_is_within_what_rounding_explains_and_wrong_attention_is_not(made, values):
    one = WORKLOAD.case(values)
    inputs = made(one)
    truth = WORKLOAD.oracle("step", one, inputs, dtype=torch.float64, draw=Draw())
    expected = WORKLOAD.expected_errors("step", one, inputs, draw=Draw())
    mine = WORKLOAD.oracle("step", one, inputs, dtype=inputs.latents.dtype, draw=Draw())
    for name, right in truth.items():
        off = (mine[name] - right).square().mean().sqrt() / expected[name].square().mean().sqrt()
        assert 0.2 < off < 1.5
    for _, wrong in WORKLOAD.suspects("step", one, inputs, draw=Draw()):
        off = (wrong["attention"] - truth["attention"]).abs().max() / expected["attention"].square().mean().sqrt()
        assert off > 50
    assert truth["out"].shape == (2, *one.latents[1:])
    assert WORKLOAD.select(one, truth, Draw()).keys() == {"out", "latents", "attention"}
    assert KEPT_ROWS == ROWS


@pytest.mark.parametrize("variant", ["step", "sparse-step"])
def test_of_further_data_of_a_large_step_the_first_layer_is_checked(made, variant, monkeypatch):
    one = case(height=64, width=96, frames=17, block="64x64", density=0.5)
    whole = WORKLOAD.draw(one, seed=0, max_bytes=2**31)
    assert whole == WORKLOAD.draw(one, seed=0, max_bytes=1)
    monkeypatch.setattr("attnbench.workloads.video.LARGE_FLOPS", 0)
    assert WORKLOAD.draw(one, seed=0, max_bytes=2**31) == whole
    part = WORKLOAD.draw(one, seed=0, max_bytes=2**28)
    assert part.unit == "layers"
    inputs = made(one)
    all_of_it, first = (WORKLOAD.oracle(variant, one, inputs, dtype=torch.float64, draw=d) for d in (whole, part))
    assert list(first) == ["attention"]
    assert torch.equal(first["attention"], all_of_it["attention"])
    assert list(WORKLOAD.expected_errors(variant, one, inputs, draw=part)) == ["attention"]


def test_a_generation_that_is_not_finite_names_the_step(made):
    from attnbench.errors import AttnbenchError
    from attnbench.models.video.attention import plain
    from attnbench.workloads.video.generation import generate_all

    one = case(warm_ups=0)
    inputs, calls = made(one), []

    def breaks(q, k, v):
        calls.append(None)
        return plain(q, k, v) * (float("nan") if len(calls) > 2 * 2 else 1)  # two layers, from the third step on

    denoiser, exchanged = inputs.denoiser(breaks)
    with pytest.raises(AttnbenchError, match="mine: latents=nan after step 3 of 4 are not finite"):
        generate_all(one, inputs, denoiser, exchanged, who="mine")


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        ({"frames": 5}, ("frames=5 were decoded to 8: this decoder makes 8k + 1 frames or 8k",)),
        ({"frames": 9}, ()),
        (WAN | {"frames": 5}, ()),
    ],
)
def test_a_decoder_that_makes_other_frames_than_were_asked_for_is_noted(made, values, notes):
    from attnbench.models.video.attention import plain
    from attnbench.workloads.video.generation import generate_all

    one = case(**{"warm_ups": 0, "steps": 1} | values)
    inputs = made(one)
    assert generate_all(one, inputs, *inputs.denoiser(plain), who="mine").notes == notes


def test_without_a_generation_nothing_is_warmed_up(made):
    from attnbench.models.video.attention import plain
    from attnbench.workloads.video.generation import generate_all

    one = case(generations=0, steps=3, height=32, width=32)
    assert one.warm_ups == 2
    assert WORKLOAD.calls_after(one) == 0 < WORKLOAD.calls_after(case(warm_ups=2))
    inputs = made(one)
    denoiser, exchanged = inputs.denoiser(plain)
    denoiser.generate = lambda *_, **__: pytest.fail("a generation nobody asked for")
    found = generate_all(one, inputs, denoiser, exchanged, who="mine").counters()
    assert "attention_rel_l1_layer_0" in found
    assert "generations" not in found


def test_the_error_of_the_attention_in_place_is_that_of_drawn_rows():
    from attnbench.models.video.attention import plain
    from attnbench.workloads.video.generation import rows_error

    q, k, v = (torch.randn(2, 40, 3, 16, dtype=torch.float64) for _ in range(3))
    right = plain(q, k, v)
    assert rows_error(q, k, v, right) < 1e-12
    assert rows_error(q, k, v, 1.1 * right) == pytest.approx(0.1)


def test_the_error_in_place_is_that_of_the_first_and_of_the_last_step(made):
    from attnbench.models.video.attention import plain
    from attnbench.workloads.video.generation import generate_all

    one = case(warm_ups=0, steps=3, height=32, width=32)
    inputs = made(one)

    def drifts(q, k, v):
        return plain(q, k, v) * (1.1 if late[0] else 1.0)

    late = [False]
    denoiser, exchanged = inputs.denoiser(drifts)
    step = denoiser.step

    def told(index, latents, embeds):
        late[0] = index == 2
        return step(index, latents, embeds)

    denoiser.step = told
    found = generate_all(one, inputs, denoiser, exchanged, who="mine").further
    for layer in (0, 1):
        assert found[f"attention_rel_l1_layer_{layer}"] < 1e-4
        assert found[f"attention_rel_l1_layer_{layer}_step_3"] == pytest.approx(0.1, rel=1e-3)
    assert VideoCase(model="tiny").config.layers == 2
