"""The command line without a worker: `execute` is replaced by a function that answers at once."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.errors import UsageError
from attnbench.record import Environment, Record, Status, Time
from attnbench.store.derive import derive
from attnbench.store.runfile import write
from attnbench.sweep.run import Event

# made_up_captures stands with the tests of the room it is made for.
sys.path.insert(0, str(Path(__file__).parents[1] / "profile"))

MINE = """
from contextlib import contextmanager
from attnbench.backends.base import Backend

class Mine(Backend):
    name, workload, variant, install, devices = "mine", "attention", "softmax", "here", ("cpu",)

    @contextmanager
    def session(self, case, inputs):
        yield
"""


@dataclasses.dataclass
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


class FakeSweep:
    """Stands for `sweep.run.execute`; a test says how backends end and when Ctrl-C comes."""

    def __init__(self):
        self.statuses = {}
        self.stop_after = None
        self.unwritten = False
        self.ending = KeyboardInterrupt()
        self.runs = []
        self.files = []

    def execute(self, run, *, path=None, backend_files=(), on_event=lambda event: None, executors=(), jobs=None):
        self.runs.append(run)
        self.files.append(tuple(backend_files))
        environment = Environment(os="Linux", python="3.11.0", torch="2.13.0", cpu="a CPU", cores=2)
        run = dataclasses.replace(run, environments=(environment,))
        have = {record.group for record in run.records}
        for number, group in enumerate(group for group in run.plan if group.group not in have):
            if number == self.stop_after:
                raise self.ending
            records = tuple(self._record(run, group, name) for name in group.backends)
            run = derive(dataclasses.replace(run, records=run.records + records))
            if path is not None:
                write(run, path)
            on_event(Event("group", group=group.group, run=run))
        if self.unwritten:
            on_event(Event("done", run=run))
            raise UsageError("output: path=f.json cannot be written (No space left on device); another")
        return run

    def _record(self, run, group, name):
        status = self.statuses.get(name, Status.PASSED)
        passed = status is Status.PASSED
        samples = tuple(1.0 + 0.1 * len(name) + 0.001 * index for index in range(12))
        values = dict.fromkeys(("median_ms", "mean_ms", "min_ms", "max_ms", "p95_ms", "p99_ms"), 1.0)
        time = (
            Time(
                timer="wall",
                l2="warm",
                regime="cpu",
                stopped_by="rel-ci",
                num_samples=12,
                samples_ms=samples,
                rounds=tuple(range(12)),
                **values,
            )
            if passed and run.settings.measure
            else None
        )
        return Record(
            workload=group.workload,
            case=group.case,
            case_id=group.case_id,
            group=group.group,
            backend=name,
            replicate=group.replicate,
            environment=0,
            status=status,
            time=time,
            reason=None if passed else f"{name} is made to be {status.value}",
        )


@pytest.fixture
def sweep(monkeypatch):
    import attnbench.sweep.run

    fake = FakeSweep()
    monkeypatch.setattr(attnbench.sweep.run, "execute", fake.execute)
    return fake


@pytest.fixture
def attnbench(tmp_path, monkeypatch, capsys):
    """Call a command in an empty folder: attnbench("run quick") or a list of words."""
    monkeypatch.chdir(tmp_path)
    for name in ("BATCH", "SEQLEN", "NHEADS", "HEADDIM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mine.py").write_text(MINE)

    def call(words):
        code = main(words.split() if isinstance(words, str) else words)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


@pytest.fixture
def saved():
    """The run files of the current folder."""
    return lambda: sorted(Path("results").glob("*.json"))


@pytest.fixture
def no_torch(monkeypatch):
    """Make importing torch an error."""
    for name in ("torch", "triton", "pandas", "sqlalchemy"):
        monkeypatch.setitem(sys.modules, name, None)
