"""The wheel and the source archive have all needed files, and an installed wheel measures in a new folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HEAVY = {"vl-convert-python", "pandas", "psycopg", "diffusers", "mlcommons-loadgen", "ray"}
"""What the main job does not need: extras."""


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, env=clean | environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with a wheel and a source archive of this checkout; the wheel is built from the archive."""
    folder = tmp_path_factory.mktemp("built")
    path = ""
    if find_spec("hatchling") is None:  # a development environment older than the lock
        path = str(folder / "backend")
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", path, "hatchling", cwd=folder)
    code = f"from hatchling.build import build_{{}} as build; print(build({str(folder)!r}))"
    archive = folder / run(sys.executable, "-c", code.format("sdist"), cwd=ROOT, PYTHONPATH=path).split()[-1]
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "source", filter="data")
    [source] = (folder / "source").iterdir()
    wheel = folder / run(sys.executable, "-c", code.format("wheel"), cwd=source, PYTHONPATH=path).split()[-1]
    return archive, wheel


def package_files() -> set[str]:
    """What belongs to the package: everything in its folder that git would keep."""
    folder = ROOT / "src"
    return {
        str(path.relative_to(folder))
        for path in (folder / "attnbench").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_both_hold_every_file_of_the_package_and_nothing_else(built):
    archive, wheel = built
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == package_files()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with tarfile.open(archive) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    assert {f"src/{name}" for name in package_files()} <= inside
    assert {"README.md", "LICENSE", "pyproject.toml", "PKG-INFO"} <= inside
    assert {name.split("/")[0] for name in inside} <= {
        "src",
        "examples",
        "README.md",
        "README.zh-CN.md",
        "CHANGELOG.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    assert wheel.stat().st_size < 3e6


def test_the_metadata_is_the_projects_and_heavy_things_are_extras(built):
    with zipfile.ZipFile(built[1]) as wheel:
        [name] = [one for one in wheel.namelist() if one.endswith(".dist-info/METADATA")]
        found = Parser().parsestr(wheel.read(name).decode())
        [entries] = [wheel.read(one).decode() for one in wheel.namelist() if one.endswith("entry_points.txt")]
    assert (found["Name"], found["Version"]) == ("attnbench", PROJECT["version"])
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_payload().startswith("# attnbench")
    needs = {re.match(r"[\w-]+", line)[0]: "extra ==" in line for line in found.get_all("Requires-Dist")}
    assert {name for name, extra in needs.items() if extra} == HEAVY
    assert "attnbench = attnbench.__main__:main" in entries
    assert "[pytest11]" in entries


def test_a_wheel_alone_measures_in_a_folder_of_its_own(built, tmp_path):
    """The environment is empty but for the wheel; it sees the libraries that are installed here."""
    home = tmp_path / "venv"
    venv.create(home)
    site = next(home.rglob("site-packages"))
    libraries = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "installed_here.pth").write_text("\n".join(libraries))
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--target",
        site,
        built[1],
        cwd=tmp_path,
    )
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    place = run(home / "bin/python", "-c", "import attnbench; print(attnbench.__file__)", cwd=folder)
    assert Path(place.strip()).is_relative_to(home)
    said = run(
        home / "bin/python",
        "-m",
        "attnbench",
        "run",
        "quick",
        "--device",
        "cpu",
        "--seqlen",
        "64",
        "--no-causal",
        "--max-seconds",
        "0.05",
        "--html",
        "quick.html",
        cwd=folder,
        OMP_NUM_THREADS="1",
        COLUMNS="100",
    )
    assert "sdpa" in said
    assert (folder / "quick.html").stat().st_size > 1e5
    [path] = (folder / "results").glob("*.json")
    assert "passed" in path.read_text()
