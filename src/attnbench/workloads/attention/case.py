"""One problem of dense softmax attention: its shape, its mask, its precision, its lengths.

Query i of a sequence with Sq queries and Sk keys is at key position ``i + Sk - Sq`` (bottom-right
alignment: the last query sees the last key).  A causal mask hides every key right of that position; a
window (left, right) hides keys further away than that.  A query that sees no key at all
(such rows exist for causal with Sq > Sk) has the output 0, contributes no gradient and counts as no work.

Imports without torch.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from attnbench.errors import UsageError, refusal, unknown

ACCEPTED_DTYPES = ("fp32", "fp16", "bf16")
"Names in `dtypes.DTYPES` for which this family has inputs, an oracle and kernels."
MODES = ("fwd", "bwd", "fwd-bwd")
ACCEPTED_LENGTHS = (
    "full, uniform, zipf, or a length for each sequence: 100:200:7 (queries), 100/50:200/60:7/9 (queries/keys)"
)

LARGEST_SIZE = 2**24
"Larger than any tensor that fits on a device, so that typing errors are refused before anything is allocated."

_SAME: Any = None
_SIZES = ("batch", "seqlen", "seqlen_k", "nheads", "nheads_kv", "headdim", "headdim_v")
_EXPLICIT = re.compile(r"\d{1,9}(/\d{1,9})?(:\d{1,9}(/\d{1,9})?)*", re.ASCII)
_LONGEST_SPELLED = 40
_LENGTHS_SEED = "attnbench lengths 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCase:
    """A frozen problem.  Fields with a default that depends on another field are filled in, so none is ever None.

    The softmax scale is 1/sqrt(headdim).

    Raises:
        UsageError: the value of a field is not allowed; the message names the field.
    """

    batch: int
    "number of sequences"
    seqlen: int
    "queries of a sequence (Sq); the most allowed if `lengths` is not full"
    seqlen_k: int = _SAME
    "keys of a sequence (Sk); default: seqlen"
    nheads: int
    "query heads"
    nheads_kv: int = _SAME
    "key and value heads, a divisor of nheads; default: nheads"
    headdim: int
    "size of a query and a key"
    headdim_v: int = _SAME
    "size of a value and an output; default: headdim"
    causal: bool = False
    window: tuple[int, int] | None = None
    "(left, right) in keys; 2²⁴ or more becomes -1, unbounded; causal limits right to 0; None if it hides nothing"
    dtype: str = "fp16"
    mode: str = "fwd"
    lengths: str = "full"
    "full: every sequence is seqlen long (dense); otherwise variable length (packed)"

    def __post_init__(self) -> None:
        for name, partner in (("seqlen_k", "seqlen"), ("nheads_kv", "nheads"), ("headdim_v", "headdim")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, partner))
        for name in _SIZES:
            _check_size(name, getattr(self, name))
        if self.nheads % self.nheads_kv:
            raise UsageError(
                refusal(
                    "attention",
                    "nheads_kv",
                    self.nheads_kv,
                    f"does not divide nheads={self.nheads}",
                    "a divisor of nheads",
                )
            )
        if type(self.causal) is not bool:
            raise UsageError(refusal("attention", "causal", self.causal, "is not a boolean", "true or false"))
        if self.dtype not in ACCEPTED_DTYPES:
            raise unknown("attention", "dtype", self.dtype, ACCEPTED_DTYPES)
        if self.mode not in MODES:
            raise unknown("attention", "mode", self.mode, MODES)
        object.__setattr__(self, "window", _plain_window(self.window, self.causal))
        object.__setattr__(self, "lengths", _plain_lengths(self))

    @property
    def id(self) -> str:
        """Short name such as ``b2-s1024-h8-d64-fp16-causal-fwd``, without fields that equal their default."""
        parts = [f"b{self.batch}", f"s{self.seqlen}"]
        parts += [f"k{self.seqlen_k}"] * (self.seqlen_k != self.seqlen) + [f"h{self.nheads}"]
        parts += [f"kv{self.nheads_kv}"] * (self.nheads_kv != self.nheads) + [f"d{self.headdim}"]
        parts += [f"dv{self.headdim_v}"] * (self.headdim_v != self.headdim) + [self.dtype]
        parts += ["causal"] * self.causal
        if self.window is not None:
            parts.append("w" + "_".join("inf" if bound < 0 else str(bound) for bound in self.window))
        if self.packed:
            parts.append(_short_lengths(self.lengths))
        return "-".join([*parts, self.mode])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; the window is a list of two numbers or None."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        return data | {"window": None if self.window is None else list(self.window)}

    @property
    def packed(self) -> bool:
        """Whether tensors are packed (variable length) instead of padded to [batch, seqlen, …]."""
        return self.lengths != "full"

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """(queries, keys) of each of the `batch` sequences, the same in every process and version."""
        return _sequences(self.lengths, self.batch, self.seqlen, self.seqlen_k)

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Numbers of keys left and right of its own position that a query sees; None is unbounded."""
        left, right = self.window or (-1, -1)
        return None if left < 0 else left, 0 if self.causal else None if right < 0 else right

    @property
    def scale(self) -> float:
        """Factor of the scores before the softmax, 1/sqrt(headdim)."""
        return float(self.headdim**-0.5)

    @property
    def group_size(self) -> int:
        """Query heads that share a KV head: query head h reads KV head ``h // group_size``."""
        return self.nheads // self.nheads_kv

    @property
    def has_backward(self) -> bool:
        """Whether a launch of this case computes gradients."""
        return self.mode != "fwd"


def read_lengths(text: str) -> tuple[tuple[int, int | None], ...] | None:
    """Parse explicit lengths: (queries, keys or None) of each sequence; None for a named distribution.

    Raises:
        ValueError: it is neither; the message says what is accepted.
    """
    if text in ("full", "uniform", "zipf"):
        return None
    if not _EXPLICIT.fullmatch(text):
        raise ValueError(ACCEPTED_LENGTHS)
    pairs = (item.split("/") for item in text.split(":"))
    return tuple((int(pair[0]), int(pair[1]) if len(pair) > 1 else None) for pair in pairs)


def _check_size(name: str, value: object) -> None:
    accepted = f"a whole number from 1 to {LARGEST_SIZE}"
    if type(value) is not int:
        raise UsageError(refusal("attention", name, value, "is not a whole number", accepted))
    if not 1 <= value <= LARGEST_SIZE:
        raise UsageError(refusal("attention", name, value, "is out of range", accepted))


def _plain_window(window: object, causal: bool) -> tuple[int, int] | None:
    if window is None:
        return None
    if not (isinstance(window, tuple) and len(window) == 2 and all(type(bound) is int for bound in window)):
        raise UsageError(
            refusal(
                "attention",
                "window",
                window,
                "is not a window",
                "two whole numbers (left, right), -1 for unbounded, or none",
            )
        )
    left, right = window
    if min(left, right) < -1:
        raise UsageError(
            refusal(
                "attention",
                "window",
                f"{left}:{right}",
                "is negative",
                "keys to the left and right from 0, -1 for unbounded",
            )
        )
    # No sequence is longer, so such a bound hides nothing, and libraries accept no number over 32 bits.
    left, right = (-1 if bound >= LARGEST_SIZE else bound for bound in (left, right))
    if causal:
        right = 0
    return None if left < 0 and (causal or right < 0) else (left, right)


def _plain_lengths(case: AttentionCase) -> str:
    """Check lengths against batch and seqlen and bring explicit ones to their shortest form."""

    def refuse(wrong: str, accepted: str = ACCEPTED_LENGTHS) -> UsageError:
        return UsageError(refusal("attention", "lengths", case.lengths, wrong, accepted))

    try:
        explicit = read_lengths(case.lengths)
    except (TypeError, ValueError):
        raise refuse("is not known") from None
    if explicit is None:
        return case.lengths
    if len(explicit) != case.batch:
        raise refuse(f"names {len(explicit)} sequences, batch={case.batch}", "a length for each sequence")
    square = case.seqlen == case.seqlen_k
    words = []
    for queries, keys in explicit:
        if keys is None and not square:
            raise refuse(
                f"names no keys where seqlen_k={case.seqlen_k} differs from seqlen={case.seqlen}",
                "queries/keys of each sequence as in 100/50:200/60",
            )
        keys = queries if keys is None else keys
        if not (1 <= queries <= case.seqlen and 1 <= keys <= case.seqlen_k):
            raise refuse(
                f"has {queries}/{keys} out of range",
                f"queries from 1 to seqlen={case.seqlen}, keys from 1 to seqlen_k={case.seqlen_k}",
            )
        words.append(f"{queries}" if square and queries == keys else f"{queries}/{keys}")
    return ":".join(words)


def _short_lengths(lengths: str) -> str:
    if lengths[0].isalpha():
        return lengths
    spelled = lengths.replace(":", "_").replace("/", "x")
    if len(spelled) <= _LONGEST_SPELLED:
        return f"len{spelled}"
    return "lensha" + hashlib.sha256(lengths.encode()).hexdigest()[:16]


@lru_cache(maxsize=256)
def _sequences(lengths: str, batch: int, seqlen: int, seqlen_k: int) -> tuple[tuple[int, int], ...]:
    if lengths == "full":
        return ((seqlen, seqlen_k),) * batch
    explicit = read_lengths(lengths)
    if explicit is not None:
        return tuple((queries, queries if keys is None else keys) for queries, keys in explicit)
    # Not mode, dtype or mask: cases that differ only in those must have the same sequences.
    rng = random.Random(f"{_LENGTHS_SEED} {lengths} {batch} {seqlen} {seqlen_k}")
    queries = _draw_lengths(lengths, batch, seqlen, rng)
    keys = queries if seqlen_k == seqlen else _draw_lengths(lengths, batch, seqlen_k, rng)
    return tuple(zip(queries, keys, strict=True))


def _draw_lengths(kind: str, count: int, longest: int, rng: random.Random) -> list[int]:
    """Uniform over 1..longest, or Zipf: length n with frequency ln(1 + 1/n), about 1/n."""
    # Only Random.random() guarantees the same stream in every Python version.
    draws = [rng.random() for _ in range(count)]
    if kind == "uniform":
        return [1 + int(draw * longest) for draw in draws]
    return [min(int((longest + 1) ** draw), longest) for draw in draws]
