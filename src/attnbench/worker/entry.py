"""One backend of a group on its way to a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from attnbench.backends.base import Backend, Launch
from attnbench.backends.registry import all_backends, parse_selector, resolve
from attnbench.check.globals import GlobalState
from attnbench.errors import Unavailable, Unsupported, UsageError
from attnbench.measure.subject import Misleading
from attnbench.measure.timer import Untimed
from attnbench.worker.blame import Word
from attnbench.worker.outcome import RecordBuilder


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One backend of the group and what is known of it so far."""

    index: int
    "in the request; what the blame page says"
    backend: Backend
    builder: RecordBuilder
    launch: Launch | None = None
    closing: ExitStack = field(default_factory=ExitStack)
    setup_ms: float = 0.0
    first_call_ms: float = 0.0
    held_bytes: int = 0
    "what the device held before the session: the harness, the inputs, other sessions"
    session_bytes: int = 0
    "what the session holds on the device between calls: its own inputs, workspaces, plans"
    by_itself: bool = False
    "to be measured with nobody else open"
    repeated: bool = False
    "the baseline once more, beside those of a later part: how it ends here is not its record"
    ended: bool = False
    "with a record that is not passed"

    def again(self, *, by_itself: bool = False, repeated: bool = False) -> Entry:
        """The same backend, not open yet."""
        return Entry(index=self.index, backend=self.backend, builder=self.builder, by_itself=by_itself,
                     repeated=repeated)

    def run_once(self, mode: str) -> None:
        """Forward, and backward where the mode asks for it."""
        launch = self.launch
        assert launch is not None
        if launch.reset:
            launch.reset()
        launch.forward()
        if mode != "fwd":
            launch.call("bwd")()


def guilty_of(error: Exception, word: Word, sampled: Sequence[Entry]) -> Entry | None:
    """Whose doing an exception during sampling was; None for the harness's own."""
    if isinstance(error, Untimed | Misleading):
        return next((entry for entry in sampled if entry.builder.name == error.subject), None)
    if isinstance(error, Unavailable | UsageError):
        return None
    return next((entry for entry in sampled if entry.index == word.index), None)


@contextmanager
def globals_kept(builders: Sequence[RecordBuilder], words: str = "") -> Iterator[None]:
    """Put settings back that the block leaves changed, with a note for each of the builders."""
    before = GlobalState.capture()
    try:
        yield
    finally:
        notes = [words + note for note in before.restore()]
        for builder in builders:
            builder.note(*notes)


def backend_for(selector: str, case: Any, files: Sequence[str]) -> Backend:
    """The backend that a selector of the plan names.

    Raises:
        Unsupported: this case has no such configuration; others of the run may.
        UsageError: a file does not import any more.
    """
    name, short = parse_selector(selector)
    # A file may do anything when it is imported: only its own backends are to suffer for it.
    chosen = () if name in all_backends() else files
    if short is None or name not in all_backends(chosen):
        return resolve(selector, case, files=chosen)
    try:
        return resolve(selector, case, files=chosen)
    except UsageError as why:
        raise Unsupported(str(why)) from None
