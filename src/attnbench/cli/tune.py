"""`attnbench tune`: find the fastest configuration of a backend for a shape, with its uncertainty."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.cli import flags
from attnbench.cli.ending import exit_code
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import NothingToRun, UsageError, parsed, refusal
from attnbench.machine.device import Device
from attnbench.suites.settings import SETTINGS, between, whole

if TYPE_CHECKING:
    from attnbench.backends.base import Backend
    from attnbench.record import Settings
    from attnbench.stats.race_data import Rules
    from attnbench.tune.race_file import RaceFile

WHO = "attnbench tune"
TAKEN = ("timeout", "timer", "l2", "regime", "lock_clocks", "input", "seed", "device")
"""Settings of a tuning run; the race itself decides the number of samples."""

NUMBERS = {"rounds": whole(10), "finalists": whole(2), "heat": whole(2), "jobs": whole(0), "seconds": between(0)}
USUAL = (
    "--configs --backends --seconds --timer --device --reference --resume --again --csv --json --out --dry-run --quiet"
)


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "backend", metavar="BACKEND", help=("name of the backend; `attnbench list configs` shows its configurations")
    )
    group = parser.add_argument_group("space")
    group.add_argument(
        "--configs",
        action="append",
        metavar="LIST",
        help=("only these short forms; wildcards such as 'm128*' are allowed (default: all)"),
    )
    group.add_argument(
        "--backends", action="append", metavar="FILE.py", help=("a Python file with the backend (default: none)")
    )
    group.add_argument(
        "--path",
        action="append",
        metavar="DIR",
        help=("checkout of a library that is in no package index (default: the one in its environment variable)"),
    )
    flags.add_shape(
        parser,
        note=("Each a value or a comma list; each case is tuned separately. Defaults: those of `attnbench compare`."),
    )
    _add_race(parser)
    group = parser.add_argument_group("output", "A path, or - for stdout (the tables then move to stderr).")
    group.add_argument("--csv", metavar="PATH", help="a row per configuration (default: a file per case by the race)")
    group.add_argument("--json", metavar="PATH", help="the same rows as JSON (default: none)")
    group.add_argument(
        "--save",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=("keep the race and its rows in DIR/tuning (default: kept)"),
    )
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of results (default: results)")
    group.add_argument("--dry-run", action="store_true", help="show cases and configurations without measuring")
    group.add_argument("-q", "--quiet", action="store_true", help="print only the pick of each case")
    parser.show_first(*flags.USUAL_SHAPE, *USUAL.split())
    parser.example(
        "attnbench tune hstu-triton --seqlen 1024,4096 --dtype bf16",
        "attnbench tune hstu-bsa-triton --configs 's*' --seconds 5",
        "attnbench tune hstu-triton --mode fwd-bwd --resume",
        remark=(
            "A stored race is used again for the same bucket of shapes (batch and lengths up to "
            "the next power of two), card, versions and kernel source."
        ),
    )


def _add_race(parser: Parser) -> None:
    group = parser.add_argument_group("race")
    group.add_argument("--seconds", metavar="S", help="maximum sampling time of a case (default: no limit)")
    group.add_argument("--rounds", metavar="N", help="samples of each finalist (default: 100)")
    group.add_argument("--finalists", metavar="N", help="maximum of configurations in the final (default: 8)")
    group.add_argument("--heat", metavar="N", help="configurations sampled alternately (default: 16)")
    group.add_argument(
        "--jobs",
        metavar="N",
        help=("processes that compile in advance on a GPU; 0: none (default: one per core, at most 8)"),
    )
    for one in SETTINGS:
        if one.name in TAKEN:
            default = "none" if one.default is None else str(one.default).removesuffix(".0")
            group.add_argument(one.flag, metavar=one.metavar, help=f"{one.help} (default: {default})")
    group.add_argument(
        "--reference",
        action="append",
        metavar="LIST",
        help=(
            "backends sampled alternately with the pick of each race, or none; the first is 100 %% of the column "
            "relative_performance (default: sdpa-flash,fa3-fwd for flash-triton, else none)"
        ),
    )
    group.add_argument("--resume", action="store_true", help="resume an interrupted race (default: start again)")
    group.add_argument("--again", action="store_true", help="measure even if a result is stored")


def run(args: argparse.Namespace) -> int:
    """Tune every case; return 3 if no case has a configuration that runs and is correct."""
    from attnbench.machine.clocks import locked_clocks

    numbers = _numbers(args)
    request = _Request(args, numbers)
    output = Output(results_to_stderr="-" in (args.csv, args.json), quiet=args.quiet)
    if args.dry_run:
        request.show(output)
        return 0
    with ExitStack() as closing:
        if request.settings.lock_clocks:
            closing.enter_context(locked_clocks(request.settings.lock_clocks, Device.parse(request.settings.device)))
        try:
            answers, losses = request.answers(output)
        except KeyboardInterrupt as ending:
            what = "kept" if args.save else "lost: --no-save was given"
            output.note(f"{WHO}: stopped; what was measured is {what}; to finish: {request.command('--resume')}")
            return exit_code(ending)
    if not answers:
        raise losses[0]
    request.deliver(answers, output)
    for loss in losses:
        output.note(str(loss))
    return 0


def _numbers(args: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for name, parse in NUMBERS.items():
        text = getattr(args, name)
        found[name] = None if text is None else parsed(WHO, f"--{name}", text, parse)
    if args.csv == "-" == args.json:
        raise UsageError(refusal(WHO, "--json", "-", "wants stdout, as --csv does", "one of them"))
    if args.resume and args.again:
        raise UsageError(f"{WHO}: --resume does not go with --again; one of the two")
    if args.resume and not args.save:
        raise UsageError(f"{WHO}: --resume does not go with --no-save; one of the two")
    return found


class _Request:
    """The request, with every mistake in it found."""

    def __init__(self, args: argparse.Namespace, numbers: Mapping[str, Any]) -> None:
        from attnbench.backends.checkouts import name_checkouts
        from attnbench.machine.devices import resolve
        from attnbench.suites.settings import parse_setting
        from attnbench.suites.user_backends import known_backends
        from attnbench.tune.space import find_backend, references_of
        from attnbench.workloads.base import load_workload

        self.args, self.numbers = args, numbers
        name_checkouts(args.path or (), WHO)
        selectors, self.files = flags.backend_words(args.backends)
        if selectors:
            raise UsageError(
                refusal(
                    WHO,
                    "--backends",
                    selectors[0],
                    "is no file",
                    "a Python file",
                    "the backend to be tuned is the first argument",
                )
            )
        known = known_backends(self.files)
        self.backend: Backend = find_backend(args.backend, known, WHO)
        self.references = references_of(args.reference, self.backend, known, WHO)
        self.workload = load_workload(self.backend.workload)
        self.patterns = [word for text in args.configs or () for word in text.split(",") if word]
        given = {name: parse_setting(WHO, name, text) for name in TAKEN if (text := getattr(args, name)) is not None}
        self.axes = self._axes()
        self._check_places()
        device = resolve(given.pop("device", "auto"))
        self.settings = self._settings(device, given)
        self.cases = self._cases(device.kind)
        self.spaces = self._spaces()

    def _axes(self) -> dict[str, tuple[Any, ...]]:
        from attnbench.cli.request import axis_words
        from attnbench.suites.plan import parse_axis
        from attnbench.workloads.base import unknown_axis

        known = {axis.name: axis for axis in self.workload.axes}
        self.words = axis_words(self.args, WHO)
        for name in self.words:
            if name not in known:
                raise unknown_axis(WHO, name, self.workload.axes)
        return {name: parse_axis(WHO, known[name], text) for name, text in self.words.items()}

    def _check_places(self) -> None:
        from attnbench.store.files import check_writable
        from attnbench.tune.race_file import FOLDER

        for path in (self.args.csv, self.args.json):
            if path not in (None, "-"):
                check_writable(path)
        if self.args.save and not self.args.dry_run:
            check_writable(Path(self.args.out) / FOLDER / "race.json")

    def _settings(self, device: Device, given: Mapping[str, Any]) -> Settings:
        from attnbench.errors import Unavailable
        from attnbench.measure.timer import ALL
        from attnbench.record import Run, Settings
        from attnbench.store.runfile import new_id, now
        from attnbench.sweep.settings import check_settings

        kind = device.kind
        if kind not in self.backend.devices:
            accepted = " and ".join(self.backend.devices)
            raise Unavailable(refusal(self.backend.name, "device", kind, "is not supported", accepted))
        self.backend.probe()
        if (timer := given.get("timer")) and (timer == ALL or "," in timer):
            raise UsageError(refusal(WHO, "--timer", timer, "is no one timer to race by", "auto, or a timer's name"))
        settings = Settings(device=str(device), **given)
        self.plan = Run(
            id=new_id(),
            suite="tune",
            command=self.command(),
            started=now(),
            settings=settings,
            backend_files=tuple(Path(file).name for file in self.files),
        )
        check_settings(settings)
        return settings

    def _cases(self, kind: str) -> dict[str, Any]:
        from attnbench.suites.load import Suite, load_suite, suite_names
        from attnbench.suites.plan import expand

        shapes = (load_suite(name, kind) for name in suite_names() if name.startswith("compare"))
        axes = next((dict(one.axes) for one in shapes if one.workload == self.workload.name), {})
        if kind == "cpu":  # half precision is emulated on a CPU
            axes["dtype"] = ("fp32",)
        suite = Suite(name="tune", title="", workload=self.workload.name, backends=(self.backend.name,), axes=axes)
        return expand(suite, self.workload, self.axes)

    def _spaces(self) -> dict[str, dict[str, Mapping[str, Any]]]:
        from attnbench.tune.space import space

        return {case_id: space(self.backend, case, self.patterns, WHO) for case_id, case in self.cases.items()}

    def rules(self) -> Rules:
        """Return the rules of the race."""
        from attnbench.stats.race_data import Rules

        asked = {
            "final_rounds": self.numbers["rounds"],
            "finalists": self.numbers["finalists"],
            "heat": self.numbers["heat"],
            "seconds": self.numbers["seconds"],
        }
        return Rules(**{name: value for name, value in asked.items() if value is not None})

    def command(self, *more: str) -> str:
        """Return the command that repeats the request."""
        args = self.args
        words = ["attnbench", "tune", args.backend]
        for name, text in self.words.items():
            flag = name.replace("_", "-")
            forms = {"true": f"--{flag}", "false": f"--no-{flag}", "both": f"--{flag}-both"}
            words += [forms[text]] if text in forms else [f"--{flag}", text]
        words += [word for text in args.configs or () for word in ("--configs", text)]
        words += [word for text in args.reference or () for word in ("--reference", text)]
        words += [word for file in self.files for word in ("--backends", file)]
        for name in (*NUMBERS, *TAKEN):
            if (value := getattr(args, name)) is not None:
                words += [f"--{name.replace('_', '-')}", value]
        words += ["--out", args.out] if args.out != "results" else []
        return shlex.join([*words, *more])

    def show(self, output: Output) -> None:
        """Print the plan."""
        rules = self.rules()
        for case_id, space in self.spaces.items():
            samples = len(space) * rules.final_rounds
            output.line(
                f"{self.backend.name} on {self.settings.device}, {case_id}: {len(space)} configurations, the "
                f"default among them; about {100 * rules.share:g} % of {samples} samples"
            )
        output.line(f"command: {self.command()}")

    # ── measuring ──────────────────────────────────────────────────────────────────────────────────

    def answers(self, output: Output) -> tuple[dict[str, RaceFile], list[NothingToRun]]:
        """Return a finished race per case, from disk or measured, and the cases without one."""
        from attnbench.cli.progress import Bar
        from attnbench.sweep.run import Event, Execution
        from attnbench.tune.run import Progress

        found: dict[str, RaceFile] = {}
        losses: list[NothingToRun] = []
        self.fresh: set[str] = set()
        with Bar(output, WHO) as bar, Execution(self.plan, files=self.files, on_event=bar.waiting) as execution:
            for case_id in self.cases:

                def tell(news: Progress, case_id: str = case_id) -> None:
                    bar.event(Event("activity", news.word, f"{case_id}  {news.step}", None, news.done, news.total))

                try:
                    found[case_id] = self._answer(case_id, execution, tell)
                except NothingToRun as loss:
                    losses.append(loss)
        return found, losses

    def _answer(self, case_id: str, execution: Any, tell: Any) -> RaceFile:
        import dataclasses

        from attnbench.store.runfile import now
        from attnbench.tune import race_file
        from attnbench.tune.ahead import default_jobs
        from attnbench.tune.key import bucket, digest
        from attnbench.tune.run import Tuning

        case, environment = self.cases[case_id], execution.environment()
        stands_for = bucket(self.workload, case)
        key = self._key(stands_for, environment, case_id)
        path = race_file.place(self.args.out, stands_for.id, self.backend.name, digest(key)) if self.args.save else None
        known = race_file.read(path) if path is not None and not self.args.again else None
        over = known is not None and known.outcome() is not None
        if known is not None and over and set(self.references) <= set(known.references):
            return known
        same = known is not None and known.case_id == case_id and (self.args.resume or over)
        kept = (
            known
            if same and known is not None
            else race_file.RaceFile(
                key=key,
                backend=self.backend.name,
                workload=self.workload.name,
                case=case.to_dict(),
                case_id=case_id,
                started=now(),
                environment=environment,
                settings=self.settings,
                configs=self.spaces[case_id],
                rules=dataclasses.asdict(self.rules()),
            )
        )
        if not (same and over):
            self.fresh.add(case_id)
        on_card = self.backend.compiles and not self.settings.device.startswith("cpu")
        jobs = self.numbers["jobs"] if self.numbers["jobs"] is not None else default_jobs()
        return Tuning(
            kept=kept,
            path=path,
            execution=execution,
            files=self.files,
            jobs=jobs if on_card else 0,
            compilers=self.numbers["jobs"],
            references=self.references,
            on_progress=tell,
        ).carry_out()

    def _key(self, stands_for: Any, environment: Any, case_id: str) -> dict[str, Any]:
        import inspect

        from attnbench.backends.describe import Described
        from attnbench.tune.key import key
        from attnbench.worker.source import hash_of

        # A user's backend is described here, not imported: its file is one of the given ones.
        own = (
            [Path(file) for file in self.files]
            if isinstance(self.backend, Described)
            else [Path(inspect.getfile(type(self.backend)))]
        )
        source = " ".join(str(hash_of(file)) for file in own)
        return key(
            backend=self.backend.name,
            bucket=stands_for,
            environment=environment,
            settings=self.settings,
            source=source,
            configs=self.spaces[case_id],
            rules=self.rules(),
        )

    # ── telling ────────────────────────────────────────────────────────────────────────────────────

    def deliver(self, answers: Mapping[str, RaceFile], output: Output) -> None:
        """Write the rows, then print the results."""
        from attnbench.store.files import write_stdout, write_text
        from attnbench.text import spelled
        from attnbench.tune import race_file
        from attnbench.tune.key import digest
        from attnbench.tune.table import rows, to_csv, to_json

        tables = [rows(kept, outcome) for kept in answers.values() if (outcome := kept.outcome())]
        if self.args.save:
            for kept, table in zip(answers.values(), tables, strict=True):
                path = race_file.place(self.args.out, kept.case_id, kept.backend, digest(kept.key))
                write_text(path.with_suffix(".csv"), to_csv(table))
        whole = [row for table in tables for row in table]
        texts = {"csv": to_csv(whole), "json": to_json(whole)}
        for name, text in texts.items():
            if (path := getattr(self.args, name)) not in (None, "-"):
                write_text(path, text)
        for case_id, kept in answers.items():
            self._print(case_id, kept, output)
        for name, text in texts.items():
            if getattr(self.args, name) == "-":
                write_stdout(spelled(text).encode())

    def _print(self, case_id: str, kept: RaceFile, output: Output) -> None:
        from attnbench.report.tuning import render_tuning
        from attnbench.tune.notes import conditions, no_times, remarks, rerun, standings
        from attnbench.tune.space import short_of

        outcome = kept.outcome()
        assert outcome is not None
        if output.quiet:
            output.line(outcome.pick)
            return
        render_tuning(
            output.console(),
            title=f"{kept.backend}  {kept.case_id}",
            conditions=conditions(kept),
            outcome=outcome,
            flops=kept.flops,
            short=short_of,
            rerun=rerun(kept, outcome, self.files),
            failures=[
                *((failure.status, short_of(name), failure.reason) for name, failure in kept.failures.items()),
                *no_times(kept),
            ],
            references=standings(kept),
            remarks=remarks(kept, outcome, fresh=kept.case_id in self.fresh, asked=case_id),
        )
        output.line("")
