"""Chromium, a page to look at, and what it said and asked for while it was open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from rebinding.report.page import render
from tests.report.folders import make, make_row

VARIABLE = "REBINDING_CHROMIUM"
WIDTHS = {"desktop": (1280, 900), "tablet": (820, 1100), "phone": (390, 844)}
CLAIMS = (
    "tracing.object_direct", "tracing.five_boxes.object_direct", "circuit.compact", "roles.b_is_the_pointer",
    "binding.q_redirects", "robust.third_slot",
)  # fmt: skip
EVIDENCE = {
    "tracing.object_direct": "tracing-3-target_box-5-2",
    "binding.q_redirects": "binding-published-60",
    "roles.b_is_the_pointer": "roles-pointer-5",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("browser", "the page in a browser")
    group.addoption("--page", type=Path, metavar="DIR", help="report to test (default: one of invented numbers)")
    group.addoption(
        "--screenshots",
        type=Path,
        metavar="DIR",
        help="write pictures of the page to this folder (default: not written)",
    )


@pytest.fixture(scope="session")
def invented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every verdict on two models, one of which differs from what was planted."""
    verdicts = ("REPLICATED", "NOT REPLICATED", "INCONCLUSIVE", "INVALID", "NOT APPLICABLE", "REPLICATED")
    claims = [
        make_row(id, model, verdict=verdict, expected=verdict, evidence=(EVIDENCE[id],) if id in EVIDENCE else ())
        for id, verdict in zip(CLAIMS, verdicts, strict=True)
        for model in ("planted:pointer@llama", "planted:global@llama")
    ]
    claims[-1] = make_row(CLAIMS[-1], "planted:global@llama", verdict="NOT REPLICATED", expected="REPLICATED")
    return render(make(tmp_path_factory.mktemp("browser") / "report", claims)).resolve()


@pytest.fixture(scope="session")
def headline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two headline claims on two models under both procedures."""
    claims = [
        make_row(f"{name}{ending}", model, headline=number, sentence=name, procedure=procedure)
        for name, number in (("binding.qk_cancels", 3), ("binding.key_dominance", 4))
        for ending, procedure in (("", "published"), (".controlled", "controlled"))
        for model in ("planted:pointer@llama", "planted:global@llama")
    ]
    return render(make(tmp_path_factory.mktemp("headline") / "report", claims, bare=True)).resolve()


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Path:
    """The page that was named, or the invented one."""
    page: Path | None = request.config.getoption("--page")
    return render(page).resolve() if page else request.getfixturevalue("invented")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of the machine; without one these tests fail, since skipping them would look like passing."""
    path = os.environ.get(VARIABLE) or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None or not Path(path).is_file():
        pytest.fail(
            f"no Chromium on this machine ({path or 'none in the search path'}): install one (Debian: apt-get install"
            f" chromium), or name it with {VARIABLE}=/path/to/chromium",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        rootless = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=rootless)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page that is open, and what happened on it: complaints of the console, and requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def visible_claims(self) -> list[str]:
        """Addresses of the claims that can be seen."""
        visible: list[str] = self.page.eval_on_selector_all(
            "article.claim", "all => all.filter(one => one.checkVisibility()).map(one => one.id)"
        )
        return visible

    def cells(self) -> int:
        """How many verdicts can be seen."""
        return int(
            self.page.eval_on_selector_all("details.cell", "all => all.filter(one => one.checkVisibility()).length")
        )


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Visit]]:
    """Open a page: a path, the part after the hash, a width, and options of the browser's context."""
    opened: list[Any] = []

    def go(path: Path, hash: str = "", *, width: str = "desktop", **options: Any) -> Visit:
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        context = chromium.new_context(viewport=size, **options)  # type: ignore[arg-type]  # a width and a height
        opened.append(context)
        visit = Visit(context.new_page())
        visit.page.on("console", lambda message: visit.complaints.append(message.text) if message.type in BAD else None)
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on("dialog", lambda dialog: visit.complaints.append(f"a dialog: {dialog.message}"))
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.goto(f"{path.as_uri()}{hash}")
        return visit

    yield go
    for context in opened:
        context.close()


BAD = ("error", "warning")
