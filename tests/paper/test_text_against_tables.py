"""Every qualitative sentence of the paper, applied to the paper's own printed numbers.

A sentence fails here if its tables do not say what it says. Which ones fail is part of the record
(`text_against_table` in `published.toml`), so that no model is ever blamed for them. Inequalities are taken at face
value; "near zero", "at the level of" and "no shift" mean within the declared margin of the quantity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from claims.catalogue import claims
from rebinding.paper import numbers as published

G9, G12, L3, L8 = published.ALIASES
ALL = published.ALIASES
KEYS = ("k_both", "k_box", "k_object")


def cell(model, row, metric):
    return published.number(f"binding.{row}.{metric}@{model}").value


def no_change(metric):
    return published.tolerance(metric).absolute


def circuit(name, model):
    return published.number(f"{name}@{model}").value


def role(group, target):
    return published.number(f"roles.{group}.{target}@{G9}").value


def share_within_range(model):
    """3 to 10 per cent, each give or take its rounding."""
    low, high = published.number("heads.share.lowest"), published.number("heads.share.highest")
    return low.value - low.half_width <= published.share_kept(model).value <= high.value + high.half_width


def group_e_size(model):
    return sum(group == "E" for group, *_ in published.circuit(model))


def distinct(model):
    return {(layer, head) for _, layer, head, *_ in published.circuit(model)}


@dataclass(frozen=True)
class Sentence:
    """A claim's rule on one quantity, and the models it is said of (or told as the general account)."""

    claim: str
    quantity: str
    models: tuple[str, ...]
    holds: Callable[[str], bool]


SENTENCES = (
    Sentence(
        "circuit.beats_random",
        "accuracy",
        ALL,
        lambda m: circuit("accuracy.circuit", m) > circuit("accuracy.random", m),
    ),
    Sentence(
        "circuit.beats_random", "margin", ALL, lambda m: circuit("margin.circuit", m) > circuit("margin.random", m)
    ),
    Sentence("circuit.beats_random", "logit", ALL, lambda m: circuit("logit.circuit", m) > circuit("logit.random", m)),
    Sentence(
        "circuit.not_a_floor", "margin", (L3,), lambda m: circuit("margin.circuit", m) > circuit("margin.full", m)
    ),
    Sentence("circuit.three_to_ten_percent", "share", ALL, share_within_range),
    Sentence(
        "circuit.compact", "distinct", ALL, lambda m: len(distinct(m)) == published.number(f"heads.kept@{m}").value
    ),
    Sentence("circuit.group_e_empty", "set", (G9, L3), lambda m: group_e_size(m) == 0),
    Sentence("circuit.group_e_present", "set", (G12, L8), lambda m: group_e_size(m) > 0),
    Sentence("roles.b_is_the_pointer", "dlogit", (G9,), lambda m: role("B", "pointer") > role("A", "pointer")),
    Sentence(
        "roles.b_raises_pointer",
        "dlogit",
        (G9,),
        lambda m: role("B", "pointer") > 2 * max(no_change("dlogit"), abs(role("B", "content"))),
    ),
    Sentence("roles.a_lowers_content", "dlogit", (G9,), lambda m: role("A", "content") < 0),
    Sentence("roles.a_and_c_weaker", "dlogit", (G9,), lambda m: 0 < role("A", "pointer") < role("B", "pointer")),
    Sentence("binding.q_redirects", "dR", (G9, G12), lambda m: cell(m, "q", "dR") > 0),
    Sentence("binding.q_redirects", "dlogit", (G9, G12), lambda m: cell(m, "q", "dlogit") > 0),
    Sentence("binding.k_redirects", "dR", (G9, L3, L8), lambda m: cell(m, "k_both", "dR") > 0),
    Sentence("binding.box_keys_address_only", "dR", (G9,), lambda m: cell(m, "k_box", "dR") > 0),
    Sentence(
        "binding.box_keys_address_only",
        "dlogit",
        (G9,),
        lambda m: abs(cell(m, "k_box", "dlogit")) <= no_change("dlogit"),
    ),
    Sentence(
        "binding.object_keys_read_out",
        "dlogit",
        (G9,),
        lambda m: all(cell(m, "k_object", "dlogit") > cell(m, row, "dlogit") for row in ("k_box", "k_both")),
    ),
    Sentence(
        "binding.qk_cancels",
        "less than half of each alone",
        (G9, G12),
        lambda m: all(cell(m, row, "dR") / 2 > max(0, cell(m, "qk", "dR")) for row in ("q", "k_both")),
    ),
    Sentence(
        "binding.qk_cancels",
        "dR",
        (G9, G12),
        lambda m: (
            abs(cell(m, "qk", "dR")) <= max(no_change("dR"), min(cell(m, "q", "dR"), cell(m, "k_both", "dR")) / 4)
        ),
    ),
    Sentence(
        "binding.qk_cancels",
        "nearer to random",
        (G9,),
        lambda m: all(
            cell(m, "qk", "dR") < (cell(m, row, "dR") + cell(m, "random", "dR")) / 2 for row in ("q", "k_both")
        ),
    ),
    Sentence("binding.qk_cancels", "dlogit", (G12,), lambda m: cell(m, "qk", "dlogit") <= no_change("dlogit")),
    Sentence(
        "binding.key_dominance",
        "keys lead",
        (L3, L8),
        lambda m: cell(m, "k_both", "dR") - abs(cell(m, "q", "dR")) > no_change("dR"),
    ),
    Sentence(
        "binding.key_dominance",
        "the query is weak",
        (L3, L8),
        lambda m: cell(m, "k_both", "dR") / 2 > abs(cell(m, "q", "dR")),
    ),
    Sentence(
        "binding.key_dominance",
        "it remains",
        (L3, L8),
        lambda m: cell(m, "qk", "dR") > max(no_change("dR"), cell(m, "k_both", "dR") / 2),
    ),
    Sentence(
        "binding.q_strongest",
        "dlogit",
        (G12,),
        lambda m: all(cell(m, "q", "dlogit") > cell(m, k, "dlogit") for k in KEYS),
    ),
    Sentence("binding.q_strongest", "dR", (G12,), lambda m: all(cell(m, "q", "dR") > cell(m, k, "dR") for k in KEYS)),
    Sentence("binding.q_strongest", "switch", (G12,), lambda m: cell(m, "q", "switch") > cell(m, "random", "switch")),
    Sentence(
        "binding.both_keys_most",
        "dR",
        (G9,),
        lambda m: all(cell(m, "k_both", "dR") > cell(m, row, "dR") for row in ("k_box", "k_object")),
    ),
    Sentence(
        "binding.correct_only.stays_positive",
        "dR",
        (L3,),
        lambda m: circuit("correct_only.qk.dR", m) > no_change("dR"),
    ),
    Sentence(
        "binding.correct_only.keys_lead",
        "dR",
        (L3,),
        lambda m: circuit("correct_only.k_both.dR", m) - abs(circuit("correct_only.q.dR", m)) > no_change("dR"),
    ),
    *(
        Sentence(
            "binding.correct_only.similar",
            f"{edit}.{metric}",
            (L3,),
            lambda m, edit=edit, metric=metric: (
                abs(circuit(f"all_examples.{edit}.{metric}", m) - circuit(f"correct_only.{edit}.{metric}", m))
                <= no_change(metric)
            ),
        )
        for edit in ("q", "k_both", "qk")
        for metric in ("dR", "dlogit")
    ),
)

DISCREPANCIES = {
    ("binding.q_strongest", G12, "dR"),
    ("binding.q_strongest", G12, "switch"),
    ("binding.both_keys_most", G9, "dR"),
    ("circuit.three_to_ten_percent", G12, "share"),
    *(("circuit.compact", model, "distinct") for model in (G9, G12, L8)),
}


def test_exactly_these_sentences_fail_on_their_own_tables():
    failing = {(s.claim, model, s.quantity) for s in SENTENCES for model in s.models if not s.holds(model)}
    assert failing == DISCREPANCIES
    assert {(c.claim, c.model, c.quantity) for c in published.contradictions()} == failing


@pytest.mark.parametrize(
    "contradiction", published.contradictions(), ids=lambda c: f"{c.claim}@{c.model}: {c.quantity}"
)
def test_every_recorded_reason_quotes_numbers_of_the_table(contradiction):
    """A reason that quotes a number nobody printed would be a slip; a share, a count of distinct heads and the heads
    themselves are made of what is printed."""
    quoted = [word.strip("().,") for word in contradiction.why.replace(",", " ").split()]
    numbers = [word for word in quoted if word.lstrip("-").replace(".", "").isdigit()]
    printed = {n.printed for n in published.numbers().values() if n.model in (contradiction.model, None)}
    model = contradiction.model
    derived = {f"{100 * published.share_kept(model).value:.1f}", str(len(distinct(model)))}
    derived |= {f"{layer}.{head}" for layer, head in distinct(model)}
    assert numbers
    assert set(numbers) <= printed | derived


def test_every_contradiction_is_of_a_row():
    """A label on a sentence that no row states would reach neither table nor page."""
    rows = {claim.sentence for claim in claims()}
    assert [c.claim for c in published.contradictions() if c.claim not in rows] == []
