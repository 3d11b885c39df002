"""Suite files with arbitrary content, planned on both kinds of device."""

from __future__ import annotations

import copy

from attack import TEXTS, bytes_spoilt, spoilt, value

SUITE = {
    "name": "mine",
    "title": "long sequences",
    "workload": "attention",
    "backends": ["sdpa*", "eager|sdpa"],
    "baseline": "eager",
    "layout": "seed-004",
    "settings": {"rel_ci": 0.01, "max_seconds": 2.0, "seed": 3},
    "axes": {"seqlen": [16, 32], "nheads": [2], "headdim": [8], "causal": [False, True], "dtype": ["fp32"]},
    "batch_by_seqlen": {"16": 4, "32": [1, 2]},
    "env": {"nheads": "NHEADS"},
    "cpu": {"backends": ["eager"], "axes": {"seqlen": [16], "window": ["none", "4:0"], "lengths": ["full", "zipf"]}},
}
LISTED = {
    "name": "listed",
    "title": "cases",
    "workload": "hstu",
    "cases": [{"name": "a", "batch": 2, "seqlen": 32, "nheads": 2}, {"batch": 1, "attn_dim": 16, "block_counts": 2}],
    "settings": {"iterations": 5, "warmup": 1, "timer": "wall", "input": "zeros"},
}


def toml(data, top=True):
    """A document of tables, lists and plain values; keys and texts are quoted, the odd letters left in."""
    if isinstance(data, dict):
        pairs = [f"{_text(str(key))} = {toml(item, False)}" for key, item in data.items() if item is not None]
        return "\n".join(pairs) if top else "{ " + ", ".join(pairs) + " }"
    if isinstance(data, list | tuple):
        return "[" + ", ".join(toml(item, False) for item in data if item is not None) + "]"
    if isinstance(data, bool):
        return str(data).lower()
    return str(data) if isinstance(data, int | float) else _text(str(data))


def _text(text):
    shown = "".join(
        letter if letter.isprintable() and letter not in '\\"' else f"\\U{ord(letter):08x}" for letter in text
    )
    return f'"{shown}"'


def test_suites(attack):
    for source in attack.seeds():
        data = copy.deepcopy(source.choice((SUITE, LISTED)))
        if source.random() < 0.2:
            data[source.choice(TEXTS)] = value(source)
        text = toml(spoilt(data, source) if source.random() < 0.9 else data)
        raw = text.encode("utf-8", "surrogatepass")
        (attack.folder / "mine.toml").write_bytes(bytes_spoilt(raw, source) if source.random() < 0.3 else raw)
        attack.call(["run", "mine.toml", "--dry-run", "--device", "cpu"], text[:400])
