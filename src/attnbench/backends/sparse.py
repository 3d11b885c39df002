"""Base class of every adapter for block-sparse attention: limits as data, and the map in the library's blocks.

There is one map, in the blocks of the case.  A library with other block sizes uses it if they can represent it exactly:
larger blocks are split into smaller ones; smaller ones are merged if the map keeps all or none of each union.
Otherwise the library is skipped with that reason, or, with ``--widen``, computes every block of its own that contains
a kept one: the map used is then an output, and the result is compared with that map (variant `chosen`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import Backend, Check, Config, Launch, Machine, Preparing, card_checks, require
from attnbench.backends.differentiable import Attention, Operands
from attnbench.backends.predict import FORM, NAMES, Predictor
from attnbench.errors import WorkerError
from attnbench.workloads.attention.case import ACCEPTED_DTYPES
from attnbench.workloads.sparse.case import BLOCKS, PATTERNS, SparseCase
from attnbench.workloads.sparse.patterns import block_map, visible_pairs
from attnbench.workloads.sparse.work import density

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.inputs import SparseInputs

MAP = "block_map"
"Name of the output that is a launch's own map."
HALF_DTYPES = ("fp16", "bf16")
ALL_DTYPES = ACCEPTED_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLimits:
    """Limits of a library; the defaults refuse whatever an adapter does not name."""

    dtypes: tuple[str, ...] = HALF_DTYPES
    headdims: tuple[int, ...] = ()
    "the only head dimensions supported; (): as given by the next field"
    max_headdim: int | None = None
    blocks: tuple[str, ...] = BLOCKS
    "queries x keys of the blocks of its maps, in order of preference"
    gqa: bool = False
    causal: bool = False
    bottom_right: bool = False
    "causal with Sq ≠ Sk is aligned to the bottom right"
    equal_counts: bool = False
    "needs the same number of blocks in every row"
    empty_rows: bool = False
    "outputs of queries that see no key are 0"
    whole_blocks: bool = False
    "needs lengths that are multiples of the block"
    batch: int | None = None
    "most sequences in a call"
    capability: tuple[int, int] | None = None
    "lowest compute capability"
    capability_below: tuple[int, int] | None = None
    "first compute capability that is not supported"

    def check(self, who: str, case: SparseCase, machine: Machine) -> None:
        """Refuse a case beyond the limits.

        Raises:
            Unsupported: naming the first field beyond its limit.
        """
        card = card_checks(machine, self.capability, self.capability_below)
        require(who, *self._shape(case), *card, *self._map(case))

    def _shape(self, case: SparseCase) -> list[Check]:
        dims, square = ", ".join(map(str, self.headdims)), case.seqlen == case.seqlen_k
        return [
            (case.dtype in self.dtypes, "dtype", case.dtype, "is not supported", f"one of {', '.join(self.dtypes)}"),
            (
                not self.headdims or case.headdim in self.headdims,
                "headdim",
                case.headdim,
                "is not supported",
                f"one of {dims}",
            ),
            (
                self.max_headdim is None or case.headdim <= self.max_headdim,
                "headdim",
                case.headdim,
                "is too large",
                f"at most {self.max_headdim}",
            ),
            (
                self.gqa or case.nheads == case.nheads_kv,
                "nheads_kv",
                case.nheads_kv,
                "differs from nheads",
                f"the nheads, {case.nheads}",
            ),
            (
                self.batch is None or case.batch <= self.batch,
                "batch",
                case.batch,
                "is not supported",
                f"at most {self.batch}",
            ),
            (self.causal or not case.causal, "causal", case.causal, "is not supported", "false"),
            (
                not case.causal or square or self.bottom_right,
                "causal",
                f"{case.causal} with seqlen={case.seqlen}, seqlen_k={case.seqlen_k}",
                "would be aligned to the top left",
                "equal lengths",
            ),
        ]

    def _map(self, case: SparseCase) -> list[Check]:
        native = native_block(case, self.blocks)
        sizes = {"seqlen": (case.seqlen, native[0]), "seqlen_k": (case.seqlen_k, native[1])}
        rows: list[Check] = [
            (
                not self.whole_blocks or length % size == 0,
                field,
                length,
                "is cut by the blocks of the map",
                f"a multiple of {size}",
            )
            for field, (length, size) in sizes.items()
        ]
        exact = native == case.block_shape or is_exact(case, native)
        rows.append(
            (
                case.widen or exact,
                "block",
                case.block,
                f"does not fit blocks of {native[0]}x{native[1]}: the map keeps some of them in part",
                f"a map of the blocks {', '.join(self.blocks)}, or --widen to round it up",
            )
        )
        if not self.empty_rows and (empty := empty_queries(case)):
            rows.append(
                (
                    False,
                    "pattern",
                    case.pattern,
                    f"leaves {empty} queries without a visible key",
                    "a key for every query",
                )
            )
        if self.equal_counts and not rows_equal(case, native):
            rows.append(
                (
                    False,
                    "pattern",
                    case.pattern,
                    "gives rows different numbers of blocks",
                    "the same number in every row, as of pattern random without causal",
                )
            )
        return rows


class SparseBackend(Backend[SparseCase, "SparseInputs"]):
    """An adapter for the workload `sparse` that computes the map it is given."""

    workload = "sparse"
    variant = "given"
    limits: ClassVar[SparseLimits]
    heads_first: ClassVar[bool] = True
    "the library uses [B, H, S, D]"
    follows: ClassVar[bool] = True
    "its map format is made on the device, so that a call can follow a predictor: name[cdf0.98], name[own+cdf0.98]"

    @property
    def predictor(self) -> Predictor | None:
        """The predictor of the map inside the call; None if the map is given."""
        last = self.config.short.rpartition("+")[2] if self.config and self.follows else ""
        return Predictor.read(self.name, last) if FORM.fullmatch(last) else None

    @property
    def own(self) -> str:
        """The library's own configuration; empty for its default."""
        short = self.config.short if self.config else ""
        return short.rpartition("+")[0] if self.predictor else short

    def config_of(self, short: str, case: SparseCase) -> Config:
        """Return the library's own configuration, a predictor, or both joined by +.

        Raises:
            UsageError: it cannot be parsed.
        """
        own, _, last = short.rpartition("+")
        predicts = self.follows and not short.startswith("+") and (NAMES.match(last) or not any(self.configs(case)))
        if not predicts:
            return super().config_of(short, case)
        Predictor.read(self.name, last)
        values = super().config_of(own, case).values if own else {}
        return Config(short, {**values, "predictor": last})

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse cases that the library does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        self.limits.check(self.name, case, machine)

    def variant_of(self, case: SparseCase) -> str:
        """Return `given`, unless the map is predicted or rounded up: then the map used is an output."""
        return "chosen" if self.predictor or self.rounds_up(case) else self.variant

    def rounds_up(self, case: SparseCase) -> bool:
        """Whether the map is rounded up to the library's blocks."""
        return case.widen and not is_exact(case, native_block(case, self.limits.blocks))

    def native_map(self, case: SparseCase, inputs: SparseInputs) -> tuple[Tensor, tuple[int, int]]:
        """Return the map in the library's own blocks, on the device, and their size."""
        native = native_block(case, self.limits.blocks)
        return resized(inputs.block_map, case, case.block_shape, native), native

    def launch(
        self,
        case: SparseCase,
        inputs: SparseInputs,
        fn: Attention,
        *,
        convert: Callable[[Tensor], Any] | None = None,
        notes: tuple[str, ...] = (),
        multiple: tuple[int, int] = (1, 1),
        **options: Any,
    ) -> Launch:
        """Wrap `fn`, which computes attention with the map in the session's layout.

        Args:
            case: the problem.
            inputs: of the session.
            fn: ``fn(q, k, v) -> out``, using the last result of `convert`.
            convert: turns a map in the library's blocks into its format: called at set-up, and as the phase `convert`;
                with a predictor, part of the call.
            notes: for the record.
            multiple: queries and keys are padded with zeros to multiples of these, outside the call.
            options: further fields of `Launch`.
        """
        operands = SparseOperands(case, inputs, heads_first=self.heads_first, multiple=multiple)
        notes += ("padded to whole blocks outside the call",) * operands.pads
        native, shape = self.native_map(case, inputs)
        if convert:
            convert(native)
        if (predictor := self.predictor) is not None and convert:
            return self._following(case, operands, fn, convert, predictor, notes=notes, **options)
        phases = {"convert": partial(convert, native)} if convert else {}
        if self.rounds_up(case):
            used = resized(native, case, shape, case.block_shape)
            options["choices"] = lambda: {MAP: used.clone()}
            notes = (f"map rounded up to blocks of {shape[0]}x{shape[1]}", *notes)
        elif self.variant == "given":
            share = density(case)
            options.setdefault("counters", {"density": share, "actual_sparsity": 1 - share})
        return operands.launch(fn, phases=phases, notes=notes, **options)

    def _following(
        self,
        case: SparseCase,
        operands: SparseOperands,
        fn: Attention,
        convert: Callable[[Tensor], Any],
        predictor: Predictor,
        *,
        notes: tuple[str, ...],
        **options: Any,
    ) -> Launch:
        """Return a launch that predicts, converts and computes attention."""
        native = native_block(case, self.limits.blocks)
        made: dict[str, Tensor] = {}
        rule = predictor.on(case, operands.q.device)

        def predict() -> None:
            q, k = (x if self.heads_first else x.transpose(1, 2) for x in (operands.q, operands.k))
            made["map"] = rule(q[:, :, : case.seqlen], k[:, :, : case.seqlen_k])

        def follow() -> None:
            convert(resized(made["map"], case, case.block_shape, native))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            predict()
            follow()
            return fn(q, k, v)

        def chosen() -> dict[str, Tensor]:
            there = resized(made["map"], case, case.block_shape, native)
            return {MAP: resized(there, case, native, case.block_shape)}

        predict()
        phases = {"predict": predict, "convert": follow, "kernel": lambda: fn(operands.q, operands.k, operands.v)}
        notes = (f"map predicted: {self.config.short.rpartition('+')[2] if self.config else ''}", *notes)
        return operands.launch(attend, phases=phases, notes=notes, choices=chosen, **options)


class Following(Preparing):
    """A kernel as a function that predicts its map in every call."""

    def __init__(
        self,
        predict: Callable[[Tensor, Tensor], Tensor],
        prepare: Callable[[Tensor, Tensor, Tensor, Tensor], Any],
        attend: Callable[[Tensor, Tensor, Tensor, Any], Tensor],
    ) -> None:
        """Combine a predictor with a kernel.

        Args:
            predict: ``blocks = predict(q, k)``, bool [B, H, rows, columns] of q and k [B, H, S, D].
            prepare: ``made = prepare(blocks, q, k, v)``: the map in the kernel's format, from q, k and v [B, S, H, D].
            attend: ``out = attend(q, k, v, made)``.
        """
        self.predict, self.prepare, self.attend = predict, prepare, attend
        self.blocks: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Backend.attend`."""
        with self.preparing():
            self.blocks = self.predict(q.transpose(1, 2), k.transpose(1, 2))
            made = self.prepare(self.blocks, q, k, v)
        return self.attend(q, k, v, made)

    def chosen(self) -> Tensor:
        """Return the map of the last call, bool [B, H, rows, columns].

        Raises:
            WorkerError: there was no call.
        """
        if self.blocks is None:
            raise WorkerError("attention: its block map was asked for before a call")
        return self.blocks


class SparseOperands(Operands):
    """q, k and v of one session, [B, H, S, D] or [B, S, H, D]; the map is the case's and does not change.

    With a `multiple` of (queries, keys) they are padded with zeros to it, and the output is trimmed.
    """

    def __init__(
        self, case: SparseCase, inputs: SparseInputs, *, heads_first: bool, multiple: tuple[int, int] = (1, 1)
    ) -> None:
        self.rows = case.seqlen
        lengths = case.seqlen, case.seqlen_k
        self.room = {length: -(-length // size) * size for length, size in zip(lengths, multiple, strict=True)}
        self.pads = any(length != room for length, room in self.room.items())
        super().__init__(case.dense, inputs.dense, heads_first=heads_first)

    def load(self, inputs: SparseInputs) -> None:  # type: ignore[override]  # those of its own workload
        """Copy new values of the same shapes in place."""
        super().load(inputs.dense)

    def _native(self, x: Tensor) -> Tensor:
        import torch

        if self.pads:
            x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, self.room[x.shape[1]] - x.shape[1]))
        return super()._native(x)

    def _canonical(self, x: Tensor) -> Tensor:
        return super()._canonical(x)[:, : self.rows]


def native_block(case: SparseCase, blocks: tuple[str, ...]) -> tuple[int, int]:
    """Return the library's blocks for a case's map: its own, the largest into which it can be split, or a union."""
    shapes = [(int(rows), int(columns)) for rows, _, columns in (text.partition("x") for text in blocks)]
    wanted = case.block_shape
    if wanted in shapes:
        return wanted
    inside = [shape for shape in shapes if shape[0] <= wanted[0] and shape[1] <= wanted[1]]
    return (
        max(inside, key=lambda shape: shape[0] * shape[1])
        if inside
        else min(shapes, key=lambda shape: max(shape[0], wanted[0]) * max(shape[1], wanted[1]))
    )


def resized(blocks: Tensor, case: SparseCase, of: tuple[int, int], to: tuple[int, int]) -> Tensor:
    """Convert a map to other blocks, keeping those that overlap a kept one.

    Args:
        blocks: bool [B, H, rows, columns] in blocks of `of`.
        case: the problem, for its lengths.
        of: queries and keys of the map's blocks; powers of two.
        to: of the result's blocks.
    """
    import torch

    for axis, length, old, new in ((2, case.seqlen, of[0], to[0]), (3, case.seqlen_k, of[1], to[1])):
        count = -(-length // new)
        if new < old:
            blocks = blocks.repeat_interleave(old // new, dim=axis).narrow(axis, 0, count)
        elif new > old:
            spare = count * (new // old) - blocks.shape[axis]
            padded = torch.nn.functional.pad(blocks, (0, 0) * (axis == 2) + (0, spare))
            blocks = padded.unflatten(axis, (count, new // old)).any(axis + 1)
    return blocks.contiguous()


def is_exact(case: SparseCase, native: tuple[int, int]) -> bool:
    """Return whether these blocks can represent the map without keeping more."""
    import torch

    if native == case.block_shape:
        return True
    own = torch.from_numpy(block_map(case).copy())
    there = resized(own, case, case.block_shape, native)
    return torch.equal(resized(there, case, native, case.block_shape), own)


def rows_equal(case: SparseCase, native: tuple[int, int]) -> bool:
    """Return whether every row of the map has the same number of blocks."""
    import torch

    counts = resized(torch.from_numpy(block_map(case).copy()), case, case.block_shape, native).sum(-1)
    return bool((counts == counts.flatten()[0]).all())


def empty_queries(case: SparseCase) -> int:
    """Count the queries, over all sequences and heads, that see no key in their blocks."""
    from attnbench.workloads.sparse.work import queries_seen

    if case.pattern in PATTERNS:  # they keep a key of every query that a causal mask leaves any
        return case.batch * case.nheads * max(0, case.seqlen - case.seqlen_k) * case.causal
    return case.batch * case.nheads * case.seqlen - queries_seen(case, block_map(case) & (visible_pairs(case) > 0))


def lists_of(blocks: Tensor) -> Mapping[str, Tensor]:
    """Return a map as lists: counts int32 [B, H, rows]; indices int32 [B, H, rows, columns], ascending, then 0."""
    import torch

    counts = blocks.sum(-1, dtype=torch.int32)
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int()
    listed = torch.arange(blocks.shape[-1], device=blocks.device) < counts[..., None]
    return {"counts": counts, "indices": order.masked_fill(~listed, 0)}


def map_of_lists(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Return the map, bool [..., rows, columns], that `lists_of` converted."""
    import torch

    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    found = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    found.scatter_(-1, indices.long().masked_fill(~listed, columns), True)
    return found[..., :columns]
