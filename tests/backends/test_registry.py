import importlib.metadata
import subprocess
import sys
import types
from operator import attrgetter
from pathlib import Path

import pytest

from attnbench.backends import registry
from attnbench.backends.base import Backend, Config, module_exists
from attnbench.backends.registry import all_backends, parse_selector, resolve, select, split_selectors
from attnbench.backends.sparge_call import DEFAULTS
from attnbench.errors import Unavailable, UsageError
from attnbench.workloads.base import load_workload

MINE = """
from contextlib import contextmanager
from attnbench.backends.base import Backend, Config, module_exists
class Mine(Backend):
    name = "{name}"; workload = "{workload}"; variant = "softmax"; install = "mine"
    def configs(self, case): return [Config("b64-w4"), Config("b128-w8")]
    @contextmanager
    def session(self, case, inputs): yield
"""


def write(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return str(path)


def mine(folder, name="mine", workload="attention", file="mine.py"):
    return write(folder, MINE.format(name=name, workload=workload), file)


def test_scan_and_listing_import_neither_torch_nor_triton_nor_pandas():
    code = (
        "import sys; from attnbench.backends.registry import all_backends\n"
        "for backend in all_backends().values():\n"
        "    backend.version()\n"
        "    try: backend.probe()\n"
        "    except Exception as error: assert type(error).__name__ == 'Unavailable', error\n"
        "print(*sorted({'torch', 'triton', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(registry.__file__).parents[2])},
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_every_backend_is_named_described_and_installable():
    for name, backend in all_backends().items():
        assert backend.name == name
        assert backend.title
        assert backend.install
        assert backend.workload
        assert set(backend.devices) <= {"cpu", "cuda"}
    assert {"eager", "sdpa", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math"} <= set(all_backends())


def test_a_file_joins_and_is_run_once(tmp_path):
    path = write(tmp_path, "RUNS = []\n" + MINE.format(name="mine", workload="attention"))
    first, second = all_backends([path])["mine"], all_backends([path])["mine"]
    assert type(first) is type(second)
    assert select(["mine,eager"], backends=all_backends([path])) == ["mine", "eager"]
    assert "mine" not in all_backends()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere_to_be_found\n", "line 1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\n\ndef f(:\n", "line 3: SyntaxError: invalid syntax"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", "line 2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("raise ValueError('one\\ntwo')\n", "line 1: ValueError: one two"),
        ("x = 1\n", "holds no backend"),
        ("from attnbench.backends.eager import Eager\n", "holds no backend"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        all_backends([path])
    message = str(refused.value)
    assert f"file={path}" in message
    assert words in message
    assert "\n" not in message
    with pytest.raises(UsageError):  # and again: a failed import leaves nothing behind
        all_backends([path])


def test_a_file_that_is_not_there():
    with pytest.raises(
        UsageError,
        match=r"backends: file=\./none\.py is not there; a Python file with a function attention, or a Backend",
    ):
        all_backends(["./none.py"])


def test_two_of_one_name_are_refused_naming_both_places(tmp_path):
    one, two = mine(tmp_path, file="one.py"), mine(tmp_path, file="two.py")
    with pytest.raises(UsageError, match=rf"name=mine is defined twice: {one} and {two}"):
        all_backends([one, two])
    with pytest.raises(UsageError, match=r"name=eager is defined twice: attnbench\.backends\.eager and "):
        all_backends([mine(tmp_path, "eager")])


def offer(monkeypatch, **entries):
    points = [importlib.metadata.EntryPoint(name, value, registry.GROUP) for name, value in entries.items()]
    monkeypatch.setattr(registry, "_entry_points", lambda: points)


def module_of(name, **attributes):
    module = types.ModuleType(name)
    vars(module).update(attributes)
    return module


def test_entry_points_may_be_a_class_or_a_module(monkeypatch, tmp_path):
    cls = type(all_backends([mine(tmp_path)])["mine"])
    other = type("Other", (cls,), {"name": "other", "__module__": "theirs"})
    monkeypatch.setitem(sys.modules, "theirs", module_of("theirs", Other=other, Mine=cls))
    offer(monkeypatch, a="theirs")
    assert "other" in all_backends()
    assert "mine" not in all_backends()  # only imported there
    offer(monkeypatch, a="theirs:Other", b="theirs:Mine")
    assert {"other", "mine"} <= set(all_backends())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere_at_all:X", "entry point nowhere_at_all:X does not import: ModuleNotFoundError: No module named"),
        ("theirs:missing", "entry point theirs:missing does not import: AttributeError"),
        ("theirs:number", "entry point theirs:number is not a Backend and holds none"),
        ("theirs", "entry point theirs is not a Backend and holds none"),
    ],
)
def test_a_broken_entry_point_is_listed_with_the_reason_and_harms_nobody(monkeypatch, value, reason):
    monkeypatch.setitem(sys.modules, "theirs", module_of("theirs", number=3))
    offer(monkeypatch, broken=value)
    assert "eager" in all_backends()
    with pytest.raises(Unavailable, match=f"^broken: {reason}"):
        all_backends()["broken"].probe()
    assert select(["broken"], workload="attention") == ["broken"]
    assert "broken" not in select(["all"], workload="attention")


def test_select_expands_wildcards_in_order_and_once():
    pinned = select(["sdpa-*"], workload="attention")
    assert set(pinned) == {"sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math"}
    assert select(["sdpa-math,sdpa-*", "eager,eager"], workload="attention") == [
        "sdpa-math",
        *(p for p in pinned if p != "sdpa-math"),
        "eager",
    ]
    assert set(select(["all"])) == set(all_backends())
    assert select(["all"], skip=["sdpa*"]) == [name for name in all_backends() if not name.startswith("sdpa")]
    assert select([]) == []


def test_select_keeps_to_the_workload(tmp_path):
    known = all_backends([mine(tmp_path, "theirs", "hstu")])
    assert "theirs" not in select(["all"], workload="attention", backends=known)
    theirs = select(["*"], workload="hstu", backends=known)
    assert "theirs" in theirs
    assert {known[name].workload for name in theirs} == {"hstu"}
    with pytest.raises(UsageError, match="backends: name=theirs computes hstu; a backend of attention: eager, ") as why:
        select(["theirs"], workload="attention", backends=known)
    assert str(why.value).endswith("; attnbench compare --workload hstu measures it")


def test_short_forms(tmp_path):
    files = [mine(tmp_path)]
    known = all_backends(files)
    assert split_selectors("mine[a,b], eager ,,x") == ["mine[a,b]", "eager", "x"]
    assert parse_selector("mine[b64-w4]") == ("mine", "b64-w4")
    chosen = select(["mine[b64-w4],mine[b128-w8],mine"], backends=known)
    assert chosen == ["mine[b64-w4]", "mine[b128-w8]", "mine"]
    assert select(chosen, skip=["mine[b64-w4]"], backends=known) == chosen[1:]
    assert select(chosen, skip=["mine"], backends=known) == []
    assert resolve("mine[b128-w8]", files=files).config == Config("b128-w8")
    assert resolve("mine", files=files).config is None
    with pytest.raises(UsageError, match=r"mine: config=b64w4 is not known; one of b128-w8, b64-w4; did you mean b64"):
        resolve("mine[b64w4]", files=files)
    with pytest.raises(UsageError, match=r"name=eager\[x\] asks for a configuration; eager has none"):
        resolve("eager[x]")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("sdpa-flsh", "=sdpa-flsh is not known; one of .*; did you mean sdpa-flash\\?"),
        ("x*", r"=x\*y matches no backend; one of .*eager"),
        ("eager[", r"=eager\[ is not a selector"),
        ("eager[]", r"=eager\[\] is not a selector"),
        ("sdpa-*[x]", r"=sdpa-\*\[x\] takes no configuration"),
    ],
)
def test_bad_selectors(asked, words):
    asked = asked + "y" if asked == "x*" else asked
    for field, request in (("name", {"names": [asked]}), ("skip", {"names": ["eager"], "skip": [asked]})):
        said = field if "selector" not in words else "name"
        with pytest.raises(UsageError, match=f"backends: {said}{words}"):
            select(**request)


def test_resolve_unknown():
    with pytest.raises(UsageError, match=r"name=egaer is not known; .*did you mean eager"):
        resolve("egaer")
    assert isinstance(resolve("eager"), Backend)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("os.path", True),
        ("json.tool", True),
        ("xml.etree.cElementTwig", False),
        ("nowhere", False),
        ("nowhere.at.all", False),
        ("json.tool.deeper", False),
        ("", False),
        ("..", False),
    ],
)
def test_modules_are_looked_for_without_importing_their_packages(name, there):
    assert module_exists(name) is there


def test_looking_for_a_module_runs_no_package(tmp_path, monkeypatch):
    inner = tmp_path / "loud_package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "loud_package" / "__init__.py").write_text("raise SystemExit('imported')")
    (inner / "leaf.py").touch()  # inner is a namespace package
    monkeypatch.syspath_prepend(tmp_path)
    assert module_exists("loud_package.inner.leaf")
    assert not module_exists("loud_package.inner.other")


def read(backend, path):
    try:
        return attrgetter(path)(backend)
    except AttributeError:
        return None


@pytest.mark.parametrize("name", [name for name, backend in all_backends().items() if backend.default])
def test_the_configuration_of_a_session_without_one_is_listed_and_computes_the_same(name):
    backend = all_backends()[name]
    case = load_workload(backend.workload).case({})
    default = backend.default_of(case)
    assert default in list(backend.configs(case))
    named = type(backend)(default)
    assert named.variant_of(case) == backend.variant_of(case)
    for used in ("inner.name", "kernel", "wrapper"):
        assert read(named, used) == read(backend, used)


def test_sparge_names_the_thresholds_that_it_uses_without_a_configuration():
    case = load_workload("sparse").case({})
    assert dict(all_backends()["sparge"].default_of(case).values) == DEFAULTS


def test_the_version_is_that_of_the_library_and_never_torchs_for_another(monkeypatch):
    """An adapter that only names its module has no other version recorded in silence."""
    known = {"torch": "2.11", "blazeattn": "0.3", "flash-blaze": "4.1"}

    def version(name):
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "version", version)

    def recorded(**fields):
        return type("Mine", (Backend,), {"name": "mine", "session": None, **fields})().version()

    assert recorded() == "2.11"
    assert recorded(module="blazeattn.interface") == "0.3"
    assert recorded(module="blaze", distribution="flash-blaze") == "4.1"
    assert recorded(module="blaze") is None
