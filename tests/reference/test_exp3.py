"""Section 4.2 on the packs: every group, content control and pointer, per prompt, word and form of the answer token.

The requests are those of published rows, on the prompts and heads of the pack."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from rebinding.evidence import Evidence
from rebinding.experiments.roles.request import (
    MODES,
    WHOLE_GROUP,
    Counterfactual,
    Interchange,
    request_interchange,
    roles_stories,
)
from rebinding.experiments.roles.summary import group_effects
from rebinding.experiments.workbench import Workbench
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.paper.procedure import builtin_procedure
from rebinding.task.prompts import AnswerRule
from tests.reference.bench import choose_form, make_bench
from tests.reference.naive.patching import FORMS
from tests.reference.pack import ROLES, Agrees, Pack

NAME = "exp3"
WORDS = {"content_control": ("new_object", "pointed_object"), "pointer": ("pointed_object", "new_object")}
"""The measured and the other word of each kind of pair, as the packs' formulas say."""

RUNS = {"before": "original", "after": "patched", "counterfactual": "counterfactual_run"}
RULES: dict[str, AnswerRule] = {"space": "exp1_spaced", "no_space": "exp34_unspaced"}


@cache
def published(pack: Pack, kind: Counterfactual) -> tuple[Workbench, Interchange]:
    """By the way that a claim takes, from the conventions in the file to a request, on the pack's prompts and heads."""
    entries = {group: entry for (group, kind_of_entry), entry in find_entries(pack).items() if kind_of_entry == kind}
    first, conventions = next(iter(entries.values())), builtin_procedure("published").roles
    designs = tuple(first["settings"][side].removeprefix("design ") for side in ("original", "counterfactual"))
    bench = make_bench(pack, {(kind, conventions.direction): (designs, first["ids"])})
    heads = [
        CircuitHead(group, *head, ROLE_OF_GROUP[group])
        for group, entry in entries.items()
        for head in entry["settings"]["heads"]
    ]
    stories, n = roles_stories(bench.prompts, conventions, "published"), len(first["ids"])
    request = request_interchange(bench.prompts, Circuit(tuple(heads)), stories, kind, n, conventions)
    assert {group for group, _ in request.groups} == set(entries)
    assert request.answers in RULES.values()
    for form, rule in RULES.items():
        assert choose_form(pack, bench, designs[0], rule) == form
    return bench, request


@cache
def evidence(pack: Pack, kind: Counterfactual, form: str) -> Evidence:
    """All groups at once, and every head alone, with the answers in one form."""
    bench, request = published(pack, kind)
    return bench.get(replace(request, answers=RULES[form], single_heads=True))


def test_every_entry_is_compared(pack: Pack) -> None:
    """The groups act at the tokens, and by the sites, that the pack names."""
    names = pack.starting("head_roles/")
    assert {name.split("/")[2] for name in names} == set(WORDS)
    for name, entry in names.items():
        site, role = MODES["published"][name.split("/")[1]]
        assert ROLES[entry["settings"]["site"]] == role
        assert entry["settings"]["patch"].startswith("z of" if site == "z" else "attention pattern row")


def test_roles_equal_the_pack(pack: Pack, agrees: Agrees) -> None:
    """Logits of both words in the original, the patched and the counterfactual run, and their mean change."""
    for name, entry in pack.starting("head_roles/").items():
        group, kind = name.split("/")[1:]
        for form in FORMS:
            rows = evidence(pack, kind, form).rows
            rows = rows[(rows["group"] == group) & (rows["head"] == WHOLE_GROUP)].set_index(["word", "prompt"])
            means = group_effects(evidence(pack, kind, form)).groupby("group").mean().loc[group]
            for word, suffix in zip(WORDS[kind], ("", "_of_the_other_word"), strict=True):
                part = rows.loc[word].loc[entry["ids"]].reset_index()
                expected = entry["value"][form][f"per_prompt{suffix}"]
                assert part["prompt"].tolist() == [value["id"] for value in expected]
                assert part["token"].tolist() == [value["token"] for value in expected]
                for column, key in RUNS.items():
                    agrees(NAME, part[column].tolist(), [value[key] for value in expected])
                agrees(NAME, means[word], entry["value"][form][f"delta{suffix}"])


def test_attention_on_later_keys_equals_the_pack(pack: Pack, agrees: Agrees) -> None:
    """How much of each copied row looks at tokens that its query cannot see."""
    for name, entry in pack.starting("head_roles/").items():
        group, kind = name.split("/")[1:]
        expected = entry["value"].get("attention_mass_on_later_keys")
        if expected is None:
            continue
        rows = evidence(pack, kind, "space").rows
        rows = rows[(rows["group"] == group) & (rows["word"] == "answer")]
        rows = rows.set_index(["prompt", "layer", "head"])["future_mass"]
        heads = [tuple(head) for head in entry["settings"]["heads"]]
        agrees(NAME, [[rows.loc[number, *head] for head in heads] for number in entry["ids"]], expected)


def find_entries(pack: Pack) -> dict[tuple[Group, str], dict[str, Any]]:
    """The entries by group and kind of pair."""
    names = {name: name.split("/") for name in pack.starting("head_roles/")}
    return {(group, kind): pack.entries[name] for name, (_, group, kind) in names.items()}
