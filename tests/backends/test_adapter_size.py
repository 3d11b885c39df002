"""The size of each adapter in lines of code, without docstrings, comments and imports."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from attnbench.backends.registry import all_backends

MOST = 60

LONGER = {
    "hstu_bsa_eager": "the block-sparse function itself, in PyTorch",
    "hstu_fbgemm": "versions of the library whose arguments differ",
    "sparse_flashinfer": "two wrappers with a format of lists each",
    "video": "runs any backend of two other workloads inside a model",
}
"""Files that are longer, and what they hold that a parameter of the base classes cannot say."""


def lines_of_code(source: str) -> int:
    """Lines that are neither blank, comment, docstring nor import."""
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if text or types or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, node.end_lineno + 1))
    lines = [line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in left_out]
    return sum(1 for line in lines if line and not line.startswith("#"))


def test_an_adapter_is_short():
    files = {Path(inspect.getfile(type(backend))) for backend in all_backends().values()}
    ours = {
        path.stem: lines_of_code(path.read_text(encoding="utf-8")) for path in files if path.parent.name == "backends"
    }
    assert len(ours) > 35
    assert {name for name, lines in ours.items() if lines >= MOST} == LONGER.keys() & ours.keys()
    assert LONGER.keys() <= ours.keys()


def test_what_is_a_line_of_code():
    assert (
        lines_of_code(
            '"""Doc."""\nimport os\n\n# why\nx = 1\ndef f():\n    """Doc.\n\n    More."""\n    return (\n        x\n    )\n'
        )
        == 5
    )
