"""Shared code of the page tests: open reports in Debian's Chromium, without a network."""

from __future__ import annotations

from pathlib import Path

from attnbench.record import Run, Status
from made_up_run import make_case, make_group, make_lost, make_run

NEEDS_BROWSER = "needs Chromium to test the HTML report; apt install chromium, pip install playwright"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
PATIENCE_MS = 30 * 60 * 1000
"""Of a single wait: it ends with what it waits for on the slowest machine, and a hang ends with pytest's own limit."""
NEAR = """async () => {
  for (const frame of [1, 2]) await new Promise(requestAnimationFrame);
  return [...document.querySelectorAll(".chart")].filter((figure) => {
    const {top, bottom} = figure.getBoundingClientRect(), ended = figure.querySelector(".drawn, .failed");
    return !ended && figure.checkVisibility() && bottom > -100 && top < innerHeight + 100;
  }).length;
}"""
"""How many charts are about to be drawn (within 150 pixels of the view), once the page has laid itself out."""


class Opened:
    """A page, and what it did that it should not."""

    def __init__(self, browser, path: Path, **options) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
        self.context.set_offline(True)
        self.context.set_default_timeout(PATIENCE_MS)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page = self.context.new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())

    def close(self) -> None:
        self.context.close()
        assert [url for url in self.asked[1:] if not url.startswith("data:")] == []
        assert self.complaints == []

    def targets(self) -> list[str]:
        return [link.get_attribute("href")[1:] for link in self.page.locator('a[href^="#"]').all()]

    def texts(self, selector: str) -> list[str]:
        return [text.strip("\u2007\u2008\n ") for text in self.page.locator(selector).all_text_contents()]

    def column(self, title: str, table: str = "#all-rows") -> list[str]:
        """The cells of a column of a table, in the order shown."""
        titles = self.texts(f"{table} thead th")
        return self.texts(f"{table} tbody tr > :nth-child({titles.index(title) + 1})")

    def into_view(self, selector: str) -> None:
        self.page.locator(selector).first.evaluate("node => node.scrollIntoView({behavior: 'instant'})")

    def expect(self, selector: str):
        """What is to become true of the first such element.  The page's own policy forbids `wait_for_function`."""
        from playwright.sync_api import expect

        return expect(self.page.locator(selector).first)

    def settle(self) -> None:
        """Wait until the charts near the view are drawn; one that grows may push another away or bring it near."""
        while self.page.evaluate(NEAR):
            pass

    def is_sideways(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > innerWidth")


def few() -> Run:
    """Six cases, and a backend that is lost in one."""
    cases = [make_case(seqlen=s, seqlen_k=s, causal=causal) for s in (1024, 4096, 16384) for causal in (False, True)]
    records = [record for case in cases for record in make_group(case, samples=12)]
    return make_run([*records, make_lost(cases[0], "eager", Status.OOM, "needs 48.0 GiB")])


def many() -> Run:
    """2,000 records in 400 cases."""
    shapes = [make_case(batch=batch, seqlen=seqlen, seqlen_k=seqlen, headdim=headdim, headdim_v=headdim,
                        causal=causal, dtype=dtype)
              for batch in (1, 2, 4, 8, 16) for seqlen in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
              for headdim in (64, 128) for causal in (False, True) for dtype in ("bf16", "fp16")]  # fmt: skip
    return make_run([record for case in shapes for record in make_group(case, samples=4)])
