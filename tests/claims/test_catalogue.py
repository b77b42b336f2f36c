"""Rows: how a claim is written above its rule and found by its id; every sentence of the catalogue is judged, under its
procedures, for its models, by its kind of rule; every row can hold and can fail on some planted model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from claims.catalogue import catalogue_of_runs, claim, claims, claims_of, row, rows
from claims.test_binding import CONDITIONS
from rebinding.paper.claim import Claim, margin_of
from rebinding.paper.headlines import HEADLINES
from rebinding.paper.numbers import tolerance
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import MECHANISMS, VARIANTS
from rebinding.planted.truth import Wanted, truth_of

FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
ABSENT: dict[str, str] = FILE["absent"]
JUDGED: dict[str, Claim] = {claim.id: claim for claim in (*claims(), *(row.claim for row in catalogue_of_runs()))}
"""Rows of one model, and those of a run over several."""
Expectation = tuple[str, str, frozenset[str]]
"""Procedure, kind of rule, models of which the row is asserted."""


def expanded(text: str) -> Iterator[str]:
    """`a.{b,c}` is a.b and a.c."""
    parts = [part.split("}") for part in text.split("{")]
    (before,), choices = parts[0], [part[0].split(",") for part in parts[1:]]
    for options in product(*choices):
        yield before + "".join(option + part[1] for option, part in zip(options, parts[1:], strict=True))


def expected_rows() -> dict[str, Expectation]:
    """Every row of the catalogue by its full id."""
    entries: dict[str, Expectation] = {}
    for text, entry in FILE["rows"].items():
        models = frozenset(FILE["models"][name] for name in entry["of"].split())
        procedures = entry["by"].split()
        for sentence, procedure in product(expanded(text), procedures):
            has_both = procedure == "controlled" and len(procedures) > 1
            id = f"{sentence}.controlled" if has_both else sentence
            assert id not in entries, f"{id} stands in the catalogue twice"
            entries[id] = procedure, entry["kind"], frozenset() if has_both else models
    return entries


EXPECTED = expected_rows()


def test_braces_are_alternatives() -> None:
    assert list(expanded("a.{,b.}c.{d,e}")) == ["a.c.d", "a.c.e", "a.b.c.d", "a.b.c.e"]
    assert list(expanded("plain")) == ["plain"]


def test_every_row_is_judged_as_the_catalogue_has_it() -> None:
    """A row is built, or named under [absent] in catalogue.toml with what it waits for; one that is built, or taken out
    of the catalogue, leaves that list."""
    judged = {id: (claim.procedure, claim.kind, frozenset(claim.models)) for id, claim in JUDGED.items()}
    assert judged == {id: expected for id, expected in EXPECTED.items() if id not in ABSENT}
    assert ABSENT.keys() <= EXPECTED.keys()
    assert all(ABSENT.values())


def test_margins_are_those_of_the_catalogue() -> None:
    """Every kind of quantity that some row measures, and each with a reason that the code gives too."""
    measured = {metric for claim in JUDGED.values() if claim.kind != "report" for metric in claim.metrics}
    margins = FILE["margins"]
    assert measured == margins.keys()
    for metric, margin in margins.items():
        assert margin["by"] in ("words", "table", "code", "prompts", "rounding")
        assert margin_of(metric) == margin["absolute"]
        if metric not in ("probability", "contribution"):  # which are declared beside the claims
            declared = tolerance(metric)
            assert (declared.relative, bool(declared.reason)) == (margin["relative"], True)


def test_a_test_may_only_use_the_margins_of_its_claim() -> None:
    keys = Claim("binding.k_redirects", "Keys redirect.", "section 5", "effect", ("dR",), "mean", "group B")
    assert keys.margin() == keys.margin("dR") == 0.2
    with pytest.raises(ValueError, match="it declares dR; add dlogit to"):
        keys.margin("dlogit")
    with pytest.raises(ValueError, match="never judged"):
        replace(keys, metrics=("count",)).margin()


def test_a_boundary_of_ours_is_asserted_of_no_model() -> None:
    for text, boundary in FILE["boundaries"].items():
        assert boundary["why"]
        assert boundary["by"] in ("words", "size", "chance", "ours")
        for sentence in expanded(text):
            judged = [claim for claim in JUDGED.values() if claim.sentence == sentence]
            assert judged, sentence
            assert boundary["by"] != "ours" or not any(claim.models for claim in judged), sentence


def test_candidates_are_those_of_the_catalogue() -> None:
    """One convention differs at a time, about the released one; a controlled row runs one of each."""
    published, controlled = builtin_procedure("published"), builtin_procedure("controlled")
    expected = FILE["candidates"]
    lists = {name: value for name, value in expected.items() if isinstance(value, list) and "." in name}
    for name, choices in lists.items():
        section, _, convention = name.partition(".")
        assert list(getattr(getattr(published, section), convention)) == choices
        assert len(getattr(getattr(controlled, section), convention)) == 1
    roles = [[*conventions.possible.values()] for conventions in (published.roles, controlled.roles)]
    described = [f"{candidate.places} {candidate.direction} {candidate.pointer}" for candidate in roles[0]]
    assert (described, len(roles[1])) == (expected["roles"], 1)
    for section in ("roles", "binding"):
        assert getattr(published, section).readout == expected[f"{section}.readout"]
    assert published.binding.switch == expected["binding.switch"]
    first, *others = published.circuit.candidates.values()
    for discovery in others:
        assert (
            sum(getattr(discovery, name) != getattr(first, name) for name in ("noise", "frozen", "d_received_by")) == 1
        )
    assert len(others) == 4


# The headline claims

HEADLINE_ROWS = {
    1: {"circuit.recovers_accuracy", "circuit.recovers_most", "circuit.near_full", "circuit.few_heads"},
    2: {"roles.b_is_the_pointer", "roles.b_raises_pointer"},
    3: {"binding.qk_cancels"},
    4: {"binding.key_dominance"},
    5: {"tracing.readout_over_swap_period", "binding.families_differ", "beyond.state_not_stored"},
}
"""The sentences of each headline claim."""


def test_the_rows_of_each_headline_claim() -> None:
    """A controlled row belongs to the headline of its sentence; no headline row is long, or about five boxes."""
    marked = [claim for claim in JUDGED.values() if claim.headline is not None]
    by_number: dict[int, set[str]] = {}
    for entry in marked:
        by_number.setdefault(entry.headline or 0, set()).add(entry.sentence)
    assert by_number == HEADLINE_ROWS
    assert list(HEADLINE_ROWS) == [headline.number for headline in HEADLINES]
    controlled = [claim for claim in claims() if claim.id != claim.sentence and not claim.long]
    double_ids = {claim.id for claim in controlled if claim.sentence in set.union(*HEADLINE_ROWS.values())}
    assert double_ids <= {claim.id for claim in marked}
    assert len(double_ids) > 4
    assert not [claim.id for claim in marked if claim.long or "five_boxes" in claim.id]


# How a row is written

SECTION = "roles"
PLAIN: dict[str, Any] = {
    "source": "here", "kind": "effect", "metrics": ("dR",), "statistic": "mean", "where": "group B",
}  # fmt: skip


def test_claims_stand_from_top_to_bottom_each_before_its_controlled_row() -> None:
    @row("a.first", "It is.", **PLAIN, controlled={"n": 7})
    @row("a.second", "It is not.", **PLAIN)
    @rows((Claim(id=f"a.{name}", statement="All.", **PLAIN) for name in "xy"), controlled={})
    def judge(claim: Claim, study: object) -> None: ...

    (mark,) = judge.pytestmark
    ids = ["a.first", "a.first.controlled", "a.second", "a.x", "a.y", "a.x.controlled", "a.y.controlled"]
    assert [param.id for param in mark.args[1]] == list(mark.kwargs["ids"]) == ids
    first, controlled = claims_of(judge)[:2]
    assert (first.procedure, first.n, len(first.models)) == ("published", 300, 4)
    assert (controlled.procedure, controlled.n, controlled.models) == ("controlled", 7, ())
    assert controlled.sentence == first.id


def test_rows_with_five_boxes_are_sentences_of_their_own() -> None:
    @row("a.b", "It is.", **PLAIN, n=50, controlled={}, five_boxes=True)
    def judge(claim: Claim, study: object) -> None: ...

    judged = claims_of(judge)
    assert [(claim.id, claim.boxes, claim.n) for claim in judged] == [
        ("a.b", 3, 50),
        ("a.b.controlled", 3, 50),
        ("a.five_boxes.b", 5, 50),
        ("a.five_boxes.b.controlled", 5, 50),
    ]
    assert [claim.sentence for claim in judged] == ["a.b", "a.b", "a.five_boxes.b", "a.five_boxes.b"]
    assert judged[2].statement == "With five boxes and a further swap: it is."


def test_a_claim_needs_its_group_and_stands_in_the_section_of_its_file_unless_it_says_otherwise() -> None:
    """Five boxes are a section of their own."""

    @row("a.b", "It is.", **PLAIN, group="B")
    @row("a.c", "It is.", **PLAIN, group="C", needs=(), section="robust")
    @row("a.d", "It is.", **PLAIN, needs=("D", "E"), five_boxes=True)
    def judge(claim: Claim, study: object) -> None: ...

    assert [(claim.id, claim.group, claim.needs, claim.section) for claim in claims_of(judge)] == [
        ("a.b", "B", ("B",), "roles"),
        ("a.c", "C", (), "robust"),
        ("a.d", None, ("D", "E"), "roles"),
        ("a.five_boxes.d", None, ("D", "E"), "five"),
    ]
    sections = list(dict.fromkeys(claim.section for claim in claims()))
    assert sections == ["tracing", "five", "circuit", "roles", "binding", "robust"], (
        "4.1 with what heads attend to first"
    )


def test_other_marks_of_a_test_stay() -> None:
    @row("a.b", "It is.", **PLAIN)
    @pytest.mark.slow
    @row("a.c", "It is.", **PLAIN)
    def judge(claim: Claim, study: object) -> None: ...

    assert [mark.name for mark in judge.pytestmark] == ["slow", "parametrize"]


def test_a_claim_is_found_by_its_id_and_a_similar_one_is_suggested() -> None:
    assert claim("binding.q_redirects").metrics == ("dR", "dlogit")
    assert claim("binding.families_differ") not in claims(), "it is about a run"
    with pytest.raises(ValueError, match=r"'binding\.q_redirect'.*binding\.q_redirects"):
        claim("binding.q_redirect")


# What can come out: a planted model on which a row holds, and one on which it does not

VERDICTS: tuple[Wanted, ...] = ("REPLICATED", "NOT REPLICATED")
UNIDENTIFIED = "which control, and which switches, were printed is not known: a number of something else is not refuted"
TOLD_TWICE = "text and code differ, and a number that may be of either cannot be refuted"
REPORTS = "it claims nothing; its findings are compared with what was planted"
REPORTED = ("signature", "signature.controlled", "slot_attended", "qk_cancels_logit", "qk_cancels_logit.controlled")
SMALL = "plants have 56 heads, of which many work; the row is judged on models of 200 and more"
NAMES_ANOTHER = "while the swap names another box, no plant that reads both mentions answers as before"
ALL_OF_IT = "read on the shifted tokens alone, either kind of keys turns all the attention that there is"
GUESSES = "the plants on which it would come out so guess by the place of a name, and nothing is judged on these"
NEVER: dict[tuple[str, Wanted], str] = {
    **{("robust.more_operations", verdict): GUESSES for verdict in VERDICTS},
    ("circuit.three_to_ten_percent", "REPLICATED"): GUESSES,
    ("binding.table.random.dR", "NOT REPLICATED"): UNIDENTIFIED,
    ("binding.table.random.dlogit", "NOT REPLICATED"): UNIDENTIFIED,
    ("roles.b_moves_pointer", "NOT REPLICATED"): TOLD_TWICE,
    ("roles.b_leaves_content", "NOT REPLICATED"): TOLD_TWICE,
    ("roles.a_on_g9", "NOT REPLICATED"): TOLD_TWICE,
    **{(f"binding.table.{condition}.switch", "NOT REPLICATED"): UNIDENTIFIED for condition in CONDITIONS},
    **{
        (f"binding.{row}.{metric}", "NOT REPLICATED"): TOLD_TWICE
        for row in ("table.k_box", "table.k_object", "table.qk", "correct_only.qk")
        for metric in ("dR", "dlogit")
    },
    **{(f"binding.{row}", verdict): REPORTS for row in REPORTED for verdict in VERDICTS},
    **{("binding.dr_robust", verdict): REPORTS for verdict in VERDICTS},
    **{("beyond.resolved_at_readout", verdict): REPORTS for verdict in VERDICTS},
    **{("circuit.few_heads", verdict): SMALL for verdict in VERDICTS},
    ("binding.both_keys_most", "REPLICATED"): ALL_OF_IT,
    **{
        (f"tracing.{stories}{box}_box_not_from_context", "NOT REPLICATED"): NAMES_ANOTHER
        for stories in ("", "five_boxes.")
        for box in ("reference", "swap")
    },
}
"""Verdicts that a row cannot get on any planted model, and why."""


def test_every_row_is_judged_once_and_declares_how() -> None:
    ids = [claim.id for claim in claims()]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(truth_of("pointer"))
    for judged in claims():
        assert judged.statement.endswith("."), judged.id
        assert all((judged.source, judged.where, judged.statistic)), judged.id
        assert all(margin > 0 for margin in judged.margins.values()), judged.id


def test_every_row_can_hold_and_can_fail() -> None:
    """An exemption that is not needed fails here as well."""
    kinds = [(mechanism, None) for mechanism in MECHANISMS]
    kinds += [(mechanism, name) for name, variant in VARIANTS.items() for mechanism in variant.mechanisms]
    cells = {(row, truth.verdict) for kind in kinds for row, truth in truth_of(*kind).items()}
    expected = {(row, verdict) for row in truth_of("pointer") for verdict in VERDICTS}
    assert expected - cells == set(NEVER)
