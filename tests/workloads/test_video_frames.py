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
