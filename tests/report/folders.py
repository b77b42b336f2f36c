"""Report folders made of invented numbers, with every kind of evidence that a figure needs. No model is involved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.request import EVERY_TOKEN
from rebinding.report.files import EVIDENCE, evidence_file, write
from rebinding.report.summary import SECTIONS, Summary, summarise
from rebinding.verdicts.judgement import Judgement

CIRCUIT = [["A", 3, 0, "readout"], ["B", 2, 1, "readout"], ["C", 1, 1, "question_box"], ["D", 0, 0, "swap_partner"]]
GRAPH = {
    "nodes": [{"layer": 3, "head": 0, "token": "readout"}, {"layer": 1, "head": 1, "token": "question_box"}],
    "edges": [
        {"sender": 0, "receiver": None, "component": "direct", "effect": 4.0, "low": 3.5, "high": 4.5},
        {"sender": 1, "receiver": 0, "component": "q", "effect": 2.0, "low": 1.5, "high": 2.5},
    ],
}
CONDITIONS = ("random_q", "random_k", "random_qk", "q", "k_both", "k_box", "k_object", "qk")
ROLES = ("context_asked", "context_partner", "swap_partner", "swap_asked", "swap_period", "question_box", "readout")
MODES = ("swap_only", "swap_target_box_to_remaining_context_box", "target_box", "context_and_swap")
PROMPTS = 5


def make_row(id: str = "binding.q_redirects", model: str = "planted:pointer@llama", **fields: Any) -> Judgement:
    """A judgement with these fields; by default a replicated effect."""
    plain: dict[str, Any] = {
        "statement": "Something redirects.",
        "source": "section 5, results",
        "kind": "effect",
        "verdict": "REPLICATED",
        "expected": "REPLICATED",
        "paper": None,
        "measured": 1.0,
        "low": 0.9,
        "high": 1.1,
        "margin": 0.2,
        "n": 60,
        "needed_n": None,
        "gate": None,
        "finding": None,
        "p_value": 1e-6 if fields.get("verdict") == "NOT REPLICATED" else 1.0,
        "unit": "prompts",
        "metrics": "dR",
        "statistic": "mean change",
        "where": "group B",
        "design": "published",
        "circuit": "declared",
        "reason": "1 in [0.9, 1.1] against 0 +- 0.2: surely greater",
        "evidence": ("binding-published-60",),
        "against": 0.0,
        "because": "Query and key meet in one slot code.",
        "command": "pytest 'claims/test_binding.py::test_x'",
        "sample": tuple(float(value) for value in np.linspace(0.5, 1.5, 60)),
    }
    return Judgement(id=id, model=model, **({"section": section_of(id)} | plain | fields))


def summary_of(claims: Sequence[Judgement], *, planted: bool = True) -> Summary:
    """The summary of judgements; the truth of every model is known, or of none."""
    return summarise(claims, {claim.model: planted for claim in claims})


def section_of(id: str) -> Any:
    """The section of a claim, by the prefix of its id."""
    names = [section for section in SECTIONS if id.startswith(f"{section.ids}.")]
    return max(names, key=lambda section: len(section.ids), default=SECTIONS[-1]).key


def make(
    folder: Path,
    claims: Sequence[Judgement],
    *,
    layers: int = 4,
    heads: int = 2,
    shift: float = 0.0,
    kind: str = "planted",
    bare: bool = False,
) -> Path:
    """A folder with these claims, and evidence of every kind for each of their models; `shift` changes all of it.

    A `bare` folder has no evidence and no circuit, so that nothing is drawn.
    """
    models = []
    (folder / EVIDENCE).mkdir(parents=True)
    for name in dict.fromkeys(claim.model for claim in claims):
        pieces = {} if bare else evidence(layers, heads, shift)
        for label, piece in pieces.items():
            piece.save(folder / EVIDENCE / evidence_file(name, label))
        description = about(name, pieces, layers, heads) | {"kind": kind, "alias": None}
        models.append(description | {"circuit": [], "graph": None} if bare else description)
    software, summary = {"python": "3.11", "torch": "2.13"}, summary_of(claims, planted=kind == "planted")
    write(folder, {"samples": None, "design": "published"}, software, models, summary)
    return folder


def about(name: str, pieces: Mapping[str, Evidence], layers: int, heads: int) -> dict[str, Any]:
    """The description of a model."""
    return {
        "name": name,
        "circuit_from": "declared",
        "stages": {group: f"paths-{group}" for group in "AB" if f"paths-{group}" in pieces},
        "circuit": CIRCUIT,
        "mean_set": "counterbalanced",
        "graph": GRAPH,
        "printed": {"binding.q.dR": 2.5, "roles.B.pointer": 3.0, "accuracy.full": 1.0},
        "layers": layers,
        "heads": heads,
        "fingerprint": "0123abcd" * 8,
        "certified": f"Not certified: run `rebinding certify {name}`",
        "evidence": {
            label: {"file": evidence_file(name, label), "kind": piece.experiment, "seconds": 1.5, "pair": None}
            for label, piece in pieces.items()
        },
    }


def evidence(layers: int, heads: int, shift: float) -> dict[str, Evidence]:
    """Evidence of every kind, by short labels."""
    random = np.random.default_rng(0)
    boxes = (3, 5)
    return {
        **{
            f"tracing-{n}-{mode}": tag(make_tracing(mode, layers, shift), boxes=n, mode=mode, roles=EVERY_TOKEN)
            for n in boxes
            for mode in MODES
        },
        **{f"diagnostic-{n}": tag(make_diagnostic(layers, shift), windows="all", boxes=n) for n in boxes},
        **{f"paths-{group}": tag(paths(layers, heads, shift, random), stage=group) for group in "AB"},
        "link-A": tag(make_link(shift), stage="A to logits at readout", senders=1, frozen="all"),
        "pruning": tag(pruning(), {"circuit": CIRCUIT}, design="partner_second"),
        "ablated-groups": tag(make_ablation(shift), comparison="groups"),
        **{
            f"roles-{mode}-{pairs}": tag(roles(pairs, mode, shift), pairs=pairs, mode=mode, direction=direction)
            for mode, direction in (("published", "code"), ("own_role", "both"))
            for pairs in ("pointer", "content_control")
        },
        **{
            f"binding-{name}-60": tag(binding(shift, random), variation=name)
            for name in ("published", "isolated", "controlled")
        },
    }


def tag(evidence: Evidence, request: Mapping[str, Any] | None = None, **facets: Any) -> Evidence:
    """Evidence with its request, facets and key, as a workbench makes it."""
    settings = {"request": request or {}, "facets": {"design": "published", **facets}, "key": "0" * 64}
    return replace(evidence, settings={**evidence.settings, **settings})


def make_tracing(mode: str, layers: int, shift: float) -> Evidence:
    """A map in which the readout restores the answer in the last layer; with a shift, in all layers."""
    rows = [
        {
            "prompt": id, "mode": mode, "layer": layer, "token": token, "role": role, "place": role,
            "hit": role == "readout" and (layer == layers - 1 or shift > 0), "base_hit": False,
            "margin": 0.0, "base_margin": 0.0, "ran": True, "differs": True,
        }
        for id, layer, (token, role) in product(range(PROMPTS), range(layers), enumerate(ROLES))
    ]  # fmt: skip
    return Evidence("tracing", pd.DataFrame(rows), {"mode": mode, "ids": [0, 4], "design": "published"})


def make_diagnostic(layers: int, shift: float) -> Evidence:
    """Single layers and all layers at both places."""
    spans = [*((layer, layer) for layer in range(layers)), (0, layers - 1)]
    rows = [
        {
            "prompt": id, "question": question, "place": place, "first": first, "last": last,
            "change": first + 10.0 * (place == "readout") + shift, "original_correct": True,
            "counterfactual_correct": True,
        }
        for id, question, place, (first, last) in product(
            range(PROMPTS), ("asked", "partner"), ("swap_period", "readout"), spans
        )
    ]  # fmt: skip
    return Evidence("readout-diagnostic", pd.DataFrame(rows), {"n": PROMPTS})


def paths(layers: int, heads: int, shift: float, random: np.random.Generator) -> Evidence:
    """Scores of every head."""
    grid = pd.DataFrame(list(product(range(layers), range(heads), range(PROMPTS))), columns=["layer", "head", "prompt"])
    fall = random.uniform(0, 0.5, len(grid)) + shift * (grid["layer"] == 0) * 0.4
    return Evidence(
        "paths", grid.assign(stratum="1.1.0", lead_orig=9.0, lead_patch=9.0 * (1 - fall)), {"stage": {"top_k": 2}}
    )


def make_link(shift: float) -> Evidence:
    """The effect of the one head of group A on the logits."""
    rows = [
        {
            "prompt": id, "layer": 3, "head": 0, "stratum": "1.1.0", "lead_orig": 9.0, "lead_patch": 4.0 - shift - id,
            "p_orig": 0.9, "p_patch": 0.5,
        }
        for id in range(PROMPTS)
    ]  # fmt: skip
    return Evidence("paths", pd.DataFrame(rows), {"stage": {"top_k": 1}})


def pruning() -> Evidence:
    """One walk that removes the last head."""
    rows = [[*head, 0, 6.0, 5.5, 0.1, number == len(CIRCUIT) - 1] for number, head in enumerate(CIRCUIT)]
    table = pd.DataFrame(
        rows, columns=["group", "layer", "head", "role", "order", "full_model", "before", "drop", "removed"]
    )
    return Evidence("pruning", table, {})


def make_ablation(shift: float) -> Evidence:
    """Three kinds of circuit on five prompts."""
    rows = [
        {
            **{"variant": which, "group": "", "layer": -1, "head": -1, "draw": draw, "prompt": prompt},
            **{"hit": float(hit), "margin": hit + shift, "label_logit": 5.0 + shift},
        }
        for which, draw, hit in (("full", -1, 1), ("circuit", -1, 1), ("random", 0, 0), ("random", 1, 0))
        for prompt in range(PROMPTS)
    ]
    return Evidence("ablation", pd.DataFrame(rows), {"mean_set": "counterbalanced"})


def roles(kind: str, mode: str, shift: float) -> Evidence:
    """Group B moves the pointed word."""
    rows = [
        {
            "prompt": id, "answer_slot": 0, "word": word, "group": group, "layer": -1, "head": -1, "before": 0.0,
            "after": (2.0 + shift) * (group == "B" and word == "pointed_object") + 0.1 * id,
        }
        for id, group, word in product(range(PROMPTS), "AB", ("answer", "new_object", "pointed_object"))
    ]  # fmt: skip
    return Evidence("roles", pd.DataFrame(rows), {"kind": kind, "mode": mode, "groups": {"A": [], "B": []}})


def binding(shift: float, random: np.random.Generator) -> Evidence:
    """Attention of one head on three slots before and after; shifted, too, the two shares of a slot are below 1."""
    rows = pd.DataFrame(list(product(range(PROMPTS), CONDITIONS)), columns=["prompt", "condition"])
    rows = rows.assign(i=1, j=0, correct=rows["prompt"] > 0, draw=0, layer=2, head=1)
    names = [f"{kind}_{slot}" for kind in ("box", "object") for slot in range(3)]
    for when, name in product(("before", "after"), [*names, "logit_0", "logit_1", "logit_2"]):
        change = (shift if name.startswith("logit") else shift / 4) * (when == "after" and name.endswith("_0"))
        rows[f"{when}_{name}"] = random.uniform(0.1, 0.3, len(rows)) + change
    conditions = {name: {"kinds": ["box", "object"]} for name in CONDITIONS}
    return Evidence("binding", rows, {"slots": 3, "heads": [[2, 1]], "scope": "head", "conditions": conditions})
