"""Captures cut anywhere and with bytes changed: the result is a capture or one line, never a traceback."""

from __future__ import annotations

import gzip
import json
import random

import made_up_captures as made
import pytest

from attnbench.errors import AttnbenchError
from attnbench.profile import capture, sources

SEED, TIMES = 7, 24
FORMATS = ("nsys-2023", "nsys-2025", "nsys-2026", "sqlite", "ncu-raw", "ncu-details", "trace", "packed", "own")


@pytest.mark.parametrize("text", ["[" * 200_000, '{"format": "attnbench-capture 1", "captures": ' + "[" * 200_000])
def test_brackets_without_end(text, tmp_path, rules):
    (tmp_path / "deep.json").write_text(text)
    with pytest.raises(AttnbenchError, match="is cut short or is no JSON"):
        sources.read(tmp_path / "deep.json", rules)


def whole(name, folder, rules):
    if name.startswith("nsys-"):
        return next(made.CAPTURES.glob(f"{name}*.txt")).read_bytes()
    if name == "sqlite":
        return made.nsys_sqlite(folder / "whole.sqlite").read_bytes()
    if name == "own":
        path = folder / "whole.csv"
        path.write_text(made.ncu_raw())
        return capture.dumps(sources.read(path, rules)).encode()
    trace = json.dumps(made.torch_trace()).encode()
    return {
        "ncu-raw": made.ncu_raw().encode(),
        "ncu-details": made.ncu_details().encode(),
        "trace": trace,
        "packed": gzip.compress(trace),
    }[name]


def read(path, rules):
    """How many captures came of it, or None and the one line."""
    try:
        return len(sources.read(path, rules)), ""
    except AttnbenchError as error:
        return None, str(error)


@pytest.mark.parametrize("name", FORMATS)
def test_cut_anywhere(tmp_path, rules, name):
    data = whole(name, tmp_path, rules)
    path = tmp_path / "cut"
    refused = 0
    for part in range(TIMES):
        path.write_bytes(data[: len(data) * part // TIMES])
        count, words = read(path, rules)
        refused += count is None
        assert (count is None) == bool(words)
        assert "\n" not in words.strip()
        assert str(tmp_path) not in words
    path.write_bytes(data)
    assert read(path, rules) == (1, "")
    assert refused > 0


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_changed_anywhere(tmp_path, rules, name):
    data = whole(name, tmp_path, rules)
    path, chance = tmp_path / "spoilt", random.Random(SEED)
    for _ in range(TIMES):
        spoilt = bytearray(data)
        for _ in range(chance.choice((1, 3, 20))):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        path.write_bytes(spoilt)
        count, words = read(path, rules)
        assert (count is None) == bool(words)
