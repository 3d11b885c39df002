"""The interface of a workload: a family of problems, with its inputs, its exact work and its oracle.

A workload is a folder `workloads/<name>/` (with _ for each - of the name) whose ``__init__.py``
defines ``WORKLOAD``, an instance of `Workload`.  That file, `case.py` and `work.py` import without
torch; `inputs.py` and `oracle.py` are imported by the methods that need them.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from attnbench.dtypes import DTYPES
from attnbench.errors import AttnbenchError, UnknownName, UsageError, did_you_mean, nearest, refusal, unknown
from attnbench.record import Work

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as torch_dtype


@dataclass(frozen=True, slots=True)
class Axis:
    """One field of a case, with its spelling on the command line and in suite files."""

    name: str
    "field of the case and, with dashes, the flag: seqlen_k is --seqlen-k"
    parse: Callable[[str], Any]
    "parses one value of a comma list; raises ValueError with what is accepted"
    help: str
    default: Any
    aliases: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    "names of the same quantity in other workloads"
    boolean: bool = False
    "also accepted as --NAME/--no-NAME/--NAME-both"


class Case(Protocol):
    """One problem: a frozen dataclass that checks itself (UsageError) in __post_init__."""

    @property
    def dtype(self) -> str:
        """A name in `dtypes.DTYPES`."""
        ...

    @property
    def mode(self) -> str:
        """fwd, bwd or fwd-bwd."""
        ...

    @property
    def id(self) -> str:
        """Short name, unique for the values, valid in a file name and a table."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, read back by Workload.case."""
        ...


class Inputs(Protocol):
    """Tensors of a case in the workload's own layout."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor a backend reads, by name; the checks watch and reload these."""
        ...


INPUT_KINDS = ("normal", "uniform", "zeros")
"Values that every workload's inputs may have."
ATTENTION_KINDS = (*INPUT_KINDS, "outliers", "channel-bias", "video")
"Those of queries, keys and values."

CaseT = TypeVar("CaseT", bound=Case)
"The case class of a workload, and of the backends that compute it."
InputsT = TypeVar("InputsT", bound=Inputs)
"Its class of inputs."
JudgedCase = TypeVar("JudgedCase", bound=Case, contravariant=True)
JudgedInputs = TypeVar("JudgedInputs", bound=Inputs, contravariant=True)


@dataclass(frozen=True, slots=True)
class Draw:
    """Which part of a case the oracle computes; the workload defines what a part is (`Workload.draw`)."""

    parts: tuple[tuple[int, ...], ...] | None = None
    "the drawn ones, such as (sequence, head); None means the whole case"
    unit: str = "parts"
    "what a part is, in the plural, for the record"

    def note(self, seed: int) -> str | None:
        """Return the record's note for a case that is checked in part; None for a whole one."""
        if self.parts is None:
            return None
        return f"checked in part: {len(self.parts)} {self.unit} drawn with seed {seed}, including the corners"


class OutputKind(Enum):
    """How an output is checked."""

    VALUE = "value"
    "a result of the forward: within the budget of its rounding errors"
    GRADIENT = "gradient"
    "a result of the backward: a chain of products, twice the budget; only in modes bwd and fwd-bwd"
    CHOICE = "choice"
    "which of several right answers the launch gives: judged by a `Choice`; a launch may omit it"


class Choice(Protocol[JudgedCase, JudgedInputs]):
    """The judge of an output of kind `OutputKind.CHOICE`, such as the blocks that a launch selected.

    A choice is judged by what makes it good, not by equality with the oracle's.  The other outputs are then compared
    with the answer that follows from it.  A launch that returns no choice is compared with the answer that follows
    from the oracle's own.
    """

    followed: str
    "note on the record if a launch made another choice than the oracle, without faults"

    def faults(self, case: JudgedCase, inputs: JudgedInputs, chosen: Tensor) -> Sequence[str]:
        """Return the faults of a launch's choice."""
        ...

    def is_oracles(self, case: JudgedCase, inputs: JudgedInputs, chosen: Tensor) -> bool:
        """Return whether a choice without faults equals the oracle's, in whatever representation."""
        ...

    def follow(
        self, case: JudgedCase, inputs: JudgedInputs, chosen: Tensor, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return what `Workload.oracle` would return for this choice."""
        ...

    def expected_errors(
        self, case: JudgedCase, inputs: JudgedInputs, chosen: Tensor, *, draw: Draw
    ) -> dict[str, Tensor]:
        """Return what `Workload.expected_errors` would return for this choice."""
        ...

    def measures(
        self, case: JudgedCase, inputs: JudgedInputs, chosen: Tensor, *, dtype: torch_dtype, draw: Draw
    ) -> Mapping[str, float]:
        """Return how good a choice is, for the counters of the record; this decides no verdict.

        If the choice determines how much there is to compute, `useful_flops` and `least_bytes` give it.
        """
        ...


class Workload(ABC, Generic[CaseT, InputsT]):
    """A family of problems."""

    name: ClassVar[str]
    title: ClassVar[str]
    axes: ClassVar[tuple[Axis, ...]]
    variants: ClassVar[tuple[str, ...]]
    "functions computed, each with its oracle; a backend names the one it computes"
    input_kinds: ClassVar[tuple[str, ...]] = INPUT_KINDS
    "values that its inputs may have (`--input`)"
    captured: ClassVar[bool] = False
    "whether its inputs may also come from a file (`captured_axes`)"
    in_ranks: ClassVar[bool] = False
    "launches compute in other processes, which answer when their devices are idle"

    def outputs(self, variant: str) -> Mapping[str, OutputKind]:
        """Return every output that a launch of this variant may return, by name; the mode decides which exist.

        The oracle returns those of kinds value and gradient.  At most one is a choice, judged by `choice`.
        """
        return {"out": OutputKind.VALUE}

    def devices(self, case: CaseT) -> int:
        """Return the number of devices of one case: that of its worker, and those that follow it."""
        return 1

    def result_dtype(self, case: CaseT) -> str:
        """Return the precision (`dtypes.DTYPES`) of a launch's values and gradients, and of the plain evaluation."""
        return DTYPES[case.dtype].results

    @abstractmethod
    def case(self, values: Mapping[str, Any]) -> CaseT:
        """Build a case from axis values or from `Case.to_dict`; UsageError names the field."""

    def filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of all axes: those given, and the defaults of the others.

        Raises:
            UsageError: an axis is unknown.
        """
        known = {axis.name: axis.default for axis in self.axes}
        for name in values:
            if name not in known:
                raise unknown_axis(self.name, name, self.axes)
        return known | dict(values)

    def fitted(self, values: Mapping[str, Any], asked: Collection[str]) -> Mapping[str, Any]:
        """Adapt values of a suite that cannot be combined with those set by the user.

        Args:
            values: of a case, by axis.
            asked: names of the axes that the user set.
        """
        return values

    @abstractmethod
    def work(self, case: CaseT) -> Work:
        """Return exact useful FLOPs and least bytes of one launch in the case's mode."""

    def planned_flops(self, case: CaseT) -> int:
        """Return the FLOPs of one launch for planning: approximate, but fast to compute."""
        return self.work(case).flops

    def table_bytes(self, case: CaseT) -> int:
        """Bytes of a model's tables, which are there before any inputs: a plan says them; 0: it has none."""
        return 0

    def work_of(self, variant: str, case: CaseT) -> Work:
        """Return the work of one of the variants, if it differs from the case's."""
        return self.work(case)

    @abstractmethod
    def inputs(self, case: CaseT, *, seed: int, kind: str, device: str | device) -> InputsT:
        """Return seeded inputs on the device; `kind` is in `input_kinds`, or a file if the workload allows it."""

    def captured_axes(self, name: str) -> Mapping[str, int]:
        """Return the axes that a file of captured inputs sets, without torch; only if the workload is `captured`."""
        return {}

    def notes_of(self, inputs: InputsT) -> Sequence[str]:
        """Return what a record should say of these inputs."""
        return ()

    @abstractmethod
    def oracle(
        self, variant: str, case: CaseT, inputs: InputsT, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Evaluate in `dtype` the values and gradients that the mode has, of the drawn parts only."""

    @abstractmethod
    def expected_errors(self, variant: str, case: CaseT, inputs: InputsT, *, draw: Draw) -> dict[str, Tensor]:
        """Return the standard deviation of rounding errors of `oracle`'s results in the case's own precision."""

    @abstractmethod
    def draw(self, case: CaseT, *, seed: int, max_bytes: int) -> Draw:
        """Return the whole case if the oracle fits in `max_bytes`, else a seeded draw of parts including the corners.

        A part is whatever has complete results of its own; `workloads.drawing.draw_parts` works with any unit.
        """

    @abstractmethod
    def select(self, case: CaseT, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """Return the parts of a backend's outputs that `oracle` computed for this draw."""

    def choice(self, variant: str) -> Choice[CaseT, InputsT] | None:
        """Return the judge of the variant's output of kind choice; None if there is one right answer."""
        return None

    def suspects(
        self, variant: str, case: CaseT, inputs: InputsT, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        """Yield well-known wrong answers in fp32, with a description: ("top-left causal alignment", outputs)."""
        return ()

    def signs(self, case: CaseT) -> Mapping[str, str]:
        """Return the tensors whose last dimension may change sign, and by which common vector; empty if none may.

        Inputs and outputs by name, each with the name of a vector of ±1 over its last dimension.  Multiplying
        the inputs by their vectors must multiply the outputs by theirs, exactly.  This provides data that
        no launch has seen, with a known answer (`check.variation`).
        """
        return {}

    def flags(self, case: CaseT) -> list[str]:
        """Return the shape flags that specify this case on the command line, independent of defaults.

        Only an axis that follows another one by default (seqlen_k) is omitted if it does.
        """
        values = case.to_dict()
        for axis in self.axes:
            fewer = {key: value for key, value in values.items() if key != axis.name}
            if axis.default is None and self._means(fewer, case):
                values = fewer
        words: list[str] = []
        for axis in self.axes:
            if axis.name not in values:
                continue
            flag = axis.name.replace("_", "-")
            if axis.boolean:
                words.append(f"--{flag}" if values[axis.name] else f"--no-{flag}")
            else:
                value = values[axis.name]
                words += [f"--{flag}", ":".join(map(str, value)) if isinstance(value, list) else str(value)]
        return words

    def _means(self, values: Mapping[str, Any], case: CaseT) -> bool:
        try:
            return bool(self.case(values) == case)
        except UsageError:  # the default does not fit the other values
            return False

    def check_files(self, cases: Collection[CaseT]) -> None:
        """Refuse cases whose files a launch could not use, for a plan, if neither `case` nor `planned_flops` reads them.

        Raises:
            UsageError: in the words that a row would have.
        """

    def calls_after(self, case: CaseT) -> int:
        """Return the work after a row's samples, such as whole generations, in launches."""
        return 0

    def shrink(self, case: CaseT, factor: float) -> CaseT | None:
        """Return a smaller case that takes about `factor` of the memory, for the advice of an oom record."""
        return None


SHORT_FOR = {"half": "float16", "float": "float32"}
"""Further names in torch of its dtypes."""


def precision(*names: str) -> Callable[[str], str]:
    """Return a parser of precisions, by our names or torch's (``bfloat16``, ``torch.bfloat16``)."""
    theirs = {one.torch: one.name for one in DTYPES.values()}
    parse = one_of(*names)

    def read(text: str) -> str:
        plain = text.removeprefix("torch.")
        return parse(theirs.get(SHORT_FOR.get(plain, plain), text))

    return read


def one_of(*names: str) -> Callable[[str], str]:
    """Return a parser that accepts only these names; its `UnknownName` lists them, and names the nearest."""

    def parse(text: str) -> str:
        if text not in names:
            near = did_you_mean(nearest(text, names))
            raise UnknownName(f"one of {', '.join(names)}" + f"; {near}" * bool(near))
        return text

    return parse


def one_number(*numbers: int) -> Callable[[str], int]:
    """Return a parser that accepts only these whole numbers; its ValueError lists them."""

    def parse(text: str) -> int:
        if text not in map(str, numbers):
            raise ValueError(f"one of {', '.join(map(str, numbers))}")
        return int(text)

    return parse


def unknown_axis(who: str, name: str, axes: Iterable[Axis]) -> UsageError:
    """Return the error for an axis that a workload does not have, with its name for the same quantity."""
    there = {axis.name: axis for axis in axes}
    near = [f"--{one.replace('_', '-')}" for one in nearest_axes(name, there.values())]
    accepted = f"one of {', '.join(sorted(there))}"
    return UsageError(refusal(who, "axis", name, "is not known", accepted, did_you_mean(near)))


def nearest_axes(name: str, axes: Iterable[Axis]) -> list[str]:
    """Return the axes that a wrong name may mean: those of the same quantity, else those of a similar name."""
    known = list(axes)
    return [axis.name for axis in known if name in axis.elsewhere] or nearest(name, [axis.name for axis in known])


def in_layout(who: str, outputs: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return the outputs that have a shape, in its order; other names and missing ones are skipped.

    Raises:
        AttnbenchError: an output has another shape.
    """
    found = {name: outputs[name] for name in shapes if name in outputs}
    for name, tensor in found.items():
        if tuple(tensor.shape) != shapes[name]:
            wanted = str(list(shapes[name]))
            raise AttnbenchError(refusal(who, name, list(tensor.shape), "is not the workload's layout", wanted))
    return found


def load_workload(name: str) -> Workload:
    """Find a workload by its name.

    Raises:
        UsageError: no workload has that name.
    """
    if name not in workload_names():
        raise unknown("workload", "name", name, workload_names())
    workload: Workload = importlib.import_module(f"attnbench.workloads.{name.replace('-', '_')}").WORKLOAD
    return workload


def workload_names() -> Sequence[str]:
    """Names of all workloads, by folder."""
    return [*_folders()]


@cache
def _folders() -> tuple[str, ...]:
    """Look once per process: a plan asks for the names thousands of times."""
    import attnbench.workloads as room

    return tuple(sorted(one.name.replace("_", "-") for one in pkgutil.iter_modules(room.__path__) if one.ispkg))
