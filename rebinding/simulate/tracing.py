"""Section 3, simulated: the tokens and layers at which a patch restores the original's answer.

The figures of this section have no numbers, so `worlds.toml` declares every size, only for the model in the figures. In
the paper's world a label restores the answer until other tokens have read it, tokens in between do so from then on, and
the readout last: it has the box before it has the object, which comes from the object's own token. In the rival's world
the swap's full stop holds the updated state: labels and the full stop carry the object, and nothing reaches the readout
before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import PromptSet
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing.maps import names_of
from rebinding.experiments.tracing.request import (
    DIAGNOSTIC_MODE,
    PATCHED,
    SITES,
    Answered,
    FirstMention,
    ReadoutDiagnostic,
    TracingMap,
    pairs_by_question,
    windows_of_rules,
)
from rebinding.paper.numbers import checkpoint
from rebinding.simulate.worlds import NotSimulated, Run
from rebinding.task.designs import Pair

LayerSpan: TypeAlias = tuple[float, float]
"""The first and the last layer at which a patch restores the answer, as shares of the depth."""
Route: TypeAlias = Mapping[str, tuple[str, LayerSpan, str]]
"""By role of a token: the name of the share of prompts in which it restores the answer; the layers where it does so;
and the mode for which this is sampled."""
Layers: TypeAlias = npt.NDArray[np.bool_]
"""(layer, cell) or (layer, prompt): whether a patch restores the answer."""
OBJECT_MODE = "target_box"
FIRST_MENTIONS = {"context_and_swap": "context_asked", "context_target_box_and_swap_query_box": "context_partner"}
EDITED = FIRST_MENTIONS | {
    "swap_only": "swap_asked",
    DIAGNOSTIC_MODE: "swap_partner",
    OBJECT_MODE: "context_partner_object",
}
"""The token in which the prompts of a mode differ; of those that differ in two, the one in the context."""
LABEL_SPAN, STOP_SPAN, QUESTION_SPAN = (0.0, 0.45), (0.3, 0.5), (0.4, 0.6)
OBJECT_SPAN, BOX_AT_READOUT, OBJECT_AT_READOUT = (0.0, 0.65), (0.55, 1.0), (0.75, 1.0)
"""The depths at which labels, the swap's full stop, the question's label and the object restore the answer; and from
which the readout has the box, and the object."""


def simulate_answered(prompts: Stories, request: Answered, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Originals are answered with the printed accuracy, whatever their counterfactual."""
    ids = np.array(request.prompts.ids)
    luck = run.dice("right", request.prompts.design, request.prompts.boxes).random(ids.max() + 1)[ids]
    return pd.DataFrame({"prompt": ids, "right": luck < run.world.mean("accuracy.full")}), {}


def simulate_map(prompts: Stories, request: TracingMap, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt, layer and token that has one of the roles."""
    if request.roles is None or request.mode not in EDITED:
        raise NotSimulated(f"tracing: mode {request.mode!r}; the modes of rows are simulated, at tokens with a role")
    cells = cells_of(prompts, request.prompts, request.roles)
    depth, ids = checkpoint(run.world.model).layers, request.prompts.ids
    restored = np.zeros((depth, len(cells)), dtype=np.bool_)
    place = cells["number"].to_numpy()
    for role, (share, span, mode) in route_of(request.mode, run).items():
        of_role = ((cells["role"] == role) | (cells["place"] == role)).to_numpy()
        by_prompt = layers_of(run, share, span, (mode, role, request.prompts.design), len(ids))
        restored[:, of_role] = by_prompt[:, place[of_role]]
    if request.mode not in FIRST_MENTIONS:
        restored[0] = (cells["role"] == EDITED[request.mode]).to_numpy()  # the original run itself, or a no-op
    cell = np.tile(np.arange(len(cells)), depth)  # (row,), row = layer x cell
    repeated = cells.drop(columns="number").iloc[cell].reset_index(drop=True)
    constant = {"mode": request.mode, "differs": True, "ran": True, "relative_change": 1.0}
    rows = repeated.assign(layer=np.repeat(np.arange(depth), len(cells)), **constant)
    return rows.assign(**scores_of(restored.ravel(), answerable(prompts, request.prompts)[place[cell]], run)), {}


def simulate_mention(prompts: Stories, request: FirstMention, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt, layer and entry of `PATCHED`. In a share of prompts that the world gives, the swap label
    restores the answer only together with the context label."""
    ids, depth = np.array(request.prompts.ids), checkpoint(run.world.model).layers
    key = request.mode, request.prompts.design
    label = layers_of(run, "tracing.label", LABEL_SPAN, key, len(ids))[1:]  # (layer, prompt)
    needs_both = run.dice("context", *key).random(len(ids)) < run.world.mean("tracing.context")
    has_rival = np.tile(answerable(prompts, request.prompts), depth - 1)
    layer = np.repeat(np.arange(1, depth), len(ids))
    frames = []
    for name, (in_context, _) in PATCHED.items():
        restored = label if in_context else label & ~needs_both
        frame = pd.DataFrame({"prompt": np.tile(ids, depth - 1), "layer": layer})
        frames.append(frame.assign(patched=name, **scores_of(restored.ravel(), has_rival, run)))
    return pd.concat(frames, ignore_index=True).assign(mode=request.mode, relative_change=1.0), {}


def simulate_diagnostic(prompts: Stories, request: ReadoutDiagnostic, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per question, place and window of rules. A patch of the readout does all that a patch of the swap's full
    stop does, and prompts spread in the same way in both."""
    world, depth = run.world, checkpoint(run.world.model).layers
    questions = questions_of(prompts, request.prompts)
    dice = run.dice("diagnostic", request.prompts.design)
    common, own = dice.standard_normal((2, len(questions)))
    period = np.array([world.mean(f"tracing.period.{question}") for question in questions["question"]])
    readout = np.full(len(questions), world.mean("tracing.readout"))
    changes = {"swap_period": period + around(run, period) * common}
    changes["readout"] = readout + around(run, period) * common + around(run, readout - period) * own
    changes = {site: change + run.rounding("diagnostic", site) for site, change in changes.items()}
    base = -world.mean("margin.full")
    frames = [
        questions.assign(
            place=site, first=span.first, last=span.last, change=changes[site], margin=base + changes[site]
        )
        for site in SITES
        for span in windows_of_rules(depth)
    ]
    rows = pd.concat(frames, ignore_index=True)
    constant = {"base_margin": base, "original_correct": True, "counterfactual_correct": True, "relative_change": 1.0}
    return rows.assign(hit=rows["margin"] > 0, **constant), {}


def around(run: Run, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The spread of prompts about each mean."""
    return np.array([run.world.around(mean) for mean in means])


def route_of(mode: str, run: Run) -> Route:
    """The tokens that restore the answer in the pairs of a mode. What travels with the object restores the answer at
    the same layers as the object."""
    with_object = "tracing.label", OBJECT_AT_READOUT, OBJECT_MODE
    if mode in FIRST_MENTIONS:
        return {EDITED[mode]: ("tracing.context", LABEL_SPAN, mode)}
    if mode == OBJECT_MODE:
        labels = ("swap_first", "swap_second", "swap_period", "question_box")
        edited = {EDITED[mode]: ("tracing.label", OBJECT_SPAN, mode), "readout": with_object}
        return {**edited, **dict.fromkeys(labels, ("tracing.object_carried", QUESTION_SPAN, mode))}
    has_box_first = run.world.mean("tracing.box_alone") > 0
    return {
        EDITED[mode]: ("tracing.label", LABEL_SPAN, mode),
        "swap_period": ("tracing.between", STOP_SPAN, mode),
        "question_box": ("tracing.between", QUESTION_SPAN, mode),
        "readout": ("tracing.box_alone", BOX_AT_READOUT, mode) if has_box_first else with_object,
    }


def layers_of(run: Run, share: str, span: LayerSpan, what: tuple[str, ...], n: int) -> Layers:
    """Whether a token restores the answer at each layer of each prompt: (layer, prompt). The ends of the span vary
    between prompts."""
    depth, dice = checkpoint(run.world.model).layers, run.dice("route", share, *what)
    begin, end = (edge + run.world.spreads["layer"] * dice.standard_normal(n) for edge in span)
    has_route = dice.random(n) < run.world.mean(share)
    depths = np.arange(depth)[:, None] / (depth - 1)  # (layer, 1)
    restores: Layers = has_route & (depths >= begin) & ((depths <= end) | (span[1] == 1.0))
    return restores


def scores_of(restored: Layers, has_rival: Layers, run: Run) -> dict[str, npt.NDArray[Any]]:
    """The scores of rows: a patch restores the original's answer, or the counterfactual's leads by as much. A
    counterfactual without an answer has no margin."""
    lead, logit = run.world.mean("margin.full"), run.world.mean("logit.full")
    margin = np.where(restored, lead, -lead)
    patched = {
        "hit": restored,
        "hit_with_counterfactual": restored,
        "margin": margin,
        "counterfactual_margin": np.where(has_rival, margin, np.nan),
        "answer_logit": np.full(len(margin), logit),
    }
    base = {
        "hit": np.zeros(len(margin), dtype=np.bool_),
        "hit_with_counterfactual": np.zeros(len(margin), dtype=np.bool_),
        "margin": np.full(len(margin), -lead),
        "counterfactual_margin": np.where(has_rival, -lead, np.nan),
        "answer_logit": np.full(len(margin), logit),
    }
    return patched | {f"base_{name}": values for name, values in base.items()}


@lru_cache(maxsize=64)
def cells_of(prompts: Stories, request: PromptSet, roles: tuple[str, ...]) -> pd.DataFrame:
    """The tokens with one of these roles, prompt by prompt; `number` counts the prompts."""
    lines = []
    for number, (id, encoded) in enumerate(zip(request.ids, prompts.encode(request).prompts, strict=True)):
        tokens = sorted({at for name, at in encoded.roles.items() if name.partition("[")[0] in roles})
        lines += [(number, id, *cell) for cell in zip(tokens, *names_of(encoded.roles, tokens), strict=True)]
    rows = pd.DataFrame(lines, columns=["number", "prompt", "token", "place", "role"])
    return rows.astype({"place": "category", "role": "category"})


@lru_cache(maxsize=64)
def answerable(prompts: Stories, request: PromptSet) -> Layers:
    """Whether the counterfactual of each prompt has an answer."""
    items = prompts.encode(request).items
    return np.array([isinstance(item, Pair) and item.counterfactual.answerable for item in items], dtype=np.bool_)


@lru_cache(maxsize=64)
def questions_of(prompts: Stories, request: PromptSet) -> pd.DataFrame:
    """The questions about each pair, as the experiment names them."""
    stories = prompts.plan(request)
    lines = [
        (number, name)
        for number in request.ids
        for name, _ in pairs_by_question(stories.tracing(number, DIAGNOSTIC_MODE))
    ]
    return pd.DataFrame(lines, columns=["prompt", "question"])
