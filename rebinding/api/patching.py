"""Path patching and tracing maps on pairs of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

import pandas as pd
import torch

from rebinding.api.edits import Head, head_list, heads_by_layer, position_list
from rebinding.api.model import Model
from rebinding.api.prompts import Pairs, Position
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.patching import Component
from rebinding.experiments.paths.request import PathSettings, Stage
from rebinding.experiments.paths.summary import scores
from rebinding.experiments.tracing.maps import TracedPair
from rebinding.experiments.tracing.maps import trace as trace_pairs
from rebinding.surgery.checks import SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.task.prompts import PromptError, TokenizedPrompt

GROUPS: tuple[Literal["A"], Literal["B"]] = ("A", "B")
Map: TypeAlias = pd.DataFrame


def patch_paths(
    model: Model,
    pairs: Pairs,
    *,
    at: Position = "readout",
    senders: Sequence[Head] | None = None,
    receivers: Sequence[Head] | None = None,
    component: Component | None = None,
    receivers_at: Position | None = None,
    freeze: bool = True,
    scope: Scope = "head",
) -> pd.DataFrame:
    """The effect of every head at one position, as a sender, on the answer: a row per head, largest drop first.

    A sender's output (z) at `at` becomes that of the noise prompt. Without `receivers` its path leads to the logits;
    with receivers, heads whose `component` (`q`, `k`, `v` or `kv`) at `receivers_at` receives its change.
    With `freeze` all other heads keep their outputs on the way, the textbook form; MLPs and norms are recomputed.

    Columns: `layer`, `head`, `score` (the mean change of the right answer's logit minus the mean of the other
    candidates'), its standard error `se`, and degrees of freedom.
    """
    given = [receivers is not None, component is not None, receivers_at is not None]
    if any(given) and not all(given):
        raise SurgeryError("receivers, component and receivers_at go together; leave all three out to reach the logits")
    anatomy = model.anatomy
    for heads in (senders, receivers):
        if heads is not None:
            heads_by_layer(head_list(heads), anatomy, "z", None)
    names = [_name(at), None if receivers_at is None else _name(receivers_at)]
    stage = Stage(
        GROUPS[receivers is not None], cast(str, names[0]), None if receivers is None else "A", component, names[1],
        top_k=len(model.heads),
    )  # fmt: skip
    noise_pairs = _noise_pairs(pairs, [at, *([] if receivers_at is None else [receivers_at])])
    evidence = score_stage(
        model.surgeon, noise_pairs, stage, list(receivers or ()), senders=senders,
        settings=PathSettings("all" if freeze else "none", scope),
    )  # fmt: skip
    return scores(evidence, "logit").sort_values("score", ignore_index=True)


def trace(
    model: Model,
    pairs: Pairs,
    *,
    layers: Sequence[int] | None = None,
    at: Sequence[Position] | None = None,
) -> Map:
    """The tracing map: the residual stream of a clean prompt, at one layer and token, in the run of its noise prompt.

    A row per pair, layer and token. `margin` is the logit of the clean prompt's answer minus the largest of the other
    candidates; `base_margin` is the same without a patch. Cells that cannot change anything are not run (`ran`).
    """
    answers, rivals = pairs.clean.candidates(), pairs.noise.answers
    for layer in layers or ():
        if not 0 <= layer < model.anatomy.n_layers:
            raise SurgeryError(f"there is no layer {layer}: the model has layers 0 to {model.anatomy.n_layers - 1}")
    traced = [
        TracedPair(
            number, clean, noise, tuple(answers[number].tolist()), 0, None if rivals is None else int(rivals[number, 0])
        )
        for number, (clean, noise) in enumerate(zip(pairs.clean.tokenized, pairs.noise.tokenized, strict=True))
    ]
    tokens = None if at is None else _tokens(pairs, at)
    return trace_pairs(model.surgeon, traced, mode="own", layers=layers, tokens=tokens).rows


def _tokens(pairs: Pairs, at: Sequence[Position]) -> list[int]:
    places = [pairs.clean.at(position).unique() for position in position_list(at)]
    if any(len(place) > 1 for place in places):
        raise PromptError(
            "a tracing map has one column per token; these positions differ between prompts. Give indices"
        )
    return sorted({int(place[0]) for place in places})


def _name(position: Position) -> str:
    return position if isinstance(position, str) else f"token {position}"


def _noise_pairs(pairs: Pairs, positions: Sequence[Position]) -> NoisePairs:
    answers = pairs.clean.candidates()

    def named(prompts: Sequence[TokenizedPrompt], at: dict[str, torch.Tensor]) -> tuple[TokenizedPrompt, ...]:
        return tuple(
            TokenizedPrompt(
                prompt.text, prompt.ids, {**prompt.roles, **{name: int(place[line]) for name, place in at.items()}},
                prompt.tokenizer,
            )
            for line, prompt in enumerate(prompts)
        )  # fmt: skip

    at_clean, at_noise = (
        {_name(position): side.at(position) for position in positions} for side in (pairs.clean, pairs.noise)
    )
    return NoisePairs(
        tuple(range(len(pairs))),
        named(pairs.clean.tokenized, at_clean),
        named(pairs.noise.tokenized, at_noise),
        answers[:, 0],
        answers[:, 1:],
        tuple(".".join(map(str, stratum)) for stratum in pairs.clean.strata),
    )
