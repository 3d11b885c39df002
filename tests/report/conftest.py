from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.report.html import page
from attnbench.store.derive import derive

sys.path.insert(0, str(Path(__file__).parents[1]))

from browsing import ARGUMENTS, NEEDS_BROWSER, PATIENCE_MS, Opened, few


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One browser for all tests, in a folder of its own."""
    chromium = shutil.which("chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason=NEEDS_BROWSER)
    if chromium is None:
        pytest.skip(NEEDS_BROWSER)  # fails in CI: tests/skips.toml does not list it
    with sync_api.sync_playwright() as playwright:
        sync_api.expect.set_options(timeout=PATIENCE_MS)
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS, timeout=PATIENCE_MS)
        yield started
        started.close()


@pytest.fixture
def open_page(browser, tmp_path_factory) -> Iterator:
    """Open the report of a run; at the end none may have asked for anything or complained."""
    opened: list[Opened] = []

    def open_it(path: Path, **options) -> Opened:
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the report of a run once, whatever number of tests open it."""
    folder, files = tmp_path_factory.mktemp("pages"), {}

    def write(name: str, make) -> Path:
        if name not in files:
            files[name] = folder / f"{name}.html"
            files[name].write_text(page([derive(make())]), "utf-8")
        return files[name]

    return write


@pytest.fixture
def six(open_page, written) -> Opened:
    return open_page(written("few", few))
