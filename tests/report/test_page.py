"""The page: the same bytes every time, every claim at its address, names as text, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rebinding.report.figures.draw import FIGURES, share_limits
from rebinding.report.figures.figure import FigureSpec
from rebinding.report.files import CLAIMS, EVIDENCE, SAMPLES, TABLE
from rebinding.report.folder import read
from rebinding.report.page import html, render
from rebinding.report.shapes import axis_of, histogram, strip
from rebinding.verdicts.outcome import OUTCOMES
from tests.everyday import sampled
from tests.report.folders import make, make_row

HOSTILE = ['<script>alert("x")</script>', "模型 🐇 ﷽ é", "a" * 400, "$\\frac{x}$ & ' ` {{ 7 * 7 }}", "</style></title>"]


class Reader(HTMLParser):
    """What stands in a page: tags with their attributes, and text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("style", "script"):
            self.texts.append(data)

    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.tags if "id" in attributes]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    claims = [
        make_row(),
        make_row("tracing.object_direct", evidence=("tracing-3-target_box",)),
        make_row("circuit.compact"),
        *(make_row(id) for id in ("tracing.five_boxes.object_direct", "roles.b_raises_pointer", "robust.third_slot")),
    ]
    return html(read(make(tmp_path_factory.mktemp("page") / "r", claims)))


def test_every_model_has_a_line_on_its_certificate(page: str) -> None:
    assert Reader(page).texts.count("Not certified: run `rebinding certify planted:pointer@llama`") == 1


@pytest.mark.slow
def test_rendering_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also in another folder: a page says nothing of the machine it was made on."""
    claims = [make_row(), make_row("tracing.object_direct"), make_row("circuit.recovers_accuracy")]
    first, second = (render(make(tmp_path / name / "r", claims)).read_bytes() for name in ("here", "elsewhere"))
    assert first == second
    assert str(tmp_path).encode() not in first


def test_every_claim_is_an_address(page: str) -> None:
    ids = Counter(Reader(page).ids())
    assert {"binding.q_redirects", "tracing.object_direct", "circuit.compact"} <= set(ids)
    assert not [name for name, count in ids.items() if count > 1]


def test_the_noise_floor_stands_beside_the_margin(tmp_path: Path) -> None:
    """Only in a row with a measured floor."""
    text = html(read(make(tmp_path / "r", [make_row(floor=0.0321), make_row("tracing.object_direct")], bare=True)))
    assert re.findall(r"margin ±([\d.]+).*; noise floor ([\d.]+) logits", text) == [("0.2", "0.0321")]


@pytest.mark.parametrize("name", ["place", "letter", "standing"])
@pytest.mark.slow
def test_what_follows_from_the_rows_is_not_read_again(name: str, tmp_path: Path) -> None:
    """docs/decisions/claims-json.md: whatever stands there, the page is the same."""
    folder = make(tmp_path / "r", [make_row(), make_row("tracing.object_direct"), make_row("circuit.compact")])
    path, before = folder / CLAIMS, html(read(folder))
    report = json.loads(path.read_text())
    original_values = {row[name] for row in report["claims"]}
    for row in report["claims"]:
        row[name] = {"place": 99, "letter": "Z", "standing": "artifact"}[name]
    assert original_values.isdisjoint(row[name] for row in report["claims"])
    path.write_text(json.dumps(report))
    assert html(read(folder)) == before


def test_links_lead_somewhere(page: str) -> None:
    reader = Reader(page)
    links = [attributes["href"] for tag, attributes in reader.tags if tag == "a" and attributes.get("href")]
    figures = [
        attributes.get("href") or attributes.get("xlink:href") for tag, attributes in reader.tags if tag == "use"
    ]
    assert links
    assert figures
    addresses = [str(target) for target in (*links, *figures) if str(target).startswith("#")]
    assert {target.removeprefix("#") for target in addresses} <= set(reader.ids())
    data = [target for target in links if not str(target).startswith("#")]
    assert {str(name).partition("/")[0] for name in data} == {CLAIMS, TABLE, SAMPLES, EVIDENCE}


def test_nothing_comes_from_elsewhere(page: str) -> None:
    """No address but those of the page itself, of data, and of the report's own files behind links, which nothing
    follows by itself; names of XML dialects are no addresses."""
    own = (CLAIMS, TABLE, SAMPLES, f"{EVIDENCE}/")
    for tag, attributes in Reader(page).tags:
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            value = attributes.get(name)
            allowed = ("#", "data:", *(own if tag == "a" else ()))
            assert value is None or value.startswith(allowed), (tag, name, value)
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text(name: str, tmp_path: Path) -> None:
    """It is read as it was given, and makes neither elements nor templates of its own."""
    fields = dict.fromkeys(("model", "statement", "source", "reason", "command", "because", "where"), name)
    hostile, plain = (
        Reader(html(read(make(tmp_path / folder, [claim], bare=True))))
        for folder, claim in (("hostile", make_row(f"other.{name}", **fields)), ("plain", make_row("other.x")))
    )
    assert "".join(hostile.texts).count(name) > 8
    assert f"other.{name}" in hostile.ids()
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]


def test_every_figure_is_drawn(page: str) -> None:
    ids = Reader(page).ids()
    keys = {name.removeprefix("figure-").rsplit("-", 2)[0] for name in ids if name.endswith("-svg")}
    assert keys == {spec.key for spec in FIGURES}
    assert "Not drawn on" not in page


@pytest.mark.parametrize("spec", sampled(FIGURES, *FIGURES[::5]), ids=lambda spec: spec.key)
def test_figures_follow_the_evidence(spec: FigureSpec, tmp_path: Path) -> None:
    """Other numbers give another figure; the same numbers the same one. Circuits are lists of heads: they lose one."""
    pictures = []
    for name, shift in (("first", 0.0), ("same", 0.0), ("shifted", 0.7)):
        (model,) = read(make(tmp_path / name, [make_row()], shift=shift)).models
        if spec.key == "circuit" and shift:
            model.about["circuit"].pop()
        if spec.key == "graph" and shift:
            model.about["graph"]["edges"].pop()
        if spec.key == "pruned" and shift:
            rows = model.evidence["pruning"].rows
            rows["removed"] = rows["group"] == "A"
        figure = spec.draw(model)
        figure.savefig(tmp_path / "figure.png", dpi=40)
        pictures.append((tmp_path / "figure.png").read_bytes())
    assert pictures[0] == pictures[1]
    assert pictures[0] != pictures[2]


def test_figures_that_could_not_be_drawn_are_a_line_with_the_reason(tmp_path: Path) -> None:
    """The gate that failed, or the command that runs their experiment; no empty box."""
    claims = [make_row(), make_row("roles.x", verdict="INVALID", gate="group_present", measured=None)]
    text = html(read(make(tmp_path / "r", claims, bare=True)))
    lines = re.findall(r'<p class="small missing">(.*?)</p>', text)
    assert len(lines) == 2
    by_section = {section: [spec for spec in FIGURES if spec.section == section] for section in ("roles", "binding")}
    for line, section in zip(lines, by_section, strict=True):
        assert all(spec.title in line for spec in by_section[section])
    assert "gates failed (group_present)" in lines[0]
    assert "`pytest claims --model planted:pointer@llama -k binding --report DIR`" in lines[1]
    assert "<figure id=" not in text


def test_lettering_is_legible_at_the_size_at_which_it_is_shown(page: str) -> None:
    """No figure is shown smaller than it was drawn, and in none of them is a letter below nine dots."""
    sizes = re.findall(r'<svg id="figure-[^"]*" class="plot" style="min-width: (\d+)px" viewBox="0 0 ([\d.]+)', page)
    assert len(sizes) == len(FIGURES)
    assert all(abs(int(min_width) - float(width)) <= 1 for min_width, width in sizes), (
        "a dot of the page is one of the figure"
    )
    fonts = {float(size) for size in re.findall(r"font(?:-size)?: (?:bold )?([\d.]+)px", page.partition("</style>")[2])}
    assert fonts
    assert min(fonts) >= 9


def test_models_share_a_scale(tmp_path: Path) -> None:
    """A model whose effects are larger than the other's moves the other's axis, and its own stays."""
    (small,) = read(make(tmp_path / "small", [make_row()])).models
    (large,) = read(make(tmp_path / "large", [make_row()], shift=5.0)).models
    spec = next(spec for spec in FIGURES if spec.key == "roles")
    small_figure, large_figure, *same_scale = (spec.draw(model) for model in (small, large, small, large))
    share_limits(same_scale, spec.shares)
    limits = [axes.get_ylim() for figure in same_scale for axes in figure.axes]
    assert len(limits) == 4
    assert set(limits) == {(small_figure.axes[0].get_ylim()[0], large_figure.axes[0].get_ylim()[1])}
    assert small_figure.axes[0].get_ylim() != large_figure.axes[0].get_ylim()


@pytest.mark.slow
def test_eighty_claims_on_four_models_stay_below_five_megabytes(tmp_path: Path) -> None:
    """With figures of models of 48 layers and 16 heads, and 300 numbers behind each estimate."""
    sample = tuple(float(n % 17) + n / 300 for n in range(300))
    prefixes = ("tracing.", "circuit.", "roles.", "binding.")
    claims = [
        make_row(f"{prefixes[n % 4]}claim_{n}", f"model {model}", sample=sample, reason="as long as reasons are " * 6)
        for n in range(80)
        for model in range(4)
    ]
    size = len(html(read(make(tmp_path / "r", claims, layers=48, heads=16))).encode())
    assert 1_000_000 < size < 5_000_000, f"{size:,} bytes"


@pytest.mark.parametrize(
    ("verdict", "expected", "is_planted", "remark"),
    [
        ("NOT REPLICATED", "NOT REPLICATED", True, "as planted"),
        ("NOT REPLICATED", "REPLICATED", True, "differs from what was planted: REPLICATED"),
        ("REPLICATED", "NOT REPLICATED", True, "differs from what was planted: NOT REPLICATED"),
        ("NOT REPLICATED", "REPLICATED", False, "the paper asserts it"),
        ("REPLICATED", "REPLICATED", False, "as the paper says"),
        ("NOT REPLICATED", None, False, "reported, not asserted by the paper"),
    ],
)
def test_what_was_expected_stands_beside_the_verdict(
    verdict: str, expected: str | None, is_planted: bool, remark: str, tmp_path: Path
) -> None:
    claim = make_row(verdict=verdict, expected=expected, because=None)
    text = html(read(make(tmp_path / "r", [claim], kind="planted" if is_planted else "folder", bare=True)))
    (line,) = re.findall(r'<details class="cell".*?</summary>', text, flags=re.DOTALL)
    assert f">{remark}<" in line
    assert re.search(rf"</span> {verdict}</strong>", line)


def test_an_interval_stands_where_it_is() -> None:
    """Left of the reference value if it is smaller, and inside the band if it is within the margin."""
    rows = [make_row(measured=0.1, low=0.05, high=0.15), make_row(measured=-3.0, low=-4.0, high=-2.0)]
    axis = axis_of(rows)
    near, far = (strip(row, axis) for row in rows)
    assert near
    assert near.band
    assert near.band[0] < near.interval[0] < near.mean < near.interval[1] < near.band[1]
    assert far
    assert far.interval[1] < near.band[0]
    assert far.reference == near.reference
    assert strip(make_row(measured=None, low=None, high=None), axis) is None


def test_estimates_of_a_claim_share_an_axis_with_zero_and_numbers() -> None:
    """A place is linear in the value: the same step everywhere, and the number that is written at it."""
    rows = [make_row(measured=-8.55, low=-8.7, high=-8.4), make_row(measured=15.0, low=14.9, high=15.5)]
    axis = axis_of(rows)
    assert axis
    assert (axis.first, axis.last) == (-8.7, 15.5)
    labels = [float(tick.label.replace("−", "-")) for tick in axis.ticks]
    assert 0 in labels
    assert len(labels) >= 3
    assert [tick.x for tick in axis.ticks] == [axis.place(value) for value in labels]
    assert axis.place(15.0) - axis.place(0.0) == pytest.approx(
        15 / 8.55 * (axis.place(0.0) - axis.place(-8.55)), abs=0.3
    )  # places are rounded to a tenth


def test_a_row_about_a_printed_number_shows_the_difference() -> None:
    """Printed numbers differ from model to model, their differences share an axis; the interval is the judged one."""
    first = make_row(kind="value", against=0.9, paper=0.9, measured=1.0, low=0.85, high=1.15, margin=0.1)
    second = make_row(kind="value", against=7.0, paper=7.0, measured=7.1, low=6.95, high=7.25, margin=0.1)
    axis = axis_of([first, second])
    strips = [strip(row, axis) for row in (first, second)]
    assert strips[0] == strips[1]
    assert strips[0]
    assert strips[0].reference == axis.place(0.0)
    assert strips[0].interval == (axis.place(-0.05), axis.place(0.25))


def test_a_distribution_has_all_its_numbers() -> None:
    shape = histogram([0.0, 0.0, 0.0, 1.0])
    assert shape
    assert shape.path.count("M") == 2
    assert (shape.units, shape.largest_count, shape.left_label, shape.right_label) == (4, 3, "0", "1")
    assert shape.mean == pytest.approx(50)  # a quarter of the width of 200
    assert shape.ticks == "M0.0 49v4" * 3 + "M200.0 49v4"
    many = histogram([float(number) for number in range(101)])
    assert many
    assert many.ticks == ""
    assert histogram([2.0, 2.0]) is None
    assert histogram([]) is None


def test_every_verdict_can_be_filtered(page: str) -> None:
    """A verdict without a box would hide its rows as soon as the script runs."""
    boxes = [attributes for tag, attributes in Reader(page).tags if tag == "input" and attributes["name"] == "verdict"]
    assert {box["value"] for box in boxes} == {outcome.lower().replace(" ", "-") for outcome in OUTCOMES}
