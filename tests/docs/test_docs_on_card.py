"""Every command of the docs that measures or profiles is carried out on a card, as it stands, with its smallest case.

Before a release, on a machine with a GPU; -n 8 because most of the time is starting and compiling:

    python -m pytest -m gpu -n 8 --dist worksteal tests/docs/test_docs_on_card.py

What reads runs needs no card: test_docs_run.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import GUIDES, ROOT, commands

VERBS = ("tune", "profile", "load", "compare", "check", "run", "doctor", "list")
"""What only a card can do comes first."""
PLACEHOLDERS = {"BACKEND", "DIR", "FILE", "PATH", "RUN", "RUN...", "SUITE"}
LEFT_OUT = {
    "--lock-clocks": "sets the card's clocks; tests/machine does it to a simulated card",
    "--watch": "does not end",
    "--from": "reads captures, which needs no card",
    "--source": "data that is not here: tests/datasets",
    "--resume": "tests/cli resumes runs",
    "--help": "measures nothing",
    "--help-all": "measures nothing",
    "all": "minutes: tests/profile/test_profile_on_card.py",
}
LIMIT_S = 170


def _shown() -> list[pytest.param]:
    found: dict[tuple, str] = {}
    for path in GUIDES:
        for command in commands(path):
            verb, *rest = command.words[1:]
            if (
                verb in VERBS
                and (rest or verb in ("run", "compare", "check", "doctor"))
                and not {*rest} & (PLACEHOLDERS | LEFT_OUT.keys())
                and rest not in (["nsys"], ["ncu"], ["configs"])
            ):
                found.setdefault((command.words[1:], command.environment), command.where)
    ordered = sorted(found.items(), key=lambda one: VERBS.index(one[0][0][0]))
    return [
        pytest.param(words, environment, id=f"{where}: {' '.join(words)}") for (words, environment), where in ordered
    ]


@pytest.fixture
def folder(tmp_path):
    """The files that the docs speak of."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for file in ("mine.py", "old.py", "new.py"):
        text = (ROOT / "examples" / "my_kernel.py").read_text("utf-8")
        (tmp_path / file).write_text(text.replace('"chunked"', f'"{file[:-3]}"'))
    (tmp_path / "mine.toml").write_text((ROOT / "src/attnbench/suites/compare.toml").read_text("utf-8"))
    return tmp_path


@pytest.mark.gpu
@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize(("words", "environment"), _shown())
def test_a_command_of_the_docs_ends_well(folder, words, environment):
    here = {**os.environ, **dict(environment), "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("smallest.py")), *words],
        cwd=folder,
        env=here,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in said, said
    if done.returncode == 3:  # a library or a tool that this machine has not, in one line
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, said
    assert done.stdout
