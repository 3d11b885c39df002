"""The layers and their allowed imports: DESIGN.md's table, checked against the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "attnbench"
OPEN = {"errors", "text", "record", "dtypes"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "text": set(),
    "record": set(),
    "dtypes": set(),
    "stats": set(),
    "machine": set(),
    "workloads": {"models", "machine"},
    "kernels": set(),
    "models": {"kernels"},
    "datasets": {"models"},
    "parallel": {"kernels", "machine"},
    "backends": {"workloads", "kernels", "models", "parallel"},
    "check": {"workloads", "stats", "machine"},
    "measure": {"stats", "machine"},
    "suites": {"workloads", "backends", "machine"},
    "worker": {"kernels", "backends", "workloads", "check", "measure", "machine"},
    "store": {"stats"},
    "sweep": {"worker", "suites", "measure", "machine", "backends", "workloads", "check", "store"},
    "profile": {"worker", "backends", "workloads", "measure", "machine", "store"},
    "tune": {"sweep", "worker", "backends", "workloads", "machine", "store", "stats"},
    "verdict": {"store", "stats"},
    "loadtest": {"models", "datasets", "machine", "store"},
    "presentation": {"store", "stats"},
    "formats": {"store", "presentation"},
    "report": {"store", "presentation", "formats", "verdict", "stats"},
}
FACES: dict[str, set[str]] = {
    "api": {
        "formats",
        "machine",
        "measure",
        "presentation",
        "report",
        "stats",
        "store",
        "suites",
        "sweep",
        "workloads",
    },
    "cli": {
        "backends",
        "datasets",
        "formats",
        "loadtest",
        "machine",
        "measure",
        "presentation",
        "profile",
        "report",
        "stats",
        "store",
        "suites",
        "sweep",
        "tune",
        "verdict",
        "worker",
        "workloads",
    },
    "pytest_plugin": {"api", "machine", "report", "store", "verdict"},
    "__init__": {"api"},
    "__main__": {"cli"},
}
"""What people use: the Python functions, the commands, the fixture.  No room imports a face."""

THE_PACKAGE = {"cli", "sweep"}
"""Rooms that import the package itself, for its version and its files."""


def test_no_room_has_the_name_of_a_public_function():
    """Importing a package puts it where the function of that name was: ``attnbench.load(path)`` would fail then."""
    import attnbench

    rooms = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}
    assert not rooms & {name for name in attnbench.__all__ if not name.startswith("__")}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def imports(path: Path, *, types_too: bool) -> frozenset[str]:
    """Every module of ours that a file imports, lazily or not, as full names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set()
    if not types_too:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped |= {id(inner) for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "attnbench"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "attnbench":
            assert node.level == 0
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if is_module(whole) else node.module)
    return frozenset(found)


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_a_room_imports_only_where_the_arrows_point() -> None:
    """What only the type checker reads couples nobody at run time, but a room that names the type knows of the other."""
    wrong = {}
    for path in modules():
        room = room_of(name_of(path))
        allowed = (MAY_IMPORT | FACES)[room] | OPEN | {room} | ({"__init__"} if room in THE_PACKAGE else set())
        if found := {module for module in imports(path, types_too=False) if room_of(module) not in allowed}:
            wrong[name_of(path)] = found, f"{room} may import {sorted(allowed)}"
    assert not wrong


def test_every_arrow_is_needed() -> None:
    """An arrow that no import takes, not even one for types, would let one come in without a decision."""
    used: dict[str, set[str]] = {}
    for path in modules():
        found = {room_of(module) for module in imports(path, types_too=True)}
        used.setdefault(room_of(name_of(path)), set()).update(found)
    arrows = MAY_IMPORT | FACES | {room: {"__init__"} for room in THE_PACKAGE}
    assert not {room: unused for room, allowed in arrows.items() if (unused := allowed - used[room])}


def test_models_share_the_cache_and_nothing_else() -> None:
    """A model may use the paged cache and no other model; the cache knows no model."""
    for path in modules():
        name = name_of(path)
        if room_of(name) == "models":
            own = name.split(".")[2:3]
            used = {module for module in imports(path, types_too=True) if module.startswith("attnbench.models.")}
            others = {module.split(".")[2] for module in used}
            assert others - set(own) <= (set() if own == ["paged_cache"] else {"paged_cache"}), name


KERNELS = {
    "shared": set(),
    "flash": {"shared"},
    "flash.quant": {"shared", "flash"},
    "flash.sparse": {"shared", "flash"},
    "flash.sparse_quant": {"shared", "flash", "flash.quant", "flash.sparse"},
    "hstu": {"shared"},
    "hstu.dense": {"shared", "hstu"},
    "hstu.bsa": {"shared", "hstu", "hstu.dense"},
    "hstu.layer": {"shared", "hstu", "hstu.dense"},
    "hstu.paged": {"shared", "hstu", "hstu.dense"},
    "hstu.pages": {"shared"},
    "compat": {"flash", "hstu.dense"},
}
"""Packages of kernels, and those that each may import."""


def family_of(module: str) -> str:
    """The package of kernels that a module belongs to; of the kernels themselves, nothing."""
    parts = module.split(".")[2:]
    return max((name for name in KERNELS if parts[: name.count(".") + 1] == name.split(".")), key=len, default="")


def test_families_of_kernels_import_only_where_the_arrows_point() -> None:
    wrong = {}
    for path in modules():
        name = name_of(path)
        if room_of(name) != "kernels" or not (family := family_of(name)):
            continue
        others = {module for module in imports(path, types_too=True) if room_of(module) == "kernels" and module != name}
        if found := {module for module in others if family_of(module) not in KERNELS[family] | {family}}:
            wrong[name] = found, f"kernels/{family} may import {sorted(KERNELS[family])}"
        for here, there in (("portable", "hopper"), ("hopper", "portable")):
            if here in name.split(".") and (found := {module for module in others if there in module.split(".")}):
                words = f"{here} kernels never import {there} ones: shared parts lie in the family's own files"
                wrong[name] = found, words
    assert not wrong


def arrows_of(document: str) -> dict[str, set[str]]:
    """By room of a table's rows ``| `room/` | what lives there | may import |``."""
    text = (ROOT / document).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)[^|]*\|[^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    return {room: set(re.findall(r"\w+", arrows)) - {"nothing", "outside", "else"} for room, arrows in rows}


def test_every_room_is_in_the_map_of_both_documents() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} - {"cli", "api"}
    assert rooms == set(MAY_IMPORT) - OPEN
    design, contributing = arrows_of("DESIGN.md"), arrows_of("CONTRIBUTING.md")
    for room in rooms | OPEN | {"cli", "api", "pytest_plugin"}:
        assert design[room] == (MAY_IMPORT | FACES)[room], f"DESIGN.md draws other arrows for {room}"
    for room in rooms:
        assert contributing[room] == MAY_IMPORT[room], f"CONTRIBUTING.md draws other arrows for {room}"


def test_every_package_of_kernels_has_its_arrows() -> None:
    folders = {path.parent.relative_to(SOURCE / "kernels") for path in (SOURCE / "kernels").rglob("api.py")}
    assert {".".join(folder.parts) for folder in folders} | {"shared", "hstu", "compat"} == set(KERNELS)


def test_there_is_no_circle_between_modules() -> None:
    graph = {name_of(path): imports(path, types_too=False) for path in modules()}
    state: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        if state.get(module) == 2:
            return
        assert state.get(module) != 1, f"circle: {' -> '.join((*path, module))}"
        state[module] = 1
        for other in graph.get(module, ()):
            if other != module:
                visit(other, (*path, module))
        state[module] = 2

    for module in graph:
        visit(module, ())


def torch_free() -> list[str]:
    rooms = {
        "errors",
        "text",
        "record",
        "dtypes",
        "stats",
        "store",
        "presentation",
        "formats",
        "report",
        "verdict",
        "suites",
        "cli",
        "machine",
        "datasets",
    }
    found = [name_of(path) for path in modules() if room_of(name_of(path)) in rooms]
    found += [
        name_of(path)
        for path in modules()
        if room_of(name_of(path)) == "workloads" and path.name in ("case.py", "work.py")
    ]
    found += [f"attnbench.models.hstu_ranking.{name}" for name in ("config", "request", "synthetic")]
    return [name for name in found if not name.endswith("__main__")]


def test_what_reports_need_imports_without_torch_and_triton() -> None:
    blocked = ("torch", "triton", "pandas", "sqlalchemy", "alembic", "altair", "vl_convert")
    code = f"""
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
for name in {torch_free()!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SOURCE.parent)})


def test_no_room_has_a_name_that_says_nothing() -> None:
    vague = {"utils", "helpers", "common", "misc", "manager"}
    assert not [path for path in modules() if path.stem in vague]


def test_files_keep_one_subject() -> None:
    assert not {
        name_of(path): lines
        for path in modules()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 450
    }
