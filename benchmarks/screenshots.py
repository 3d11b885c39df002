"""Pictures of the HTML report for the docs: three widths, light from the top, dark at a case.

    python benchmarks/screenshots.py [--run benchmarks/results/quick-h200.json] [--folder docs/images]

Needs Chromium and playwright. Look at each picture before it is committed.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from attnbench.report.html import page
from attnbench.store.runfile import read

SIZES = {400: 860, 1000: 1200, 1920: 1160}
"Height of the view by its width, in pixels."
VIEWS = {"light": "", "dark": "r0c11"}
"Where each theme is shown: the top of the page, the last case of `quick`."
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu"]
WAITING = """() => [...document.querySelectorAll(".chart")].filter((figure) => {
  const {top, bottom} = figure.getBoundingClientRect();
  return figure.checkVisibility() && bottom > 0 && top < innerHeight && !figure.querySelector(".drawn, .failed");
}).length"""
"""How many charts in view are not drawn yet."""


def main() -> None:
    """Write ``report-<width>-<theme>.png`` for each width and theme."""
    from playwright.sync_api import sync_playwright

    root = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=root / "benchmarks/results/quick-h200.json")
    parser.add_argument("--folder", type=Path, default=root / "docs/images")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        file.write_text(page([read(arguments.run)]), "utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for width, height in SIZES.items():
            for theme, anchor in VIEWS.items():
                opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme,
                                          reduced_motion="reduce")  # fmt: skip
                opened.goto(f"{file.as_uri()}#{anchor}")
                opened.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                while opened.evaluate(WAITING):
                    opened.wait_for_timeout(50)
                opened.screenshot(path=arguments.folder / f"report-{width}-{theme}.png")
                opened.close()
        browser.close()


if __name__ == "__main__":
    main()
