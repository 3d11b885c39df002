"""Tensors of the attention saved as files: those of the requested layers and steps only."""

from __future__ import annotations

import pytest
import torch

from attnbench.cli import main
from attnbench.errors import UsageError
from attnbench.workloads.base import load_workload
from attnbench.workloads.video.capture import FOLDER, LAYERS, STEPS, Wanted, ask, captured, numbers, wanted

WORKLOAD = load_workload("video")


@pytest.fixture
def nothing_asked(monkeypatch):
    for name in (FOLDER, LAYERS, STEPS):
        monkeypatch.setenv(name, "")


def test_the_tensors_are_those_of_the_layers_and_steps_asked_for(tmp_path):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    from safetensors.torch import load_file

    from attnbench.models.video.attention import plain

    one = WORKLOAD.case({"model": "tiny", "height": 16, "width": 32, "dtype": "bf16", "steps": 3})
    inputs, seen = WORKLOAD.inputs(one, seed=1, kind="normal", device="cpu"), []

    def attend(q, k, v):
        seen.append((q.clone(), k.clone(), v.clone()))
        return plain(q, k, v)

    denoiser, attention = inputs.denoiser(attend)
    assert captured(inputs, denoiser, attention, Wanted(tmp_path, (1,), (1, 3))) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{one.id}-layer1-step{step}.safetensors" for step in (1, 3)
    ]
    for step in (1, 3):
        found = load_file(tmp_path / f"{one.id}-layer1-step{step}.safetensors")
        for name, right in zip("qkv", seen[2 * (step - 1) + 1], strict=True):
            assert torch.equal(found[name], right)
            assert found[name].shape == (2, one.tokens, 4, 16)
    assert attention.look is None
    for layers, steps, said in (
        ((2,), (1,), "--capture-layers=2 is not there in .*; at most 1"),
        ((0,), (4,), "--capture-steps=4 is not there in .*; at most 3"),
    ):
        with pytest.raises(UsageError, match=said):
            captured(inputs, denoiser, attention, Wanted(tmp_path, layers, steps))


def test_what_is_asked_for_reaches_the_worker(tmp_path, nothing_asked):
    assert wanted() is None
    ask("me", str(tmp_path / "new"), "0,29", "1", [])
    assert wanted() == Wanted(tmp_path / "new", (0, 29), (1,))
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("text", ["", "1,", "a", "-1", "1.5", "0", "1 2", "9999999"])
def test_a_list_that_is_none(text):
    with pytest.raises(UsageError, match="cannot be used; whole numbers from 1, with commas between"):
        numbers("me", "--capture-steps", text, 1)


def test_a_folder_that_cannot_be_made(tmp_path, nothing_asked, capsys):
    (tmp_path / "file").write_text("")
    assert main(["run", "video", "--device", "cpu", "--capture", str(tmp_path / "file")]) == 2
    assert "--capture=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quick", "--capture", "there"], "--capture=there is not for the workload attention; a suite of the workload"),
        (
            ["video", "--capture-layers", "1"],
            "--capture-layers=1 says what to capture, and nothing is; beside --capture",
        ),
        (["video", "--capture-steps", "1"], "--capture-steps=1 says what to capture"),
        (["video", "--capture", "there", "--capture-layers", "0,9"], "--capture-layers=9 is not there in tiny-"),
        (["video", "--capture", "there", "--capture-steps", "5"], "--capture-steps=5 is not there in tiny-"),
        (["video", "--capture", "there", "--generations", "0"], "--capture=there needs a generation to look at"),
        (["video", "--capture", "there", "--resume", "1a2b"], "--capture=there does not go with --resume; a new run"),
    ],
)
def test_what_cannot_be_captured_is_refused_before_anything_is_measured(
    words, said, tmp_path, nothing_asked, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *words, "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "there").exists()
    assert wanted() is None


def test_a_folder_that_cannot_be_written_to(nothing_asked, tmp_path, monkeypatch):
    def refuse(**words):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("attnbench.workloads.video.capture.TemporaryFile", refuse)
    with pytest.raises(UsageError, match=r"cannot be written to \(Permission denied\); a folder"):
        ask("me", str(tmp_path), "0", "1", [])
