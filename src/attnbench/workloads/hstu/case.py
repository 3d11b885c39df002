"""One problem of HSTU attention: its shape, its mask, its precision, its lengths, and its sparsity.

Dense (variant ``hstu``), for one sequence and head, with c = 1 / scaling_seqlen:

    S = α Q Kᵀ        A = SiLU(S) ∘ M · c        O = A V

A sequence is ``[prefix | history | targets]``.  M lets a prefix row see all of prefix and history; a
history row sees itself and all rows before it (all of prefix and history if not causal); a target sees prefix,
history and itself, never another target.  ``max_attn_len`` W limits history and targets to keys at most W
back (and ahead, if not causal), where all prefix rows count as the one position before the history
and all targets as the one after it; prefix rows are not limited.  ``delta_q`` keeps the last rows of each
sequence as queries, against all its keys.

The block-sparse fields affect only the variant ``hstu-bsa``; `oracle_bsa` defines it.

Imports without torch.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.workloads.attention.case import ACCEPTED_DTYPES, LARGEST_SIZE, MODES
from attnbench.workloads.hstu.lengths import (
    ACCEPTED_LENGTHS,
    ACCEPTED_TARGETS,
    SequenceShape,
    read_lengths,
    read_targets,
    shapes_of,
    targets_of,
)

SELECTIONS = ("head", "shared")
USUAL_BLOCK_COUNTS = 4

_FOLLOWS: Any = None
_SIZES = ("batch", "seqlen", "nheads", "attn_dim", "linear_dim", "scaling_seqlen", "block_size", "block_counts")
_LONGEST_SPELLED = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class HstuCase:
    """A frozen problem.  Fields with a default that depends on another field are filled in.

    Raises:
        UsageError: the value of a field is not allowed; the message names the field.
    """

    batch: int
    "number of sequences"
    seqlen: int
    "rows of the longest sequence allowed (N): prefix, history and targets"
    nheads: int
    "heads, the same for queries, keys and values"
    attn_dim: int
    "size of a query and a key"
    linear_dim: int = _FOLLOWS
    "size of a value and an output; default: attn_dim"
    alpha: float = _FOLLOWS
    "factor of the scores; default: 1/sqrt(attn_dim)"
    scaling_seqlen: int = _FOLLOWS
    "divisor of the outputs, whatever a sequence's own length; default: seqlen"
    causal: bool = True
    max_attn_len: int | None = None
    "window W: a row sees itself and W rows before it; None: everything"
    contextual_len: int = 0
    "prefix rows of each sequence"
    num_targets: str = "0"
    "targets at the end of each sequence: 20, 1-20 (drawn), or 3:0:5"
    delta_q: int | None = None
    "only this many last rows of a sequence are queries (the rest is a cache); None: all"
    dtype: str = "fp16"
    mode: str = "fwd"
    lengths: str = "full"
    block_size: int = 32
    "keys of a block, a power of two"
    block_counts: int = _FOLLOWS
    "blocks a query selects, including its own; default: 4, or as many as there are"
    local_window: int | None = None
    "rows of the sliding branch, including the query's own; None: no such branch"
    selection: str = "head"
    "head: each head selects its blocks; shared: one selection by the sum of the heads' scores"
    pairs: bool = False
    "the history is item, action, item, action …: an action has the selection of its item"
    gates: bool = True
    "each branch is weighted by a gate per query and head (an input); without gates, branches are added"

    def __post_init__(self) -> None:
        self._fill("linear_dim", self.attn_dim)
        self._fill("scaling_seqlen", self.seqlen)
        for name in _SIZES[:-1]:
            _check_size(name, getattr(self, name))
        self._fill("block_counts", min(USUAL_BLOCK_COUNTS, self.most_blocks))
        _check_size("block_counts", self.block_counts)
        self._fill("alpha", self.attn_dim**-0.5)
        for name in ("max_attn_len", "delta_q", "local_window"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        _check_size("contextual_len", self.contextual_len, least=0)
        for name, accepted in (("dtype", ACCEPTED_DTYPES), ("mode", MODES), ("selection", SELECTIONS)):
            if getattr(self, name) not in accepted:
                raise unknown("hstu", name, getattr(self, name), accepted)
        for name in ("causal", "pairs", "gates"):
            if type(getattr(self, name)) is not bool:
                raise _refuse(name, getattr(self, name), "is not a boolean", "true or false")
        self._check_numbers()
        object.__setattr__(self, "num_targets", _plain_targets(self))
        object.__setattr__(self, "lengths", _plain_lengths(self))

    def _fill(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        if type(self.alpha) not in (int, float) or not (math.isfinite(self.alpha) and self.alpha > 0):
            raise _refuse("alpha", self.alpha, "cannot be used", "a finite number above 0")
        object.__setattr__(self, "alpha", float(self.alpha))
        if self.block_size & (self.block_size - 1):
            raise _refuse("block_size", self.block_size, "is no power of two", "a power of two such as 32")
        if self.block_counts > self.most_blocks:
            raise _refuse(
                "block_counts",
                self.block_counts,
                f"is over the {self.most_blocks} blocks of {self.block_size} in seqlen={self.seqlen}",
                f"a whole number from 1 to {self.most_blocks}",
            )
        if self.pairs and self.block_size == 1:
            raise _refuse("block_size", 1, "parts an item from its action (pairs=True)", "a power of two from 2")
        if self.delta_q is not None and self.delta_q > self.seqlen:
            raise _refuse("delta_q", self.delta_q, f"is over seqlen={self.seqlen}", "at most seqlen")
        if self.contextual_len > self.seqlen:
            raise _refuse("contextual_len", self.contextual_len, f"is over seqlen={self.seqlen}", "at most seqlen")

    @property
    def id(self) -> str:
        """Short name such as ``b2-s1024-h8-d64-fp16-causal-bs32x4-gates-fwd``, without the usual values."""
        parts = [f"b{self.batch}", f"s{self.seqlen}", f"h{self.nheads}", f"d{self.attn_dim}"]
        parts += [f"dv{self.linear_dim}"] * (self.linear_dim != self.attn_dim)
        if self.alpha != self.attn_dim**-0.5:
            parts.append("a" + repr(self.alpha).replace(".", "_").replace("-", "m").replace("+", "p"))
        parts += [f"n{self.scaling_seqlen}"] * (self.scaling_seqlen != self.seqlen)
        parts += [self.dtype] + ["causal"] * self.causal
        parts += [f"w{self.max_attn_len}"] * (self.max_attn_len is not None)
        parts += [f"c{self.contextual_len}"] * (self.contextual_len > 0)
        if self.num_targets != "0":
            parts.append(_short("t", self.num_targets.replace("-", "to")))
        parts += [f"dq{self.delta_q}"] * (self.delta_q is not None)
        if self.lengths != "full":
            parts.append(self.lengths if self.lengths.isalpha() else _short("len", self.lengths))
        parts.append(f"bs{self.block_size}x{self.block_counts}")
        parts += [f"lw{self.local_window}"] * (self.local_window is not None)
        parts += ["shared"] * (self.selection == "shared") + ["pairs"] * self.pairs
        parts += ["gates"] * self.gates
        return "-".join([*parts, self.mode])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def sequences(self) -> tuple[SequenceShape, ...]:
        """Shape of each of the `batch` sequences, the same in every process and version."""
        return shapes_of(
            self.lengths,
            self.batch,
            self.seqlen,
            self.contextual_len,
            targets_of(self.num_targets, self.batch),
            self.delta_q,
        )

    @property
    def most_blocks(self) -> int:
        """Blocks of the longest sequence allowed, including an incomplete one."""
        return -(-self.seqlen // self.block_size)

    @property
    def branches(self) -> tuple[str, ...]:
        """Branches of the block-sparse variant, in the order of the gates."""
        return ("compressed", "selected") if self.local_window is None else ("compressed", "selected", "sliding")

    @property
    def has_backward(self) -> bool:
        """Whether a launch of this case computes gradients."""
        return self.mode != "fwd"

    @property
    def sparse_refusal(self) -> str | None:
        """Why the block-sparse variant is not defined for this case, in one line; None if it is."""
        for name, dense in (("causal", True), ("contextual_len", 0), ("max_attn_len", None)):
            if (value := getattr(self, name)) != dense:
                todo = "--local-window is its own window" if name == "max_attn_len" else ""
                return refusal("hstu-bsa", name, value, "is not defined", f"{name}={dense} only".lower(), todo)
        return None


def _short(lead: str, spelled: str) -> str:
    spelled = spelled.replace(":", "_")
    if len(spelled) <= _LONGEST_SPELLED:
        return lead + spelled
    return f"{lead}sha" + hashlib.sha256(spelled.encode()).hexdigest()[:16]


def _refuse(name: str, value: object, wrong: str, accepted: str) -> UsageError:
    return UsageError(refusal("hstu", name, value, wrong, accepted))


def _check_size(name: str, value: object, least: int = 1) -> None:
    accepted = f"a whole number from {least} to {LARGEST_SIZE}"
    if type(value) is not int:
        raise _refuse(name, value, "is not a whole number", accepted)
    if not least <= value <= LARGEST_SIZE:
        raise _refuse(name, value, "is out of range", accepted)


def _plain_targets(case: HstuCase) -> str:
    """Check targets against batch and seqlen and bring them to their shortest form."""
    given: Any = case.num_targets  # suite files may contain a plain number
    text = str(given) if type(given) is int else given
    try:
        read = read_targets(text)
    except (TypeError, ValueError):
        raise _refuse("num_targets", text, "is not known", ACCEPTED_TARGETS) from None
    if isinstance(read, tuple) and len(read) not in (1, case.batch):
        raise _refuse("num_targets", text, f"names {len(read)} sequences, batch={case.batch}", ACCEPTED_TARGETS)
    room = case.seqlen - case.contextual_len
    if max(read) > room:
        raise _refuse(
            "num_targets",
            text,
            f"is over the {room} rows that seqlen={case.seqlen} leaves beside contextual_len={case.contextual_len}",
            f"at most {room}",
        )
    if len(set(read)) == 1:
        return str(read[0])
    return ":".join(map(str, read)) if isinstance(read, tuple) else f"{read[0]}-{read[-1]}"


def _plain_lengths(case: HstuCase) -> str:
    """Check lengths against batch, seqlen and targets and bring explicit ones to a unique form."""
    try:
        explicit = read_lengths(case.lengths)
    except (TypeError, ValueError):
        raise _refuse("lengths", case.lengths, "is not known", ACCEPTED_LENGTHS) from None
    if explicit is None:
        return case.lengths
    if len(explicit) != case.batch:
        raise _refuse(
            "lengths",
            case.lengths,
            f"names {len(explicit)} sequences, batch={case.batch}",
            "a length for each sequence",
        )
    targets = targets_of(case.num_targets, case.batch)
    for number, (length, count) in enumerate(zip(explicit, targets, strict=True)):
        if length > case.seqlen:
            raise _refuse("lengths", case.lengths, f"has {length} out of range", f"from 0 to seqlen={case.seqlen}")
        if count > length:
            raise _refuse(
                "num_targets",
                case.num_targets,
                f"gives sequence {number} {count} targets and a length of {length}",
                "at most as many targets as the sequence has rows",
            )
    return ":".join(map(str, explicit))
