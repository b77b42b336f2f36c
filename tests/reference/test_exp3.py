"""Section 4.2 on the packs: every group, content control and pointer, per prompt, word and form of the answer token."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from rebinding.evidence import Evidence
from rebinding.experiments.roles.interchange import MODES, RolePair, run_roles
from rebinding.experiments.roles.kinds import WHOLE_GROUP
from rebinding.experiments.roles.summary import group_effects
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import GROUPS, ROLE_OF_GROUP
from rebinding.paper.procedure import given
from rebinding.study.bench import Bench
from rebinding.study.roles import interchanged, stories
from rebinding.subjects import load
from tests.reference.pack import ROLES, Pack, deviation

NAME = "exp3"
WORDS = {"content_control": ("new_object", "pointed_object"), "pointer": ("pointed_object", "new_object")}
"""The measured and the other word of each kind of pair, as the packs' formulas say."""

RUNS = {"before": "original", "after": "patched", "counterfactual": "counterfactual_run"}
FORMS = {"space": "object_token_with_space", "no_space": "object_token_without_space"}


@cache
def evidence(pack: Pack, kind: str, form: str) -> Evidence:
    """All groups at once, in the published mode."""
    entries = {name.split("/")[1]: entry for name, entry in pack.starting("head_roles/").items() if name.endswith(kind)}
    entry = next(iter(entries.values()))
    original, other = (entry["settings"][side].removeprefix("design ") for side in ("original", "counterfactual"))
    words = {
        word: token
        for design in (original, other)
        for prompt in pack.raw(design).values()
        for word, token in prompt[FORMS[form]].items()
    }
    prompts = zip(entry["ids"], pack.prompts(original, entry["ids"]), pack.prompts(other, entry["ids"]), strict=True)
    groups = {group: [tuple(head) for head in one["settings"]["heads"]] for group, one in entries.items()}
    way = given("published").roles
    return run_roles(
        pack.surgeon,
        [RolePair(*pair) for pair in prompts],
        groups,
        kind=kind,
        token=words.__getitem__,
        mode=way.places,
        future=way.future,
        block=4,
    )


def test_every_entry_is_compared(pack: Pack) -> None:
    """The groups act at the tokens, and by the sites, that the pack names."""
    names = pack.starting("head_roles/")
    assert {name.split("/")[2] for name in names} == set(WORDS)
    for name, entry in names.items():
        site, role = MODES["published"][name.split("/")[1]]
        assert ROLES[entry["settings"]["site"]] == role
        assert entry["settings"]["patch"].startswith("z of" if site == "z" else "attention pattern row")


def test_role(pack: Pack, deviations: dict[str, float]) -> None:
    """Logits of both words in the original, the patched and the counterfactual run, and their mean change."""
    for name, entry in pack.starting("head_roles/").items():
        group, kind = name.split("/")[1:]
        for form in FORMS:
            rows = evidence(pack, kind, form).rows
            rows = rows[(rows["group"] == group) & (rows["head"] == WHOLE_GROUP)].set_index(["word", "prompt"])
            means = group_effects(evidence(pack, kind, form)).groupby("group").mean().loc[group]
            for word, suffix in zip(WORDS[kind], ("", "_of_the_other_word"), strict=True):
                mine = rows.loc[word].loc[entry["ids"]].reset_index()
                want = entry["value"][form][f"per_prompt{suffix}"]
                assert mine["prompt"].tolist() == [one["id"] for one in want]
                assert mine["token"].tolist() == [one["token"] for one in want]
                for ours, theirs in RUNS.items():
                    record(deviations, mine[ours].tolist(), [one[theirs] for one in want])
                record(deviations, means[word], entry["value"][form][f"delta{suffix}"])


def test_attention_on_later_keys(pack: Pack, deviations: dict[str, float]) -> None:
    """How much of each copied row looks at tokens that its query cannot see."""
    for name, entry in pack.starting("head_roles/").items():
        group, kind = name.split("/")[1:]
        want = entry["value"].get("attention_mass_on_later_keys")
        if want is None:
            continue
        rows = evidence(pack, kind, "space").rows
        rows = rows[(rows["group"] == group) & (rows["word"] == "answer")]
        rows = rows.set_index(["prompt", "layer", "head"])["future_mass"]
        heads = [tuple(head) for head in entry["settings"]["heads"]]
        record(deviations, [[rows.loc[number, *head] for head in heads] for number in entry["ids"]], want)


def record(deviations: dict[str, float], got: Any, want: Any) -> None:
    found = deviation(got, want)
    deviations[NAME] = max(deviations.get(NAME, 0.0), found)
    assert found <= 1


def test_published_rows_ask_for_what_the_pack_was_made_with(pack: Pack, deviations: dict[str, float]) -> None:
    """From the conventions in the file to the numbers, by the way that a claim takes: the pack's own prompts, words,
    places and answer tokens, and its logits."""
    subject = replace(load(str(pack.folder / "model"), dtype="float32", device="cpu"), form="template")  # no date lines
    bench, way = Bench(subject), given("published").roles
    entries = {kind: pack.entries[f"head_roles/{GROUPS[0]}/{kind}"] for kind in WORDS}
    heads = [
        CircuitHead(group, *head, ROLE_OF_GROUP[group])
        for group in GROUPS
        for head in pack.entries[f"head_roles/{group}/pointer"]["settings"]["heads"]
    ]
    for kind, entry in entries.items():
        asked = interchanged(
            bench, Circuit(tuple(heads)), stories(bench, way, "published"), kind, len(entry["ids"]), way
        )
        assert asked.prompts.ids == tuple(entry["ids"])
        sides = bench.drawn(asked.prompts).prompts, bench.drawn(asked.prompts).others
        for side, found in zip(("original", "counterfactual"), sides, strict=True):
            theirs = pack.prompts(entry["settings"][side].removeprefix("design "), entry["ids"])
            assert [one.ids for one in found] == [one.ids for one in theirs]
        table = group_effects(bench.measured(asked)).groupby("group").mean()
        for group in GROUPS:
            want = pack.entries[f"head_roles/{group}/{kind}"]["value"]["no_space"]
            record(deviations, table.loc[group, WORDS[kind][0]], want["delta"])
