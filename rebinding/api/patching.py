"""Path patching and tracing maps on pairs of prompts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal, cast, get_args

import pandas as pd
import torch

from rebinding.api.model import Model
from rebinding.api.prompts import Pairs, Prompts
from rebinding.experiments.metrics import Metric, Score, scores_on
from rebinding.experiments.path_patching import Component
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PathSettings, Stage, join_stratum
from rebinding.experiments.paths.summary import scores
from rebinding.experiments.tracing.maps import TracedPair
from rebinding.experiments.tracing.maps import trace as trace_pairs
from rebinding.experiments.tracing.request import SCORES
from rebinding.paper.circuit import MLP, depth
from rebinding.surgery.layers import heads_by_layer
from rebinding.surgery.sites import (
    SCOPES,
    Head,
    Heads,
    Position,
    Scope,
    SurgeryError,
    check_word,
    head_table,
    layer_number,
)
from rebinding.task.prompts import PromptError, TokenizedPrompt

GROUPS: tuple[Literal["A"], Literal["B"]] = ("A", "B")


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
    freeze_mlps: bool = False,
    scope: Scope = "head",
    metric: Metric | None = None,
) -> pd.DataFrame:
    """The effect of every head at one position, as a sender, on the answer: a row per head, largest drop first.

    A sender's output (z) at `at` becomes that of the noise prompt. Without `receivers` its path leads to the logits;
    with receivers, heads whose `component` (`q`, `k`, `v` or `kv`) at `receivers_at` receives its change.
    With `freeze` all other heads keep their outputs on the way, the textbook form; MLPs and norms are recomputed. Then
    nothing passes from one token to another, so `at` and `receivers_at` must be the same token. `scope="group"` writes
    the keys or values of the receivers' whole KV groups; receivers are query heads in any case.

    The MLP of a layer is `(layer, rebinding.MLP)`. As a sender its output is replaced; as a receiver, with
    `component="mlp"`, it reads the sender's change at its own token. `freeze_mlps` freezes all other MLPs too, so that
    only the direct edge from sender to receiver is left.

    A row for each sender below the last receiver (all heads without receivers): `layer`, `head`, `score` (the mean
    change of the metric, by default the right answer's logit minus the mean of the other candidates'), its standard
    error `se` over pairs (NaN for one pair), and its degrees of freedom. `metric` is a function such as
    `rebinding.kl_divergence`; with one that needs no answers, prompts need none.
    """
    parts = (receivers is not None, component is not None, receivers_at is not None)
    if any(parts) and not all(parts):
        raise SurgeryError("receivers, component and receivers_at go together; leave all three out to reach the logits")
    if freeze_mlps and not freeze:
        raise SurgeryError("freeze_mlps=True freezes MLPs beside heads; leave freeze=True")
    senders = model.heads if senders is None else checked_nodes(senders, model)
    if receivers is not None:
        receivers = checked_nodes(receivers, model)
        check_word("scope", scope, SCOPES)
        check_word("component", str(component), get_args(Component))
        if any((head == MLP) != (component == "mlp") for _, head in receivers):
            raise SurgeryError(
                f"component={component!r} and receivers {receivers}: MLPs receive with component='mlp', and heads with"
                " 'q', 'k', 'v' or 'kv'; call patch_paths for each"
            )
        senders = _below(senders, receivers, model)
        _check_order(pairs, at, cast(Position, receivers_at), freeze=freeze)
    elif freeze and bool((pairs.clean.at(at) != pairs.clean.length - 1).any()):
        raise SurgeryError(
            f"with freeze=True nothing passes from {at!r} to the readout, where the answer is read, so every score"
            " would be zero; give at='readout', name receivers, or freeze=False"
        )
    names = [_name(at), None if receivers_at is None else _name(receivers_at)]
    stage = Stage(
        GROUPS[receivers is not None], cast(str, names[0]), None if receivers is None else "A", component, names[1],
        top_k=len(model.heads),
    )  # fmt: skip
    score = clean_score(model, pairs.clean, metric)
    scored = noise_pairs(pairs, [at, *([] if receivers_at is None else [receivers_at])], score)
    evidence = score_stage(
        model.surgeon, scored, stage, [] if receivers is None else list(receivers), senders=senders,
        settings=PathSettings("mlps" if freeze_mlps else "all" if freeze else "none", scope),
    )  # fmt: skip
    table = scores(evidence, "logit").sort_values("score", ignore_index=True)
    table.loc[table["freedom"] == 0, "se"] = float("nan")
    return table


def trace(
    model: Model,
    pairs: Pairs,
    *,
    layers: Sequence[int] | None = None,
    at: Sequence[Position] | None = None,
    metric: Metric | None = None,
) -> pd.DataFrame:
    """The tracing map: the residual stream of a clean prompt, at one layer and token, in the run of its noise prompt.

    `at` are positions that are one token in all prompts, clean and noise. A row per pair, layer and token. `place` is
    the token's name, or `token N` for one without. `margin` is the logit of the clean prompt's answer minus the largest
    of the other candidates; `base_margin` is the same without a patch. With a `metric` the columns `metric` and
    `base_metric` have its values, against the clean prompts' own run; prompts without two answers have no margins then.
    Cells that cannot change anything are not run (`ran`).
    """
    score, rivals = clean_score(model, pairs.clean, metric), pairs.noise.answers
    answers = candidates_of(pairs.clean, metric is not None, 2)
    layers = None if layers is None else [operator.index(layer) for layer in layers]
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
    rows = trace_pairs(model.surgeon, traced, mode="own", layers=layers, tokens=tokens, score=score).rows
    if pairs.clean.answers is None or pairs.clean.answers.shape[1] < 2:
        rows = rows.drop(columns=[*SCORES, *(f"base_{name}" for name in SCORES)])
    return _with_places(rows)


def clean_score(model: Model, prompts: Prompts, metric: Metric | None) -> Score | None:
    """A metric on clean prompts; None for none."""
    if metric is None:
        return None
    (score,) = scores_on(model.surgeon, [metric], prompts.tokens, prompts.answers)
    return score


def candidates_of(prompts: Prompts, has_metric: bool, minimum: int = 1) -> torch.Tensor:
    """The answer candidates (prompt, candidate). Prompts with fewer, which a metric may not need, get the first tokens
    of the vocabulary: what is measured of these is not returned."""
    has_enough = prompts.answers is not None and prompts.answers.shape[1] >= minimum
    return prompts.candidates(minimum) if not has_metric or has_enough else torch.arange(2).expand(len(prompts), -1)


def _with_places(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a name for every token: by place, by a name of one's own, or by its number."""
    place, role = rows["place"].astype(str), rows["role"].astype(str)
    named = place.where(place != "", role)
    names = named.where(named != "", "token " + rows["token"].astype(str))
    return rows.assign(place=names.astype("category"), role=role.where(role != "", names).astype("category"))


def _tokens(pairs: Pairs, at: Sequence[Position]) -> list[int]:
    places = torch.cat([side.table(at) for side in (pairs.clean, pairs.noise)])  # (prompt, position)
    if bool((places != places[:1]).any()):
        raise PromptError("a tracing map has a column per token; these positions differ between prompts. Give indices")
    return sorted(set(places[0].tolist()))


def checked_heads(heads: Heads, model: Model) -> list[Head]:
    """Heads as pairs of integers; one that does not exist is refused."""
    heads_by_layer(model.anatomy, heads, "z", None)
    return [(layer, head) for layer, head in head_table(heads)[0].tolist()]


def checked_nodes(nodes: Sequence[Head], model: Model) -> list[Head]:
    """Heads and MLPs as pairs of integers; one that does not exist is refused."""
    is_list = isinstance(nodes, (list, tuple)) and all(isinstance(node, (list, tuple)) for node in nodes)
    mlps = [(layer_number(layer), MLP) for layer, *number in nodes if number == [MLP]] if is_list else []
    for layer, _ in mlps:
        if not 0 <= layer < model.anatomy.n_layers:
            raise SurgeryError(
                f"there is no MLP in layer {layer}: the model has layers 0 to {model.anatomy.n_layers - 1}"
            )
    heads = [node for node in nodes if tuple(node)[1:] != (MLP,)] if mlps else nodes
    own = checked_heads(heads, model) if len(heads) or not mlps else []
    return [*own, *mlps]


def _below(senders: list[Head], receivers: Sequence[Head], model: Model) -> list[Head]:
    """The senders that a receiver can read from; an error if there are none."""
    last = max(receivers, key=depth)
    below = [sender for sender in senders if depth(sender) < depth(last)]
    if not below:
        where = f"layer {last[0]}"
        raise SurgeryError(f"no sender is below the last receiver ({where}): nothing passes from one to the other")
    return below


def _check_order(pairs: Pairs, at: Position, receivers_at: Position, *, freeze: bool) -> None:
    """Refuse positions between which nothing can pass: every score would be zero."""
    sent, received = pairs.clean.at(at), pairs.clean.at(receivers_at)
    if freeze and bool((sent != received).any()):
        raise SurgeryError(
            f"with freeze=True nothing passes from {at!r} to another token, {receivers_at!r}, so every score would be"
            " zero; give the same position, or freeze=False"
        )
    if bool((received < sent).any()):
        raise SurgeryError(f"{receivers_at!r} is before {at!r}: a token receives nothing from a later one")


def _name(position: Position) -> str:
    return position if isinstance(position, str) else f"token {operator.index(position)}"


def noise_pairs(pairs: Pairs, positions: Sequence[Position], score: Score | None = None) -> NoisePairs:
    """Pairs as path patching takes them, with roles for the positions; a score takes the place of the lead."""
    answers = candidates_of(pairs.clean, score is not None)

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
        tuple(map(join_stratum, pairs.clean.strata)),
        score=score,
    )
