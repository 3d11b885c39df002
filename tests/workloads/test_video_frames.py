"""PSNR and SSIM against their definitions, and a generation whose first steps are dense."""

from __future__ import annotations

import pytest
import torch

from attnbench.workloads.base import load_workload
from attnbench.workloads.video.frames import as_frames, psnr, ssim

WORKLOAD = load_workload("video")


def frames(seed=0):
    return torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(seed))


def test_psnr_is_the_mean_square_in_decibels():
    one = frames()
    assert psnr(one, one + 0.1) == pytest.approx(20.0, abs=1e-5)
    assert psnr(one, one) == 100.0
    worse = torch.stack([one[0] + 0.1, one[1] + 0.01])  # the mean over frames, not over all squares
    assert psnr(one, worse) == pytest.approx((20 + 40) / 2, abs=1e-4)


def test_ssim_is_one_of_equal_frames_and_follows_its_formula():
    one, other = frames(0), frames(1)
    assert ssim(one, one) == pytest.approx(1.0)
    assert abs(ssim(one, other)) < 0.2
    # Constant frames have no variance: (2 a b + c1) / (a² + b² + c1).
    a, b, c1 = 0.2, 0.6, 0.01**2
    grey = [torch.full((1, 3, 16, 16), value) for value in (a, b)]
    assert ssim(*grey) == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), rel=1e-4)


def test_frames_are_taken_out_of_a_decoders_range():
    video = torch.linspace(-2, 2, 3 * 5 * 4 * 6).view(1, 3, 5, 4, 6)
    found = as_frames(video)
    assert found.shape == (5, 3, 4, 6)
    assert (float(found.min()), float(found.max())) == (0.0, 1.0)
    assert found[2, 1, 0, 0] == pytest.approx(float(video[0, 1, 2, 0, 0]) / 2 + 0.5)


def test_the_first_steps_of_a_sparse_generation_are_dense():
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    from attnbench.models.video.attention import Exchanged, plain
    from attnbench.workloads.video.generation import generate_all

    one = WORKLOAD.case(
        {"model": "tiny", "height": 16, "width": 32, "dtype": "fp32", "steps": 3, "warm_ups": 0, "dense_steps": 2}
    )
    inputs = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu")
    dense: list[None] = []

    def densely(q, k, v):
        dense.append(None)
        return plain(q, k, v)

    denoiser, attention = inputs.denoiser(Exchanged(plain, dense=densely))
    found = generate_all(one, inputs, denoiser, attention, who="mine")
    assert len(dense) == 2 * 2  # layers of the first two steps
    assert found.calls == 3 * 2
    assert not attention.is_dense
    assert "frames_psnr_db" not in found.further


def network(path, seed=0):
    """LPIPS's network with drawn weights, those of the last layers not negative, as trained ones are."""
    from safetensors.torch import save_file

    from attnbench.workloads.video.lpips import _shapes

    drawn = torch.Generator().manual_seed(seed)
    tensors = {name: 0.05 * torch.randn(shape, generator=drawn) for name, shape in _shapes()}
    save_file({name: x.abs() if name.startswith("lin") else x for name, x in tensors.items()}, path)
    return path


def test_lpips_follows_its_definition(tmp_path):
    from attnbench.workloads.video.lpips import LAYERS, load, lpips

    found = load(network(tmp_path / "net.safetensors"), torch.device("cpu"))
    one, other = (torch.rand(2, 3, 64, 48, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert lpips(one, one, found) == 0
    assert lpips(one, other, found) == pytest.approx(lpips(other, one, found))
    assert lpips(one, one.lerp(other, 0.1), found) < lpips(one, other, found)
    # The same by torch's modules.
    layers = torch.nn.ModuleList([torch.nn.Conv2d(i, o, k, s, p) for _, i, o, k, s, p in LAYERS])
    for (place, *_), layer in zip(LAYERS, layers, strict=True):
        layer.load_state_dict({name: found[f"features.{place}.{name}"] for name in ("weight", "bias")})
    pool, total = torch.nn.MaxPool2d(3, 2), 0.0
    colours = ((-0.030, 0.458), (-0.088, 0.448), (-0.188, 0.450))
    x, y = (torch.stack([(2 * z[:, c] - 1 - s) / t for c, (s, t) in enumerate(colours)], 1) for z in (one, other))
    with torch.no_grad():
        for number, layer in enumerate(layers):
            if number in (1, 2):
                x, y = pool(x), pool(y)
            x, y = layer(x).relu(), layer(y).relu()
            unit = [z / (z.square().sum(1, keepdim=True).sqrt() + 1e-10) for z in (x, y)]
            weights = found[f"lin{number}.model.1.weight"].view(1, -1, 1, 1)
            total += ((unit[0] - unit[1]).square() * weights).sum(1).mean((1, 2))
    assert lpips(one, other, found) == pytest.approx(float(total.mean()), rel=1e-4)


def test_a_network_that_is_another_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    from attnbench.errors import UsageError
    from attnbench.workloads.given_files import known_as
    from attnbench.workloads.video.lpips import load

    path = network(tmp_path / "net.safetensors")
    tensors = load_file(path)
    save_file({name: x for name, x in tensors.items() if name != "features.8.bias"}, path)
    said = r"video: lpips=net\.safetensors features\.8\.bias=nothing does not fit LPIPS"
    with pytest.raises(UsageError, match=said):
        load(path, torch.device("cpu"))
    # Before a model is made: what is asked for behind a whole generation would be missed late.
    (tmp_path / "mine").mkdir()
    given = {"lpips": known_as(str(path)), "weights": known_as(str(tmp_path / "mine"), kind="folder")}
    with pytest.raises(UsageError, match=said):
        WORKLOAD.inputs(WORKLOAD.case({"model": "tiny"} | given), seed=1, kind="normal", device="cpu")


@pytest.mark.parametrize("given", [False, True])
def test_pictures_are_compared_with_weights_and_without_them_null_has_its_reason(given, tmp_path):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    from attnbench.models.video.attention import plain
    from attnbench.models.video.build import random_parts
    from attnbench.models.video.config import MODELS
    from attnbench.workloads.given_files import known_as
    from attnbench.workloads.video.generation import PICTURES, generate_all

    shape = {"model": "tiny", "height": 32, "width": 48, "frames": 5, "dtype": "fp32", "steps": 2, "warm_ups": 0}
    if given:
        parts = random_parts(MODELS["tiny"], (5, 32, 48), seed=5, dtype=torch.float32, device="cpu")
        for name in ("transformer", "vae", "scheduler"):
            getattr(parts, name).save_pretrained(tmp_path / "mine" / name)
        shape |= {"weights": known_as(str(tmp_path / "mine"), kind="folder")}
        shape |= {"lpips": known_as(str(network(tmp_path / "net.safetensors")))}
    one = WORKLOAD.case(shape)
    inputs = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu")
    first, again, other = (
        generate_all(one, inputs, *inputs.denoiser(attend), who=who)
        for who, attend in (("exact", plain), ("exact", plain), ("rough", lambda q, k, v: 0.9 * plain(q, k, v)))
    )
    assert first.further["latents_crc32"] == again.further["latents_crc32"] != other.further["latents_crc32"]
    assert not set(PICTURES) & {*first.further, *again.further}
    if given:
        assert 5 < other.further["frames_psnr_db"] < 100
        assert other.further["frames_ssim"] < 1
        assert other.further["frames_lpips"] > 0
        decoded = "frames=5 were decoded to 8: this decoder makes 8k + 1 frames or 8k"
        assert other.notes == ("latents are compared with those of exact", decoded)
    else:
        assert [other.further[name] for name in PICTURES] == [None] * 3
        assert other.notes[1] == "no PSNR, SSIM and LPIPS: random weights make no pictures"


def test_each_generation_has_its_time():
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    from attnbench.models.video.attention import plain
    from attnbench.workloads.video.generation import generate_all

    shape = {"model": "tiny", "height": 32, "width": 32, "dtype": "fp32", "steps": 1, "warm_ups": 0, "generations": 2}
    one = WORKLOAD.case(shape)
    inputs = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu")
    found = generate_all(one, inputs, *inputs.denoiser(plain), who="mine")
    told, (first, second) = found.counters(), found.total_s
    assert (told["generation_s_1"], told["generation_s_2"]) == (first, second)
    assert told["generation_s"] == pytest.approx((first + second) / 2)
    assert f"generations took {first:.4g}, {second:.4g} s" in found.notes
