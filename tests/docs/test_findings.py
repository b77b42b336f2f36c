"""The findings of the README are those of the pages that they link, and of the files in the tree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rebinding
from claims.catalogue import claims
from fixtures.options import DEFAULT

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
LEARNED = (ROOT / "docs" / "results" / "learned.md").read_text("utf-8")
FOUND = README[README.index("Findings, each of version") : README.index("## Status")]
FINDINGS = re.findall(r"^(\d\. .*?)(?=^\d\. |\Z)", FOUND, re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+\.md)(?:#([^)]+))?\)")
NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])")
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def section(page: str, anchor: str | None) -> str:
    """A page, or its section under the heading of an anchor."""
    text = (ROOT / page).read_text("utf-8")
    if not anchor:
        return text
    for heading in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE):
        if re.sub(r"[^\w -]", "", heading[2]).lower().replace(" ", "-") == anchor:
            end = re.search(rf"^#{{1,{len(heading[1])}}} ", text[heading.end() :], re.MULTILINE)
            return text[heading.start() : heading.end() + end.start() if end else None]
    raise AssertionError(f"{page} has no section {anchor}")


def numbers_in(finding: str) -> list[str]:
    """The numbers that a finding states, without its own number, dates, names and those of claims."""
    text = re.sub(
        r"\]\([^)]*\)|`[^`]*`|claims? \d( and \d)?|seeds? \d( and \d)?|three|[ABCD] to [ABCD]", "", finding[3:]
    )
    return NUMBER.findall(DATE.sub("", text))


def states(text: str, number: str) -> bool:
    """Whether a text has a number, or one that rounds to it."""
    digits = len(number.partition(".")[2])
    return any(f"{float(other):.{digits}f}" == number for other in NUMBER.findall(DATE.sub("", text)))


def test_there_are_four_findings_with_dates_and_a_version() -> None:
    assert [finding[:2] for finding in FINDINGS] == ["1.", "2.", "3.", "4."]
    assert all(DATE.search(finding) and LINK.search(finding) for finding in FINDINGS)
    assert f"version {rebinding.__version__} and not on the paper's models" in FOUND
    (above,) = re.findall(r"^\*\*Planted models, (.+?)\*\*", README, re.MULTILINE)
    assert DATE.search(above)
    assert f"version {rebinding.__version__}; not run on the paper's models" in above
    assert README.index(above) < README.index("<!-- headline -->")


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding[:1])
def test_every_number_stands_where_the_finding_links(finding: str) -> None:
    linked = " ".join(section(page, anchor) for page, anchor in LINK.findall(finding))
    numbers = numbers_in(finding)
    assert len(numbers) >= 2
    assert [number for number in numbers if not states(linked, number)] == []


def test_a_changed_number_is_noticed() -> None:
    linked = section("docs/results/learned.md", "the-circuit-of-smollm2")
    assert states(linked, "89")
    assert not states(linked, "88")


def test_the_circuit_of_position_free_discovery_is_that_of_its_file() -> None:
    """Head-token pairs and heads are two numbers."""
    file = ROOT / "rebinding" / "learned" / "adapters" / "smollm2-all-0" / "all-positions.json"
    pairs = [
        (*head, group["role"]) for group in json.loads(file.read_text())["groups"].values() for head in group["heads"]
    ]
    n_pairs, n_heads = len(set(pairs)), len({pair[:2] for pair in pairs})
    assert f"finds {n_pairs} pairs, of {n_heads} heads" in " ".join(FOUND.split())
    assert f"| position-free discovery | {n_pairs} ({n_heads}) |" in LEARNED
    assert f"at the {len({role for *_, role in pairs})} tokens that occur" in LEARNED


def test_the_sizes_of_discovered_circuits_are_those_of_their_heads() -> None:
    """The table of models, counted anew: a head in two groups is two pairs."""
    lines = re.findall(r"^\| `([\w-]+)` \|(.+)\| (\d+) \((\d+)(?: of \d+)?\) \|$", LEARNED, re.MULTILINE)
    assert len(lines) == 8
    for model, groups, pairs, heads in lines:
        listed = re.findall(r"\d+\.\d+", groups)
        assert (int(pairs), int(heads)) == (len(listed), len(set(listed))), model
    in_groups = [
        {(group, head) for group, cell in enumerate(groups.split("|")) for head in re.findall(r"\d+\.\d+", cell)}
        for _, groups, *_ in lines[:3]
    ]
    shared = set.intersection(*in_groups)
    assert f"share {len(shared)} pairs ({len({head for _, head in shared})} heads)" in LEARNED


def test_the_rows_of_the_table_are_counted() -> None:
    rows = [claim for claim in claims() if claim.headline]
    judged = [claim for claim in rows if claim.kind != "value"]
    text = " ".join(README.split())
    assert f"All {len(DEFAULT) * len(claims())} rows of `pytest claims`" in text
    assert f"{len(DEFAULT) * len(judged)} of the {len(DEFAULT) * len(rows)} headline rows make up the table" in text
