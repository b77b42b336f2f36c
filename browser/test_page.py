"""The page in Chromium: silent, alone, usable by hand, by key and by reader, at three widths, in light and dark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from browser.conftest import CLAIMS, WIDTHS
from rebinding.report.files import CLAIMS as CLAIMS_FILE
from rebinding.report.page import render
from tests.report.folders import make, make_row
from tests.report.test_page import HOSTILE
from tests.report.test_stopped_claims import IDS, stop_all_claims

PRINTED = 718
"""Dots of a line of an A4 sheet between the page's margins: 190 mm."""
Visits = Any
"""What the fixture `visit` gives: a function that opens a page."""


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_silent_and_asks_for_nothing(visit: Visits, report: Path, width: str) -> None:
    """No complaint in the console, no request but the page itself, and nothing sticks out to the side."""
    page_visit = visit(report, width=width)
    page_visit.page.click("#open-all")
    page_visit.page.wait_for_timeout(200)
    assert page_visit.complaints == []
    assert [url for url in page_visit.requests if not url.startswith("data:")] == [report.as_uri()]
    assert page_visit.page.evaluate("document.documentElement.scrollWidth") == WIDTHS[width][0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_nobody_is_shut_out(visit: Visits, report: Path, width: str, scheme: str) -> None:
    """axe finds nothing: contrast, labels, names, order of headings, landmarks. Everything is opened first."""
    page_visit = visit(report, width=width, color_scheme=scheme)
    page_visit.page.eval_on_selector_all("details", "all => all.forEach(one => (one.open = true))")
    result = Axe().run(page_visit.page)
    wrong = {
        violation["id"]: [node["html"][:200] for node in violation["nodes"]][:3]
        for violation in result.response["violations"]
    }
    assert wrong == {}
    passed = Axe().run(page_visit.page, options={"resultTypes": ["passes"], "runOnly": ["color-contrast"]})
    assert passed.response["passes"], "contrast was not looked at"


def test_filters_leave_what_fits(visit: Visits, invented: Path) -> None:
    page_visit = visit(invented)
    assert page_visit.visible_claims() == list(CLAIMS)
    assert page_visit.cells() == 12
    page_visit.page.uncheck("input[value=replicated]")
    assert page_visit.visible_claims() == [*CLAIMS[1:5], CLAIMS[5]]
    assert page_visit.cells() == 9
    page_visit.page.locator("input[name=model]").first.uncheck()
    assert page_visit.cells() == 5
    assert page_visit.page.locator("output").inner_text() == "5 of 12 rows shown"
    page_visit.page.check("input[name=differs]")
    assert page_visit.visible_claims() == [CLAIMS[5]]
    page_visit.page.click("button[type=reset]")
    expect(page_visit.page.locator("output")).to_have_text("12 of 12 rows shown")
    page_visit.page.fill("input[name=words]", "THIRD slot")
    assert page_visit.visible_claims() == [CLAIMS[5]]


def test_the_answer_is_on_the_first_screen(visit: Visits, headline: Path) -> None:
    """What was tested, on what, and what came out, without scrolling; a phone begins with the same sentences."""
    page = visit(headline, width="desktop").page
    page.set_viewport_size({"width": 1400, "height": 900})
    for selector in ("header", ".answers", ".grid"):
        box = page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= 900, selector
    phone = visit(headline, width="phone").page
    box = phone.locator(".answers").bounding_box()
    assert box["y"] + box["height"] <= WIDTHS["phone"][1]
    assert phone.locator(".grid thead").is_hidden()
    cards = phone.locator(".grid tbody tr")
    assert cards.count() == 2
    assert max(card.bounding_box()["width"] for card in cards.all()) <= WIDTHS["phone"][0]
    assert phone.locator(".grid .of-model:visible").count() == cards.count() * 2


def test_words_are_matched_by_row(visit: Visits, invented: Path) -> None:
    """A model's name keeps its own rows, a verdict those that have it; without a hit no heading stays."""
    page_visit = visit(invented)
    words = page_visit.page.locator("input[name=words]")
    words.fill("planted:global")
    assert page_visit.cells() == 6
    shown = page_visit.page.locator("details.cell:visible .model").all_inner_texts()
    assert set(shown) == {"planted:global@llama"}
    words.fill("invalid")
    assert page_visit.cells() == 2
    assert page_visit.page.locator(".rows tbody tr:visible").count() == 2
    words.fill("no row has this")
    assert page_visit.cells() == 0
    assert page_visit.page.locator("section.part:has(article.claim):visible").count() == 0


def test_filter_and_order_are_in_the_address(visit: Visits, invented: Path) -> None:
    """Opened again, the address shows the same rows in the same order; showing all clears it."""
    page_visit = visit(invented)
    page_visit.page.fill("input[name=words]", "planted:global")
    for _ in range(2):
        page_visit.page.locator(".rows thead button", has_text="claim").click()
    rows = page_visit.page.locator(".rows tbody tr:visible th")
    expected = rows.all_inner_texts()
    assert expected == sorted(CLAIMS, reverse=True)
    again = visit(invented, page_visit.page.evaluate("location.hash"))
    assert again.page.locator(".rows tbody tr:visible th").all_inner_texts() == expected
    assert again.page.locator(".rows th[aria-sort=descending]").inner_text().startswith("claim")
    again.page.click("button[type=reset]")
    expect(again.page.locator("output")).to_have_text("12 of 12 rows shown")


def test_numbers_are_sorted_as_numbers(visit: Visits, tmp_path: Path) -> None:
    """9 before 10, and rows without a number last, in both directions."""
    measured = {"other.a": 10.0, "other.b": None, "other.c": 9.0, "other.d": -2.0}
    page = visit(render(make(tmp_path / "r", [make_row(id, measured=m) for id, m in measured.items()], bare=True))).page
    button = page.locator(".rows thead button", has_text="numbers")
    orders = []
    for _ in range(2):
        button.click()
        orders.append(page.locator(".rows tbody th").all_inner_texts())
    assert orders == [
        ["other.d", "other.c", "other.a", "other.b"],
        ["other.a", "other.c", "other.d", "other.b"],
    ]


def test_a_model_that_is_filtered_out_leaves_no_figures(visit: Visits, invented: Path) -> None:
    page_visit = visit(invented)
    figures = page_visit.page.locator("#plate-tracing figure:visible")
    assert figures.count() == 2
    page_visit.page.locator("input[name=model]").first.uncheck()
    assert figures.count() == 1
    assert "planted:global@llama" in figures.inner_text()


def test_a_claim_is_opened_by_its_address(visit: Visits, invented: Path) -> None:
    """Its lines are open and in view, also where a filter had hidden it."""
    page_visit = visit(invented, "#binding.q_redirects")
    article = page_visit.page.locator("article[id='binding.q_redirects']")
    assert article.locator("details[open]").count() == 2
    assert page_visit.page.locator("details.cell[open]").count() == 2
    assert article.is_visible()
    assert visit(invented, "#section-binding").page.locator("details.cell[open]").count() == 0
    assert 0 <= article.bounding_box()["y"] < 100
    page_visit.page.uncheck("input[value=not-replicated]")
    page_visit.page.evaluate("location.hash = 'tracing.five_boxes.object_direct'")
    expect(page_visit.page.locator("details.cell[open]")).to_have_count(4)
    assert page_visit.page.locator("article[id='tracing.five_boxes.object_direct']").is_visible()


def test_claims_that_could_not_be_judged_are_folded(visit: Visits, tmp_path: Path) -> None:
    """Out of sight until they are asked for: by hand, by address or without scripts; a filter takes the fold along."""
    page = render(make(tmp_path / "r", stop_all_claims(), kind="folder", bare=True))
    page_visit = visit(page)
    assert page_visit.visible_claims() == []
    page_visit.page.locator("details.stopped > summary").first.click()
    assert page_visit.visible_claims() == [IDS[0]]
    page_visit.page.uncheck("input[value=invalid]")
    assert page_visit.page.locator("details.stopped:visible").count() == 0
    page_visit.page.locator("details.failures a", has_text=IDS[-1]).click()
    expect(page_visit.page.locator(f"article[id='{IDS[-1]}'] .command")).to_be_visible()  # an address is followed later
    silent = visit(page, java_script_enabled=False)
    silent.page.locator("details.stopped > summary").first.click()
    assert silent.page.locator("article.claim:visible").count() == 1
    assert Axe().run(page_visit.page).response["violations"] == []


def test_from_what_failed_to_the_command(visit: Visits, invented: Path) -> None:
    """The way of somebody new: which failed, why, and how to run one again."""
    page_visit = visit(invented)
    card = page_visit.page.locator("article.card").nth(1)
    assert card.locator("h2").inner_text() == "planted:global@llama"
    assert card.locator("details.failures[open]").count() == 1, "what failed is to be read without a click"
    assert card.locator("details.failures li").count() == 3
    card.locator("details.failures a", has_text="robust.third_slot").click()
    line = page_visit.page.locator("article[id='robust.third_slot'] details").nth(1)
    line.locator(".command").wait_for(state="visible")
    assert page_visit.page.locator("article[id='robust.third_slot'] details[open]").count() == 1, (
        "the other model's is open"
    )
    assert "differs from what was planted: REPLICATED" in line.inner_text()
    assert line.locator(".command code").inner_text() == "pytest 'claims/test_binding.py::test_x'"
    line.get_by_role("button", name="Copy").click()
    assert page_visit.page.evaluate("getSelection().toString()") == "pytest 'claims/test_binding.py::test_x'"


def test_figures_of_a_claim_are_those_of_its_section(visit: Visits, invented: Path) -> None:
    """The same picture, drawn again from one copy, and not an empty box."""
    page_visit = visit(invented, "#binding.q_redirects")
    second = page_visit.page.locator("article[id='binding.q_redirects'] figure.again svg").first
    box = second.evaluate("one => { const b = one.querySelector('use').getBBox(); return [b.width, b.height]; }")
    assert min(box) > 50
    pixels = second.screenshot()
    assert len(pixels) > 5_000


def test_keys_are_enough(visit: Visits, invented: Path) -> None:
    page_visit = visit(invented)
    focused = "document.activeElement.textContent.trim()"
    page_visit.page.keyboard.press("Tab")
    assert page_visit.page.evaluate(focused) == "Skip to the claims"
    page_visit.page.keyboard.press("/")
    assert page_visit.page.evaluate("document.activeElement.name") == "words"
    page_visit.page.keyboard.type("third")
    assert page_visit.visible_claims() == [CLAIMS[5]]
    summary = page_visit.page.locator("article[id='robust.third_slot'] summary").first
    summary.focus()
    page_visit.page.keyboard.press("Enter")
    assert page_visit.page.locator("article[id='robust.third_slot'] details[open]").count() == 1


def test_it_can_be_read_without_scripts(visit: Visits, invented: Path) -> None:
    page_visit = visit(invented, java_script_enabled=False)
    assert page_visit.page.locator("article.claim:visible").count() == len(CLAIMS)
    assert page_visit.page.locator("form.filters").is_hidden()
    page_visit.page.locator("article[id='robust.third_slot'] summary").first.click()
    assert page_visit.page.locator("article[id='robust.third_slot'] .command code").first.is_visible()


def test_the_matrix_leads_to_every_row(visit: Visits, invented: Path) -> None:
    """One square a row and model, large enough for a finger; a square opens its row on its own model."""
    page_visit = visit(invented, width="phone")
    squares = page_visit.page.locator("table.matrix a.square")
    assert squares.count() == 12
    assert squares.all_inner_texts() == [*"RN?!–R", *"RN?!–N"]
    sizes = squares.evaluate_all("all => all.map(one => Math.min(one.offsetWidth, one.offsetHeight))")
    assert min(sizes) >= 24
    page_visit.page.locator("article.card").nth(1).locator("a.square", has_text="?").click()
    opened = page_visit.page.locator("details.cell[open]")
    expect(opened).to_have_count(1)
    assert opened.evaluate("one => one.closest('article').id") == CLAIMS[2]
    assert "planted:global@llama" in opened.inner_text()


def test_letters_of_the_matrix_do_not_rest_on_colour(visit: Visits, invented: Path) -> None:
    """Every letter is in the legend, and what came out otherwise has a ring."""
    page_visit = visit(invented)
    legend = page_visit.page.locator("ul.legend").inner_text()
    letters = set(page_visit.page.locator("table.matrix a.square").all_inner_texts())
    assert all(letter in legend for letter in letters)
    odd = page_visit.page.locator("table.matrix a.odd")
    assert [link.get_attribute("href") for link in odd.all()] == [f"#{CLAIMS[-1]}"]
    assert odd.first.evaluate("one => parseFloat(getComputedStyle(one).outlineWidth)") >= 2


def test_sections_stand_in_the_papers_order(visit: Visits, invented: Path) -> None:
    lines = visit(invented).page.locator("table.matrix").first.locator("tbody th").all_inner_texts()
    assert lines == ["3", "3, five boxes", "4.1", "4.2", "5", "beyond"]


def test_models_are_compared_on_one_scale(visit: Visits, invented: Path) -> None:
    """Side by side on a wide screen, with the same numbers on their axes."""
    page_visit = visit(invented)
    figures = page_visit.page.locator("#plate-roles figure")
    assert figures.count() == 2
    left_box, right = (figures.nth(number).bounding_box() for number in range(2))
    assert left_box["y"] == right["y"]
    assert left_box["x"] + left_box["width"] <= right["x"]
    numbers = [figure.locator("svg text").all_inner_texts() for figure in figures.all()]
    assert numbers[0] == numbers[1]


def test_letters_of_figures_are_legible(visit: Visits, invented: Path) -> None:
    """Nine dots at least, on any screen: a figure that is too wide is scrolled, and not made smaller."""
    for width in WIDTHS:
        page_visit = visit(invented, width=width)
        sizes = page_visit.page.eval_on_selector_all(
            ".plate svg.plot text",
            "all => all.map(one => { const m = one.getScreenCTM();"
            " return parseFloat(getComputedStyle(one).fontSize) * Math.hypot(m.a, m.b); })",
        )
        assert len(sizes) > 100
        assert min(sizes) >= 8.95, "nine, but for the rounding of a width to whole dots"


PAGE_OF_PDF = re.compile(rb"/Type\s*/Page\b")


def test_it_can_be_printed(visit: Visits, invented: Path) -> None:
    """Every verdict with its reason, every figure and table, in as many pages as that needs; nothing is cut off."""
    page_visit = visit(invented, color_scheme="dark")
    page_visit.page.set_viewport_size({"width": PRINTED, "height": 1000})
    page_visit.page.emulate_media(media="print")
    assert page_visit.page.locator("form.filters").is_hidden()
    assert page_visit.cells() == 12
    assert page_visit.page.locator("#plate-dots svg").first.is_visible()
    assert page_visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    hidden = "all => all.filter(one => !one.checkVisibility({contentVisibilityAuto: true})).length"
    assert page_visit.page.eval_on_selector_all("details.cell .body > p:first-child", "all => all.length") == 12
    assert page_visit.page.eval_on_selector_all("details.cell .body > p:first-child", hidden) == 0, (
        "reasons are not opened"
    )
    assert page_visit.page.eval_on_selector_all("details.failures li, details.numbers:not(.screen) td", hidden) == 0
    right = "all => all.map(one => one.getBoundingClientRect().right)"
    assert max(page_visit.page.eval_on_selector_all("table, svg.plot, pre, .text", right)) <= PRINTED
    pages = len(PAGE_OF_PDF.findall(page_visit.page.pdf(format="A4")))
    figures, rows = (page_visit.page.locator(what).count() for what in ("figure:visible", "details.cell"))
    assert figures / 6 <= pages <= figures + rows, f"{pages} pages for {figures} figures and {rows} rows"


def test_hostile_names_do_nothing(visit: Visits, tmp_path: Path) -> None:
    """As text, in the matrix, in prompts and on paper too; of a page without scripts as of one with them."""
    claims = [make_row(f"other.{n}", name, statement=name, command=name) for n, name in enumerate(HOSTILE)]
    page_visit = visit(render(make(tmp_path / "r", claims, bare=True)), width="phone")
    assert page_visit.complaints == []
    assert page_visit.page.locator("article.card h2").all_inner_texts() == HOSTILE
    assert page_visit.page.locator(".command code").first.text_content() == HOSTILE[0]
    assert page_visit.page.locator("table.matrix a.square").count() == len(HOSTILE)
    assert page_visit.page.evaluate("document.documentElement.scrollWidth") == WIDTHS["phone"][0]
    page_visit.page.emulate_media(media="print")
    page_visit.page.set_viewport_size({"width": PRINTED, "height": 1000})
    assert page_visit.page.evaluate("document.documentElement.scrollWidth") == PRINTED
    page_visit.page.emulate_media(media="screen")
    page_visit.page.locator("input[name=model]").first.uncheck()
    assert page_visit.cells() == len(HOSTILE) - 1


def test_hostile_prompts_do_nothing(visit: Visits, tmp_path: Path) -> None:
    """A prompt is a stranger's text like any other."""
    folder = make(tmp_path / "r", [make_row()])
    content = json.loads((folder / CLAIMS_FILE).read_text("utf-8"))
    row = {"id": 0, "original": HOSTILE, "counterfactual": HOSTILE[::-1]}
    for entry in content["models"][0]["evidence"].values():
        entry["pair"] = row
    (folder / CLAIMS_FILE).write_text(json.dumps(content), "utf-8")
    page_visit = visit(render(folder), "#binding.q_redirects", width="phone")
    page_visit.page.eval_on_selector_all("details", "all => all.forEach(one => (one.open = true))")
    assert page_visit.complaints == []
    texts = page_visit.page.locator("article.claim .text").evaluate_all("all => all.map(one => one.textContent)")
    assert texts == ["".join(HOSTILE), "".join(HOSTILE[::-1])]
    marked = page_visit.page.locator("article.claim .text").first.locator("mark").all_inner_texts()
    assert marked == HOSTILE[1::2]
    assert page_visit.page.evaluate("document.documentElement.scrollWidth") == WIDTHS["phone"][0]
    assert Axe().run(page_visit.page).response["violations"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pictures_for_eyes(
    visit: Visits, report: Path, width: str, scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What is seen first, at three widths; where they are left is said by --screenshots."""
    folder: Path = request.config.getoption("--screenshots") or tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    page_visit = visit(report, width=width, color_scheme=scheme)
    path = folder / (f"{width}.png" if scheme == "light" else f"{width}-dark.png")
    page_visit.page.screenshot(path=path)
    assert 10_000 < path.stat().st_size < 400_000
