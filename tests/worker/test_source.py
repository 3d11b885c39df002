"""The hash that tells whether a backend is the same as in another run."""

from __future__ import annotations

import shutil

import pytest

from attnbench.worker.source import PACKAGE, hash_of, sources

ADAPTER = """
from attnbench.backends.base import Backend
import torch, no_such_module

class Mine(Backend):
    def session(self, case, inputs):
        from mine_kernel import attend
        from parts import tiles
"""


@pytest.fixture
def mine(tmp_path):
    """A backend of somebody's own with a kernel beside it."""
    (tmp_path / "parts").mkdir()
    files = {
        "mine.py": ADAPTER,
        "mine_kernel.py": "from os import path\nROWS = 64\n",
        "mine_kernel.toml": "rows = 1\n",
        "parts/__init__.py": "",
        "parts/tiles.py": "from . import deep\n",
        "parts/deep.py": "import mine\n",
        "other.py": "",
        "broken.py": "def",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "mine.py"


def test_a_backend_is_its_file_and_what_that_imports_beside_it(mine):
    assert [file.relative_to(mine.parent).as_posix() for file in sources(mine)] == [
        "mine.py",
        "mine_kernel.py",
        "mine_kernel.toml",
        "parts/__init__.py",
        "parts/deep.py",
        "parts/tiles.py",
    ]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mine.py", True),
        ("mine_kernel.py", True),
        ("mine_kernel.toml", True),
        ("parts/deep.py", True),
        ("other.py", False),
    ],
)
def test_an_edited_kernel_is_another_source(mine, name, changes):
    before = hash_of(mine)
    with (mine.parent / name).open("a") as file:
        file.write("\n# edited\n")
    assert (hash_of(mine) != before) is changes


def test_the_same_code_has_the_same_hash_wherever_it_lies(mine, tmp_path_factory):
    elsewhere = shutil.copytree(mine.parent, tmp_path_factory.mktemp("there") / "copy")
    assert hash_of(elsewhere / "mine.py") == hash_of(mine)


def test_what_cannot_be_read_has_none_and_what_is_no_python_stands_alone(mine):
    assert hash_of(mine.with_name("missing.py")) is None
    assert sources(mine.with_name("broken.py")) == [mine.with_name("broken.py")]


def test_our_own_backends_hang_on_their_kernels_and_on_no_workload():
    for adapter in sorted((PACKAGE / "backends").glob("*.py")):
        rooms = {file.relative_to(PACKAGE).parts[0] for file in sources(adapter)}
        assert rooms <= {"backends", "kernels", "models"}, adapter
        assert ("from attnbench.kernels" in adapter.read_text("utf-8")) <= ("kernels" in rooms), adapter
    names = parts("hstu_bsa_triton")
    assert {"backends/hstu_bsa_triton.py", "kernels/hstu/bsa/api.py", "kernels/hstu/bsa/portable/select.py"} <= names
    assert not {"backends/base.py", "backends/registry.py"} & names


def test_tuned_defaults_are_part_of_a_backend():
    assert {"kernels/flash/config/defaults.toml", "kernels/flash/config/backward.toml"} <= parts("flash_triton")
    dense = parts("hstu_triton")
    assert {"kernels/hstu/dense/configs.toml", "kernels/hstu/dense/hopper/forward.py", "kernels/hstu/tiles.py"} <= dense
    assert not any("/bsa/" in name for name in dense), "what it does not use is not its source"


def parts(backend):
    return {file.relative_to(PACKAGE).as_posix() for file in sources(PACKAGE / f"backends/{backend}.py")}
