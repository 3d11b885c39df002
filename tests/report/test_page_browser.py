"""The HTML report in a real browser: Debian's Chromium, no network, a phone, a keyboard, dark mode."""

from __future__ import annotations

import math
import re

import pytest

from attnbench.record import Run, Status
from browsing import few, many
from made_up_run import make_case, make_group, make_lost, make_record, make_run

HOSTILE = ["<script>window.hacked=1</script>", "</script><img src=x onerror=window.hacked=1>",
           "\u202eאב\"'> x", "a&amp;b<b>"]  # fmt: skip
SHOWN = [name.replace("\u202e", r"\u202e") for name in HOSTILE]
"""What turns the direction of a line is spelled as an escape, the rest is text as it is."""
SORT = """(index) => {
  const sort = Array.prototype.sort, seen = new MutationObserver(() => {});
  let compared = 0, added = 0;
  Array.prototype.sort = function (order) {
    return sort.call(this, (a, b) => { compared += 1; return order(a, b); });
  };
  seen.observe(document.body, {childList: true, subtree: true});
  document.querySelectorAll("#all-rows thead button")[index].click();
  for (const {addedNodes} of seen.takeRecords()) added += addedNodes.length;
  Array.prototype.sort = sort;
  return [compared, added];
}"""
"""Sorts the table of all rows by a column: how often two values were compared, how many nodes the page was given."""


def test_it_opens_without_a_network_and_without_complaint(six):
    assert six.page.title() == "compare · attnbench"
    assert six.asked[0].startswith("file://")
    with six.page.expect_console_message(lambda line: re.search("connect-src|default-src", line.text)):
        assert six.page.evaluate("fetch('https://example.org/').then(() => 'answered', () => 'refused')") == "refused"
    six.complaints.clear()
    six.asked[:] = six.asked[:1]


def test_charts_are_drawn_when_they_come_into_view(six):
    six.expect(".plot.drawn").to_be_attached()
    last = six.page.locator("#cases .chart").last
    assert last.locator("svg").count() == 0
    last.evaluate("node => node.scrollIntoView({behavior: 'instant'})")
    last.locator("svg").wait_for()
    assert last.locator("svg").bounding_box()["width"] > 300
    drawn, all_of_them = six.page.locator(".plot.drawn").count(), six.page.locator(".plot").count()
    assert drawn < all_of_them
    assert six.page.locator(".plot.failed").count() == 0


def test_every_chart_can_be_drawn(six):
    for place in range(six.page.locator(".chart").count()):
        figure = six.page.locator(".chart").nth(place)
        figure.evaluate("""node => {
          for (let at = node; at; at = at.parentElement) if (at.open === false) at.open = true;
          node.scrollIntoView({behavior: "instant"});
        }""")
        figure.locator(".plot.drawn svg").wait_for()
        assert figure.locator(".plot").get_attribute("aria-label")
    assert six.page.locator(".plot.failed").count() == 0


def test_rows_are_sorted_by_value_up_down_and_back(six):
    before = six.column("TFLOP/s")
    heading = six.page.locator("#all-rows thead th", has_text="TFLOP/s")
    numbers = sorted(float(text) for text in before if text)
    for direction, expected in (("ascending", numbers), ("descending", numbers[::-1])):
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == direction
        texts = six.column("TFLOP/s")
        assert [float(text) for text in texts if text] == expected
        assert texts[-1] == ""  # what was not measured stands last both ways
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "none"
    assert six.column("TFLOP/s") == before


def test_a_case_is_sorted_by_the_keyboard(six):
    table = "#r0c0 .box:first-of-type table"
    first = six.page.locator(table)
    before = six.column("backend", table)
    button = first.locator("thead th button").first
    button.focus()
    assert button.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
    six.page.keyboard.press("Enter")
    assert six.column("backend", table) == sorted(before)
    six.page.keyboard.press("Space")
    assert six.column("backend", table) == sorted(before, reverse=True)
    assert first.locator("thead th").first.get_attribute("aria-sort") == "descending"
    assert "descending" in six.page.locator("#said").text_content()


def test_the_keyboard_reaches_the_results_first(six):
    six.page.keyboard.press("Tab")
    assert six.page.evaluate("document.activeElement.className") == "skip"
    six.page.keyboard.press("Enter")
    six.expect("#main").to_be_focused()


def test_rows_are_filtered_by_words_and_by_choice(six):
    assert "31 rows" in six.page.locator("#rows-found").text_content()
    six.page.locator("#find-row").fill("CAUSAL flash-attn-3")
    assert set(six.column("backend")) == {"flash-attn-3"}
    assert "3 rows (31 without the filter)" in six.page.locator("#rows-found").text_content()
    six.page.locator("#find-row").fill("")
    for title, value, count in (
        ("status", "oom", 1), ("backend", "flex", 6), ("seqlen", "4096", 10), ("causal", "yes", 15),
    ):  # fmt: skip
        choice = six.page.locator("#filters label", has_text=title).locator("select")
        choice.select_option(value)
        assert set(six.column(title)) == {value}
        assert len(six.column(title)) == count
        choice.select_option("all")
    six.page.locator("#find-row").fill("no such row")
    assert six.page.locator("#all-rows tbody tr").count() == 0


def test_cases_are_found_by_name_and_folded(six):
    six.page.locator("#find-case").fill("s4096 causal")
    assert six.page.locator("details.case:visible").count() == 1
    six.page.locator("#find-case").fill("")
    six.page.locator("#fold").click()
    assert six.page.locator("details.case[open]").count() == 0
    six.page.locator("#all-rows tbody a").last.click()
    six.expect("details.case[open]").to_be_attached()
    assert six.page.locator("details.case[open]").count() == 1


def test_a_command_is_copied(open_page, written):
    opened = open_page(written("few", few), permissions=["clipboard-read", "clipboard-write"])
    button = opened.page.locator("#r0c0 .copy").first
    # For a second and a half it says so, which may be over when this process looks.
    button.evaluate("""node => {
      window.shown = [];
      new MutationObserver(() => window.shown.push(node.textContent)).observe(node, {childList: true});
    }""")
    button.click()
    opened.expect("#said").to_have_text("command copied")
    assert opened.page.evaluate("navigator.clipboard.readText()") == button.get_attribute("data-copy")
    assert opened.page.evaluate("window.shown")[0] == "copied"
    opened.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    opened.page.evaluate("document.getElementById('said').textContent = ''")
    opened.page.locator("#all-rows .copy").first.click()  # by selection, where a file has no clipboard
    opened.expect("#said").to_have_text("command copied")


def test_a_name_of_any_length_stays_within_the_page(open_page, written):
    def make() -> Run:
        winner = 400 * "x"
        return make_run(
            [
                record
                for case in (make_case(), make_case(seqlen=512, seqlen_k=512))
                for record in make_group(case, {"sdpa-flash": 100.0, winner: 200.0}, samples=8)
            ],
            suite=300 * "y",
        )

    opened = open_page(written("long", make))
    assert 400 * "x" in opened.page.locator(".result").text_content()
    for width in (1280, 375):
        opened.page.set_viewport_size({"width": width, "height": 800})
        assert not opened.is_sideways()


def test_hostile_names_stay_text(open_page, written):
    def make() -> Run:
        records = []
        for case in (make_case(dtype=HOSTILE[0]), make_case(dtype=HOSTILE[1], seqlen=512, seqlen_k=512)):
            base = make_record(case, HOSTILE[0], tflops=100.0, notes=HOSTILE, repro=HOSTILE[1])
            records += [base, *(make_record(case, name, tflops=90.0, baseline=base) for name in HOSTILE[1:]),
                        make_lost(case, "lost" + HOSTILE[0], Status.SKIPPED, HOSTILE[1])]  # fmt: skip
        return make_run(records, suite=HOSTILE[1], command=HOSTILE[0])

    opened = open_page(written("hostile", make))
    assert opened.page.locator("h1").text_content() == HOSTILE[1]
    assert set(SHOWN) <= set(opened.column("backend"))
    assert HOSTILE[1] in opened.column("reason")
    for place in range(opened.page.locator(".chart").count()):
        figure = opened.page.locator(".chart").nth(place)
        figure.evaluate("node => node.scrollIntoView({behavior: 'instant'})")
        figure.locator(".plot.drawn svg").wait_for()
    figure = opened.page.locator("#r0c0 .chart").first
    figure.evaluate("node => node.scrollIntoView({behavior: 'instant', block: 'center'})")
    opened.settle()
    marks = figure.locator("svg .mark-symbol path")
    for place, name in enumerate((SHOWN[0], SHOWN[3], SHOWN[1], SHOWN[2])):  # the fastest first
        marks.nth(place).hover(force=True)
        opened.expect("#vg-tooltip-element.visible .value").to_have_text(name)
    assert "\u202e" not in opened.page.content()
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 5


def test_a_chart_says_its_figures_under_the_pointer(six):
    six.into_view("#r0c0 .chart")
    six.settle()
    mark = six.page.locator("#r0c0 .chart svg .mark-symbol path").first
    mark.hover(force=True)
    six.page.locator("#vg-tooltip-element.visible").wait_for()
    assert "median" in six.page.locator("#vg-tooltip-element").text_content()


def test_two_thousand_rows_are_sorted_as_data_and_only_those_in_view_are_drawn(open_page, written):
    opened = open_page(written("many", many))
    assert "of 2,000 rows" in opened.page.locator("#rows-found").text_content()
    titles = opened.texts("#all-rows thead button")
    for title in ("backend", "case", "seqlen", "median µs", "TFLOP/s"):
        for turn in range(3):  # up, down, back
            compared, added = opened.page.evaluate(SORT, titles.index(title))
            assert compared <= (0 if turn == 2 else 2000 * math.log2(2000)), title
            assert 50 <= added <= 60, (title, "50 rows, and what is said of them")
    opened.page.evaluate(SORT, titles.index("seqlen"))
    assert set(opened.column("seqlen")) == {"128"}
    opened.page.locator("#on").click()
    assert "51–100 of 2,000 rows" in opened.page.locator("#rows-found").text_content()


def test_many_cases_are_folded_and_their_charts_wait(open_page, written):
    opened = open_page(written("many", many))
    assert opened.page.locator("details.case").count() == 400
    assert opened.page.locator("details.case[open]").count() == 0
    opened.page.evaluate("location.hash = 'r0c399'")
    opened.page.locator("#r0c399[open] .chart svg").first.wait_for()
    assert opened.page.locator("#cases .plot.drawn").count() <= 8


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_does_not_scroll_sideways(open_page, written, width):
    opened = open_page(written("few", few), viewport={"width": width, "height": 700}, has_touch=True)
    assert not opened.is_sideways()
    for selector in ("#r0c0 .chart", "#rows", "#lost", "#settings"):
        opened.into_view(selector)
        opened.settle()
        assert not opened.is_sideways(), selector
    opened.into_view("#r0c0 .chart")
    opened.page.locator("#r0c0 .chart svg").first.wait_for()
    assert not opened.is_sideways()
    box = opened.page.locator("#all-rows").locator("..")
    assert box.evaluate("node => node.scrollWidth > node.clientWidth")  # the table scrolls in its own box


def test_light_and_dark_follow_the_system_and_the_button(open_page, written):
    light, dark = (open_page(written("few", few), color_scheme=scheme) for scheme in ("light", "dark"))
    seen = {}
    for name, opened in (("light", light), ("dark", dark)):
        label = opened.page.locator(".plot.drawn .role-axis-label text").first
        seen[name] = [
            opened.page.evaluate("getComputedStyle(document.body).backgroundColor"),
            label.evaluate("node => getComputedStyle(node).fill"),
        ]
    assert brightness(seen["light"][0]) > 200 > 60 > brightness(seen["dark"][0])
    assert brightness(seen["light"][1]) < 120 < 180 < brightness(seen["dark"][1])
    dark.page.locator("#theme").click()
    assert dark.page.evaluate("getComputedStyle(document.body).backgroundColor") == seen["light"][0]
    dark.page.reload()
    assert dark.page.evaluate("getComputedStyle(document.body).backgroundColor") == seen["light"][0]
    dark.asked[:] = dark.asked[:1]
    dark.page.emulate_media(media="print")
    dark.expect("header.top").to_be_hidden()


def brightness(colour: str) -> float:
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3
