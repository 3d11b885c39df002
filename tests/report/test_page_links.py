"""Link targets of the report in a real browser, and the use of the width by tables and charts."""

from __future__ import annotations

import pytest

from browsing import Opened, few, many
from waiting import until

STILL = """async () => {
  for (let frames = 0, last = NaN; frames < 6; frames = scrollY === last ? frames + 1 : 0) {
    last = scrollY;
    await new Promise(requestAnimationFrame);
  }
}"""
"""Ends when the page has stopped scrolling."""
LANDED = """(id) => {
  const top = document.getElementById(id).getBoundingClientRect().top;
  const bar = document.querySelector(".top").offsetHeight;
  const last = scrollY + innerHeight >= document.documentElement.scrollHeight - 1;
  return [top - bar, last];
}"""
"""How far below the bar at the top an element begins, and whether the page cannot be scrolled further."""


HEIGHTS = """() => [...document.querySelectorAll(".plot")].map((box) =>
  Math.round(box.querySelector("svg").getBoundingClientRect().height - box.clientHeight))"""
"""By how much each chart is higher than its place."""


def assert_landed(opened: Opened, target: str) -> None:
    """However late the page goes there: a slow machine may draw some frames before."""
    seen: list[tuple[float, bool]] = []

    def is_there() -> bool:
        opened.page.evaluate(STILL)
        opened.settle()
        below, last = opened.page.evaluate(LANDED, target)
        seen.append((below, last))
        return below >= -1 and (below <= 40 or last)

    assert until(is_there), (target, seen[-1])


@pytest.mark.parametrize("width", [400, 1000, 1920])
def test_every_link_lands_where_it_says(open_page, written, width):
    """From the top and with no chart below drawn; charts that are drawn on the way move nothing."""
    opened = open_page(written("few", few), viewport={"width": width, "height": 800}, reduced_motion="reduce")
    opened.settle()
    links = opened.page.locator('a[href^="#"]')
    targets = opened.targets()
    sections = {"main", "charts", "cases", "rows", "lost", "settings"}
    assert set(targets) == sections | {f"r0c{place}" for place in range(6)}
    for place in range(len(targets) - 1, -1, -1):  # the far ones first: what lies between was never in view
        links.nth(place).evaluate("link => { scrollTo(0, 0); link.click(); }")
        assert_landed(opened, targets[place])


def test_links_land_among_hundreds_of_unfolded_cases(open_page, written):
    opened = open_page(written("many", many), viewport={"width": 1000, "height": 800}, reduced_motion="reduce")
    opened.page.locator("#unfold").click()
    for target in ("settings", "r0c9"):
        opened.page.locator(f'a[href="#{target}"]').first.evaluate("link => { scrollTo(0, 0); link.click(); }")
        assert_landed(opened, target)


def test_a_link_followed_twice_unfolds_its_case_again(six):
    for action in ("#fold", "filter"):
        six.page.locator("#all-rows tbody a").last.click()
        assert_landed(six, "r0c5")
        six.page.locator("#fold").click() if action == "#fold" else six.page.locator("#find-case").fill("no such case")
        assert six.page.locator("#r0c5").evaluate("node => !node.open || node.hidden")
        six.page.locator("#all-rows tbody a").last.click()
        six.expect("#r0c5").to_be_visible()
        assert six.page.locator("#r0c5").evaluate("node => node.open")
        assert_landed(six, "r0c5")


def test_an_address_with_a_fragment_opens_there(open_page, written):
    opened = open_page(written("many", many))
    # By way of another page: a reload would return to wherever the page was scrolled to by then.
    opened.page.goto("about:blank")
    opened.page.goto(written("many", many).as_uri() + "#r0c399")
    opened.asked[:] = opened.asked[:1]
    assert_landed(opened, "r0c399")


def test_a_chart_takes_the_room_that_was_kept_for_it(open_page, written):
    """The page is as high with all charts drawn as with none, at any width."""
    opened = open_page(written("few", few), viewport={"width": 1000, "height": 2000})
    before = opened.page.evaluate("document.documentElement.scrollHeight")
    plots = opened.page.locator(".plot")
    for place in range(0, plots.count(), 4):
        plots.nth(place).evaluate("node => node.scrollIntoView({behavior: 'instant'})")
        opened.settle()
    assert opened.page.evaluate("document.documentElement.scrollHeight") == before
    assert opened.page.locator(".plot.drawn").count() == plots.count()
    for width in (400, 1000, 1920):
        opened.page.set_viewport_size({"width": width, "height": 800})
        opened.page.evaluate(STILL)
        assert set(opened.page.evaluate(HEIGHTS)) == {0}


def test_a_table_says_that_it_has_more_columns(open_page, written):
    opened = open_page(written("few", few), viewport={"width": 400, "height": 800})
    box = opened.page.locator(".box", has=opened.page.locator("#all-rows"))
    words = "node => getComputedStyle(node, '::after').content"
    for share, expected in ((0, "more columns →"), (0.5, "← more columns →"), (1, "← more columns")):
        box.locator(".scroll").evaluate("(node, share) => { node.scrollLeft = share * node.scrollWidth; }", share)
        for _ in range(200):
            if box.evaluate(words) == f'"{expected}"':
                break
            opened.page.wait_for_timeout(50)
        assert box.evaluate(words) == f'"{expected}"'
    assert box.page.locator(".scroll").count() == box.page.locator(".box > .scroll:only-child").count() > 8
    wide = open_page(written("few", few), viewport={"width": 1920, "height": 800})
    table = wide.page.locator("#r0c0 .box").first
    assert table.evaluate(words) == "none"
    assert table.evaluate("node => node.querySelector('table').offsetWidth <= node.clientWidth")
    assert 1000 < table.evaluate("node => node.clientWidth") < 1800  # and no wider than its columns want
