"""`attnbench run video --mp4`: the last video of each row as a file."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from attnbench.cli import main
from attnbench.models.video.config import MODELS
from attnbench.workloads.base import load_workload
from attnbench.workloads.video import mp4

WORKLOAD = load_workload("video")


@pytest.fixture
def encoder(monkeypatch):
    """In place of ffmpeg: what is given to it, by file."""
    monkeypatch.delenv(mp4.FOLDER, raising=False)
    monkeypatch.setenv(mp4.FOLDER, "")  # put back behind the test, whoever sets it
    written = {}

    def write_frames(path, size, *, fps):
        frames = []
        try:
            while True:
                frames.append((yield))
        finally:
            written[path] = size, fps, frames

    fake = types.ModuleType(mp4.MODULE)
    fake.write_frames = write_frames
    monkeypatch.setitem(sys.modules, mp4.MODULE, fake)
    monkeypatch.setattr(mp4, "find_spec", lambda name: name)
    return written


def test_frames_are_rows_of_pixels_of_three_bytes(encoder, tmp_path):
    frames = torch.zeros(2, 3, 4, 6)
    frames[1, 0, 0, 1] = 1.0
    mp4.write(tmp_path / "a.mp4", frames, fps=8)
    ((size, fps, (first, second)),) = encoder.values()
    assert (size, fps) == ((6, 4), 8)
    assert first == bytes(6 * 4 * 3)
    assert second[:6] == bytes([0, 0, 0, 255, 0, 0])


def test_the_last_video_of_a_row_is_written_under_the_seeds_name(encoder, tmp_path, monkeypatch):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    from attnbench.models.video.attention import plain
    from attnbench.workloads.video.generation import generate_all

    shape = {"model": "tiny", "height": 32, "width": 48, "frames": 9, "dtype": "fp32", "steps": 1, "warm_ups": 0}
    one = WORKLOAD.case(shape)
    inputs = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu")
    monkeypatch.setenv(mp4.FOLDER, str(tmp_path))
    generate_all(one, inputs, *inputs.denoiser(plain), who="flash-triton:m128n64")
    ((path, (size, fps, frames)),) = encoder.items()
    assert path == str(tmp_path / "tiny_flash-triton_m128n64.mp4")
    assert (size, fps, len(frames)) == ((48, 32), MODELS["tiny"].fps, 9)
    assert {len(one) for one in frames} == {48 * 32 * 3}


def test_nothing_is_written_unless_asked_for(encoder):
    assert mp4.place(WORKLOAD.case({"model": "tiny"}), "sdpa") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quick", "--mp4", "there"], "--mp4=there is not for the workload attention; a suite of the workload video"),
        (["video", "--mp4", "there", "--generations", "0"], "--mp4=there needs a generation to look at"),
        (["video", "--mp4", "there", "--frames", "5,9"], "--mp4=there has one file a row, and there are 2 cases"),
        (["video", "--mp4", "there", "--resume", "1a2b"], "--mp4=there does not go with --resume; a new run"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    words, said, encoder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *words, "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


def test_a_missing_encoder_is_said_with_its_line(encoder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mp4, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "video", "--device", "cpu", "--mp4", "there"]) == 2
    assert "module=imageio_ffmpeg, which is not installed; pip install imageio-ffmpeg" in capsys.readouterr().err
