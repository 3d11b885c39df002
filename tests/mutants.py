"""Mutation testing of a room by hand: which small mistakes in its code does no test see, and which tests see none?

A mutant differs in one place: a comparison, an operator, a number, a condition or a part of it, `min` for `max`, a
statement or an early end left out.
Each is tried in a forked process by the tests that run its line (found by `coverage`, `pip install coverage`), fast
ones first; the slow ones only judge what all fast ones let pass.

    python tests/mutants.py stats --count 300 --out mutants-stats.json
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "attnbench"
OPTIONS = [
    "-q",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:attnbench",
    "-p",
    "no:randomly",
    "--timeout=0",  # its alarm would take the place of the one that ends what hangs
]
SLOW_S = 0.5
"""A test function that takes longer, all its parameters together, is asked last."""
PATIENCE = 20.0
"""Times what the tests take without a mutant until one counts as hanging, which is seen."""

OTHER: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}


@dataclass
class Mutant:
    """One place and what stands there instead."""

    path: Path
    node: int
    "its place in the order of `ast.walk`"
    how: int

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.path.read_text("utf-8"))
        node = next(one for index, one in enumerate(ast.walk(self.tree)) if index == self.node)
        self.before, self.line = ast.unparse(node), node.lineno
        list(_changes(node))[self.how]()
        self.after = ast.unparse(node)


def places(path: Path) -> list[tuple[Path, int, int]]:
    """Every mutant of a file, unmade."""
    nodes = enumerate(ast.walk(ast.parse(path.read_text("utf-8"))))
    return [(path, number, how) for number, node in nodes for how in range(len(list(_changes(node))))]


def _changes(node: ast.AST) -> Iterator:
    """What can be done to a node, in place."""
    if isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            yield lambda index=index: node.values.pop(index)
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
        yield lambda: node.body.__setitem__(-1, ast.copy_location(ast.Pass(), node.body[-1]))
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            yield lambda index=index, operator=operator: node.ops.__setitem__(index, OTHER[type(operator)]())
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OTHER:
        if not (isinstance(node, ast.BinOp) and any(isinstance(x, ast.JoinedStr) for x in (node.left, node.right))):
            yield lambda: setattr(node, "op", OTHER[type(node.op)]())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda: setattr(node, "value", node.value + 1 if type(node.value) is int else node.value * 1.5 + 0.1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda: setattr(node, "value", not node.value)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield lambda: setattr(node, "test", ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test))
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield lambda: setattr(node, "id", NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield lambda: setattr(node, "attr", NAMES[node.attr])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda: setattr(node, "op", ast.UAdd())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield lambda: setattr(node, "value", ast.copy_location(ast.Constant(None), node.value))


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts a mutant in the place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        parts = mutant.path.relative_to(SOURCE.parent).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        is_package = self.mutant.path.name == "__init__.py"
        spec = importlib.util.spec_from_loader(name, self, origin=str(self.mutant.path), is_package=is_package)
        if is_package:
            spec.submodule_search_locations = [str(self.mutant.path.parent)]
        return spec

    def exec_module(self, module) -> None:
        module.__file__ = str(self.mutant.path)
        exec(compile(ast.fix_missing_locations(self.mutant.tree), str(self.mutant.path), "exec"), module.__dict__)


class Told:
    """Collects what became of each test function."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report) -> None:
        name = report.nodeid.partition("[")[0]
        self.seconds[name] += report.duration
        if report.failed:
            self.failed.add(name)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def run(tests: list[str], mutant: Mutant | None, limit_s: float, *more: str) -> Told | None:
    """Run tests in a fork, with a mutant in place; None where they hang or end the process."""
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.alarm(max(1, round(limit_s)))
            if mutant:
                sys.meta_path.insert(0, Loader(mutant))
            told = Told()
            try:
                code = pytest.main([*OPTIONS, *more, *tests], plugins=[told])
            except BaseException as error:
                code, told.failed = 1, {repr(error)}
            if code not in (0, 1) and not told.failed:
                told.failed = {f"exit code {code}"}
            json.dump([told.seconds, sorted(told.failed)], said)
            said.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            return None
        said.seek(0)
        told = Told()
        seconds, failed = json.load(said)
        told.seconds, told.failed = seconds, set(failed)
        return told


def lines_of_tests(room: Path, tests: list[str]) -> dict[tuple[str, int], set[str]]:
    """The test functions that run each line; lines run at import are of none."""
    folder = Path(tempfile.mkdtemp())
    child = os.fork()
    if not child:
        import coverage

        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        data = coverage.Coverage(data_file=str(folder / "data"), source=[str(room)])

        class Contexts:
            def pytest_runtest_logstart(self, nodeid, location) -> None:
                data.switch_context(nodeid.partition("[")[0])

        data.start()
        pytest.main([*OPTIONS, *tests], plugins=[Contexts()])
        data.stop()
        data.save()
        os._exit(0)
    os.waitpid(child, 0)
    import coverage

    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    data = coverage.CoverageData(str(folder / "data"))
    data.read()
    for path in data.measured_files():
        for line, names in data.contexts_by_lineno(path).items():
            found[path, line] |= {name for name in names if name}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("room", help="a folder of src/attnbench whose tests are those of tests/ROOM")
    parser.add_argument("--tests", nargs="*", help="other tests")
    parser.add_argument("--count", type=int, default=300, help="mutants drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    os.chdir(TESTS.parent)
    importlib.import_module("numpy")  # in the parent, for all forks
    room, tests = SOURCE / args.room, args.tests or [f"tests/{args.room}"]
    plain = run(tests, None, 3600)
    if plain is None or plain.failed:
        raise SystemExit(f"without a mutant: {plain and sorted(plain.failed)}")
    where = lines_of_tests(room, tests)
    everyone = [one for path in sorted(room.rglob("*.py")) for one in places(path)]
    drawn = random.Random(args.seed).sample(everyone, min(args.count, len(everyone)))
    rows, started = [], time.monotonic()
    for mutant in (Mutant(*place) for place in drawn):
        names = where.get((str(mutant.path), mutant.line)) or set(plain.seconds)
        ordered = sorted(names, key=lambda name: plain.seconds.get(name, 0.0))
        fast = [name for name in ordered if plain.seconds.get(name, 0.0) <= SLOW_S]
        slow = [name for name in ordered if name not in fast]
        killers: list[str] = []
        for part, more in ((fast, ()), (slow, ("-x",))):
            if part and not killers:
                limit_s = 5 + PATIENCE * sum(plain.seconds.get(name, 0.0) for name in part)
                told = run(part, mutant, limit_s, *more)
                killers = ["hangs or dies"] if told is None else sorted(told.failed)
        rows.append(
            {
                "place": f"{mutant.path.relative_to(SOURCE)}:{mutant.line}",
                "before": mutant.before,
                "after": mutant.after,
                "tests": len(names),
                "killers": killers,
            }
        )
        if not killers:
            print(f"{rows[-1]['place']}: {mutant.before}  ->  {mutant.after}", flush=True)
        args.out.write_text(json.dumps({"mutants": len(everyone), "rows": rows, "seconds": plain.seconds}, indent=1))
    lived = sum(not row["killers"] for row in rows)
    print(f"{len(rows)} of {len(everyone)} mutants, {lived} not seen, {time.monotonic() - started:.0f} s")
    useful = {name for row in rows for name in row["killers"]}
    for name in sorted(set(plain.seconds) - useful):
        print(f"saw none: {name} ({plain.seconds[name]:.2f} s)")


if __name__ == "__main__":
    main()
