"""Weights in safetensors files: the exact format, and truncated, foreign or corrupt files."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
import torch

from attnbench.errors import UsageError
from attnbench.models.hstu_ranking.checkpoint import check, load, read, save
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.model import HstuRanking

TINY = replace(config_of("tiny"), layers=1)


def raw(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_model_comes_back_as_it_was(tmp_path, dtype):
    model, other = (HstuRanking(TINY, seed=seed, dtype=dtype) for seed in (1, 2))
    save(model, tmp_path / "weights.safetensors")
    load(other, tmp_path / "weights.safetensors")
    assert all(torch.equal(weight, other.state_dict()[name]) for name, weight in model.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


def test_weights_of_another_precision_are_converted(tmp_path):
    exact, rounded = HstuRanking(TINY, seed=1, dtype=torch.float32), HstuRanking(TINY, seed=2)
    save(exact, tmp_path / "w")
    load(rounded, tmp_path / "w")
    assert torch.equal(rounded.tokens.table, exact.tokens.table.bfloat16())


def test_the_format_is_the_published_one(tmp_path):
    """A file made by hand, odd places and other people's keys included, and our own file read by hand."""
    data = b"\x00" + torch.tensor([1.5, -2.0]).numpy().tobytes() + torch.tensor(3.0).numpy().tobytes()
    (tmp_path / "foreign").write_bytes(
        raw(
            {
                "__metadata__": {"format": "pt"},
                "a": entry(offsets=(1, 9)),
                "b": entry(shape=(), offsets=(9, 13)),
                "none": entry(shape=(0, 3), offsets=(0, 0)),
            },
            data,
        )
    )
    found = read(tmp_path / "foreign")
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [1.5, -2.0], "b": 3.0, "none": []}
    layer = torch.nn.Linear(2, 1)
    save(layer, tmp_path / "ours")
    written = (tmp_path / "ours").read_bytes()
    length = int.from_bytes(written[:8], "little")
    header = json.loads(written[8 : 8 + length])
    assert length % 8 == 0
    assert header == {"weight": entry(shape=(1, 2)), "bias": entry(shape=(1,), offsets=(8, 12))}
    assert written[8 + length :] == b"".join(x.detach().numpy().tobytes() for x in (layer.weight, layer.bias))


SPOILT = {
    "no-file": (None, r"cannot be read \(No such file or directory\)"),
    "empty": (b"", "has no header that fits its size"),
    "short-header": (raw({"a": entry()})[:20], "has no header that fits its size"),
    "huge-header": ((2**62).to_bytes(8, "little") + b"{}", "has no header that fits its size"),
    "pickle": (pickle.dumps({"a": [1.0] * 40}), "has no header that fits its size"),
    "no-json": (raw(b"{wrong"), "has a header that is no JSON"),
    "nested": (raw(b'{"a":' * 100_000), "has a header that is no JSON"),
    "no-text": (raw(b"\xff\xfe\xfd"), "has a header that is no JSON"),
    "a-list": (raw([1, 2]), "has a header that is no object"),
    "cut-short": (raw({"a": entry()}, b"\0" * 7), "is cut short at 'a', or says a wrong size of it"),
    "wrong-size": (raw({"a": entry(shape=(3,))}, b"\0" * 8), "is cut short at 'a', or says a wrong size of it"),
    "negative": (raw({"a": entry(offsets=(-8, 0))}, b"\0" * 8), "is cut short at 'a', or says a wrong size of it"),
    "a-fraction": (raw({"a": entry(shape=(2.0,))}, b"\0" * 8), "is cut short at 'a', or says a wrong size of it"),
    "an-overflow": (
        raw({"a": entry(shape=(0, 2**70), offsets=(0, 0))}),
        "is cut short at 'a', or says a wrong size of it",
    ),
    "many-dims": (
        raw({"a": entry(shape=(0,) * 200, offsets=(0, 0))}),
        "is cut short at 'a', or says a wrong size of it",
    ),
    "integers": (raw({"a": entry(dtype="I64", shape=(1,))}, b"\0" * 8), "says of 'a' what is not understood"),
    "no-offsets": (raw({"a": {"dtype": "F32", "shape": [2]}}, b"\0" * 8), "says of 'a' what is not understood"),
    "no-object": (raw({"a": 3}), "says of 'a' what is not understood"),
    "a-name-of-lines": (raw({"a\nb" * 99: 3}), r"says of 'a\\nba\\nb[abn.\\]*' what is not understood"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_files_are_refused_in_one_line(tmp_path, name):
    content, said = SPOILT[name]
    if content is not None:
        (tmp_path / "w").write_bytes(content)
    for ask in (read, lambda path: check(HstuRanking(TINY, device="meta"), path)):
        with pytest.raises(UsageError, match=f"^checkpoint: file=w {said}; a safetensors file"):
            ask(tmp_path / "w")


def test_weights_of_another_model_change_nothing(tmp_path):
    model = HstuRanking(TINY)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for change, said in (
        ({"layers": 2}, "file=w has weights the model has not, such as 'layers.1"),
        ({"items": 60}, r"tokens.table=\[78, 32\] is another model's; \[68, 32\]"),
        ({"head": (16,)}, "file=w has no weights towers.weights.1; all weights of the model"),
    ):
        save(HstuRanking(replace(TINY, **change), seed=1), tmp_path / "w")
        for ask in (check, load):
            with pytest.raises(UsageError, match=f"checkpoint: {said}"):
                ask(model, tmp_path / "w")
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
