"""Evaluate a circuit: alone, against random circuits, and over circuits of many sizes.

Every head that is not in the circuit is ablated: set to zero, to its mean over some prompts, or to its value in another
prompt. So is every MLP, if the circuit has MLPs; else they compute as in the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from rebinding.api.model import Model
from rebinding.api.patching import candidates_of, checked_nodes
from rebinding.api.prompts import Prompts
from rebinding.experiments.ablation import evaluate as evaluate_circuits
from rebinding.experiments.ablation import mean_z
from rebinding.experiments.metrics import Metric, logit_difference, scores_on
from rebinding.experiments.random_draws import RESAMPLED, Match, draw_circuits
from rebinding.experiments.search.graph import Graph
from rebinding.experiments.tokens import MEASURES, METRIC, Answers, full_model, metric_column
from rebinding.paper.circuit import MLP, Circuit, CircuitHead
from rebinding.surgery.sites import Head, SurgeryError, check_word
from rebinding.task.prompts import PromptError, TokenizedPrompt
from rebinding.verdicts.estimates import Array

DRAWS = 20
"""Random circuits that an evaluation compares with."""
EVERYWHERE = "every token"
"""The role of heads that are in a circuit at all tokens."""
SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the heads: the sizes of circuits that MIB takes."""
RESAMPLES = 1000
"""Bootstrap samples of the prompts, for the interval of a curve."""
Ranking: TypeAlias = Literal["signed", "absolute"]
"""Which heads come first: those with the largest change in the direction of that without all heads, or the largest of
either sign."""
AblationValue: TypeAlias = Literal["mean", "zero", "resample"]
"""What an ablated head gets: its mean over prompts, token by token; zeros; its values in one other prompt."""
FULL = "full model"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well a circuit does alone.

    `model` is the mean of the metric in the unedited model, `circuit` that of the circuit with all other heads ablated,
    `random` those of random circuits with as many heads at each position of each layer. The metric is accuracy by
    default: how often the right answer has the largest logit among its candidates. `rows` has the logit, the margin
    over the best other candidate, hit, and probability of the answer, and the metric that was given, circuit by circuit
    and prompt by prompt.
    """

    model: float
    circuit: float
    random: tuple[float, ...]
    rows: pd.DataFrame = field(repr=False)


def evaluate(
    model: Model,
    circuit: Circuit | Graph | Sequence[Head],
    prompts: Prompts,
    *,
    means: Prompts | None = None,
    ablation: AblationValue = "mean",
    metric: Metric | None = None,
    draws: int = DRAWS,
    match: Match = "role_and_layer",
) -> Evaluation:
    """Evaluate a circuit alone: every other head, at every token, gets its mean over the prompts `means`.

    A list of heads is a circuit of these heads at all tokens. If it has MLPs, `(layer, rebinding.MLP)`, all other MLPs
    are ablated as well. With `ablation="zero"` the other heads get zeros; with
    `"resample"`, in each prompt, their values in another of the prompts `means`, drawn at random. All are token by
    token, so both sets of prompts have one length. By default `means` are `prompts` themselves; take prompts whose
    answers are balanced over positions, or the means carry a part of the answer. `metric` is a function such as
    `rebinding.kl_divergence`. The `draws` random circuits have as many other heads at each position of each layer; with
    `match="role"` at each position, which layers with few other heads need.
    """
    check_word("match", match, get_args(Match))
    circuit, is_everywhere = checked_circuit(circuit, model)
    for role in dict.fromkeys(head.role for head in circuit.heads if not is_everywhere):
        prompts.at(role)  # raises where a prompt lacks it
    sets = {"circuit": circuit}
    if draws:
        heads, n_layers = model.anatomy.heads, model.anatomy.n_layers
        random_circuits = draw_circuits(circuit, heads, draws=draws, match=match, exclude=True, n_layers=n_layers)
        sets |= {f"random {number}": other for number, other in enumerate(random_circuits)}
    if is_everywhere:
        sets = {name: at_all_tokens(heads, prompts.length) for name, heads in sets.items()}
    tokenized = [with_token_roles(prompt) if is_everywhere else prompt for prompt in prompts.tokenized]
    metrics = [] if metric is None else [metric]
    ablated = Ablation.of(model, prompts, tokenized, means, ablation, metrics, mlps=bool(circuit.mlps))
    rows = pd.concat([ablated.full(), ablated.alone(sets)], ignore_index=True)
    of_circuit = rows.groupby("circuit", sort=False)["hit" if metric is None else METRIC].mean()
    random = tuple(float(of_circuit[name]) for name in sets if name != "circuit")
    return Evaluation(float(of_circuit[FULL]), float(of_circuit["circuit"]), random, rows)


def checked_circuit(circuit: Circuit | Graph | Sequence[Head], model: Model) -> tuple[Circuit, bool]:
    """A circuit of this model, and whether it was a list of heads, which are in the circuit at all tokens."""
    circuit = circuit.circuit() if isinstance(circuit, Graph) else circuit
    if not isinstance(circuit, Circuit):
        return circuit_of(circuit, model), True
    return circuit.check(model.anatomy.n_layers, model.anatomy.n_heads), False


def circuit_of(heads: Sequence[Head], model: Model) -> Circuit:
    """A list of heads as a circuit of these heads at all tokens."""
    if not heads or len({*map(tuple, heads)}) < len(heads):
        raise SurgeryError(f"a circuit is a list of heads (layer, head), each once, and at least one; got {heads}")
    return Circuit(tuple(CircuitHead("", *head, EVERYWHERE) for head in checked_nodes(heads, model)))


@dataclass(frozen=True, eq=False)
class Ablation:
    """Prompts on which circuits are measured alone, and what all other heads get."""

    model: Model
    tokenized: Sequence[TokenizedPrompt]
    answers: Answers
    values: Sequence[Tensor]
    values_of_mlps: Sequence[Tensor] | None
    columns: tuple[str, ...]

    @classmethod
    def of(
        cls,
        model: Model,
        prompts: Prompts,
        tokenized: Sequence[TokenizedPrompt],
        means: Prompts | None,
        ablation: AblationValue,
        metrics: Sequence[Metric],
        *,
        mlps: bool = False,
    ) -> Ablation:
        """The ablation of some prompts; `tokenized` are the same with the roles at which circuits have heads."""
        values = _ablated_values(model, prompts, means, ablation)
        of_mlps = _ablated_values(model, prompts, means, ablation, "mlp_out") if mlps else None
        right = torch.zeros(len(prompts), dtype=torch.long)
        scores = scores_on(model.surgeon, metrics, prompts.tokens, prompts.answers)
        answers = Answers(candidates_of(prompts, bool(metrics), 2)[:, :, None], right, scores=scores)
        has_answers = prompts.answers is not None and prompts.answers.shape[1] > 1
        measures = (*(MEASURES if has_answers else ()), *map(metric_column, range(len(metrics))))
        return cls(model, tokenized, answers, values, of_mlps, ("circuit", "prompt", *measures))

    def full(self) -> pd.DataFrame:
        """The unedited model, a row for each prompt."""
        ids = range(len(self.tokenized))
        return full_model(self.model.surgeon, self.tokenized, self.answers, ids).rows[list(self.columns)]

    def alone(self, circuits: Mapping[str, Circuit]) -> pd.DataFrame:
        """Circuits with all other heads ablated, a row for each and each prompt."""
        ids = range(len(self.tokenized))
        evidence = evaluate_circuits(
            self.model.surgeon, self.tokenized, self.answers, ids, circuits, self.values, mean_set="own",
            mlps=self.values_of_mlps,
        )  # fmt: skip
        return evidence.rows[list(self.columns)]


def _ablated_values(
    model: Model,
    prompts: Prompts,
    means: Prompts | None,
    ablation: AblationValue,
    site: Literal["z", "mlp_out"] = "z",
) -> list[Tensor]:
    """What ablated heads get, by layer: (head, token, head_dim), or (prompt, head, token, head_dim); and MLPs, without
    the axis of heads."""
    check_word("ablation", ablation, get_args(AblationValue))
    if ablation == "zero":
        if means is not None:
            raise PromptError("ablation='zero' takes nothing from other prompts; leave means out")
        if site == "mlp_out":
            return [torch.zeros(prompts.length, model.anatomy.width(site))] * model.anatomy.n_layers
        shapes = [(part.n_heads, prompts.length, part.head_dim) for part in model.anatomy.parts]
        return [torch.zeros(shape if shape[0] else 0) for shape in shapes]
    averaged = prompts if means is None else means
    if averaged.length != prompts.length:
        raise PromptError(f"means are token by token: over prompts of {averaged.length} tokens, for {prompts.length}")
    if len(averaged.tokens.unique(dim=0)) < 2:
        raise PromptError(
            "the means would be the values of one prompt, not an ablation; give means over several prompts"
        )
    if ablation == "mean":
        return mean_z(model.surgeon, list(averaged.tokenized), site=site)
    source = torch.tensor(_other_prompts(prompts.tokens, averaged.tokens))
    recorded = model.surgeon.record(averaged.tokens, keep={site}).sites[site]
    return [values[source.to(values.device)] if values.numel() else values for values in recorded]


def _other_prompts(tokens: Tensor, others: Tensor) -> list[int]:
    """For each prompt (prompt, token) the number of another one, drawn at random from those with other tokens."""
    generator = np.random.default_rng(RESAMPLED)
    different = (tokens[:, None] != others[None]).any(dim=2)  # (prompt, other)
    return [int(generator.choice(np.flatnonzero(line))) for line in different.numpy()]


def at_all_tokens(circuit: Circuit, length: int) -> Circuit:
    """The heads of a circuit at each token of prompts of one length, by the names of `with_token_roles`."""
    tokens = range(length)
    return Circuit(
        tuple(CircuitHead(head.group, head.layer, head.head, f"token {at}") for head in circuit.heads for at in tokens)
    )


def with_token_roles(prompt: TokenizedPrompt, others: Mapping[str, int] = MappingProxyType({})) -> TokenizedPrompt:
    """A prompt whose tokens have their numbers as names too, and the names `others`."""
    numbers = {f"token {at}": at for at in range(len(prompt))}
    return TokenizedPrompt(prompt.text, prompt.ids, {**prompt.roles, **numbers, **others}, prompt.tokenizer)


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """How much of the model's performance circuits of growing size recover, as in MIB (Mueller et al., 2025).

    The faithfulness of a circuit is the share that it keeps of what the ablation of all heads loses: 0 with no heads, 1
    for the model. `cpr`, the circuit performance ratio, is the area under its curve over the share of heads; larger is
    better. `cmd`, the circuit-model distance, is the area between the curve and 1; smaller is better. `random_cpr` and
    `random_cmd` are the means of those of random circuits, which have as many heads in each layer. `table` has a line
    for each size: the `share` and number of `heads`, `faithfulness` with a 95 % interval over prompts (`low`, `high`),
    and the smallest, mean and largest faithfulness of the random circuits. `rows` has the metric by circuit and prompt.
    """

    cpr: float
    cmd: float
    random_cpr: float
    random_cmd: float
    table: pd.DataFrame = field(repr=False)
    rows: pd.DataFrame = field(repr=False)


def faithfulness(
    model: Model,
    scores: pd.DataFrame,
    prompts: Prompts,
    *,
    ranking: Ranking = "signed",
    sizes: Sequence[float] = SIZES,
    means: Prompts | None = None,
    ablation: AblationValue = "mean",
    metric: Metric = logit_difference,
    draws: int = 5,
) -> Faithfulness:
    """The faithfulness of circuits of the best heads, by their scores, at all tokens, and of random circuits.

    `scores` is a table of every head as `patch_paths` returns it for the metric: `score` is the change without a head.
    It may have every MLP too; then circuits have both, and `sizes` are shares of both.
    `ranking="signed"` begins with the largest changes in the direction of that without all heads, so that heads which
    work against the answer come last and a curve may exceed 1; `"absolute"` begins with large changes of either sign.
    `sizes` are shares of the heads. `means`, `ablation` and `metric` are as in `evaluate`.
    """
    check_word("ranking", ranking, get_args(Ranking))
    _check_scores(scores, model)
    has_mlps = MLP in scores["head"].to_list()
    total = len(scores)
    counts = sorted({round(size * total) for size in sizes} - {0, total})
    if not counts or counts[0] < 0 or counts[-1] > total or draws < 1:
        raise SurgeryError(
            f"sizes are shares of the {total} heads (and MLPs) in scores, some of them between none and all, and draws"
            f" at least 1; got sizes={tuple(sizes)}, draws={draws}"
        )
    tokenized = [with_token_roles(prompt) for prompt in prompts.tokenized]
    ablated = Ablation.of(model, prompts, tokenized, means, ablation, [metric], mlps=has_mlps)
    parts = [ablated.full(), ablated.alone({"0 heads": Circuit(())})]
    without_all = lost_without_all(*(part[METRIC].to_numpy() for part in parts))
    heads = _ranked(scores, ranking, -without_all.mean())
    for count in counts:
        circuit = circuit_of(heads[:count], model)
        heads_of_model, n_layers = model.anatomy.heads, model.anatomy.n_layers
        others = draw_circuits(circuit, heads_of_model, draws=draws, match="role_and_layer", n_layers=n_layers)
        sets = {f"{count} heads": circuit, **{f"{count} heads, random {n}": other for n, other in enumerate(others)}}
        parts.append(ablated.alone({name: at_all_tokens(own, prompts.length) for name, own in sets.items()}))
    rows = pd.concat(parts, ignore_index=True)
    return _curve(rows, counts, total, draws)


def _check_scores(scores: pd.DataFrame, model: Model) -> None:
    """Refuse a table that has not every head once, or has MLPs and not every one once."""
    lacking = [name for name in ("layer", "head", "score") if name not in scores]
    own = [] if lacking else list(zip(scores["layer"], scores["head"], strict=True))
    if sorted(own) not in (sorted(model.heads), sorted([*model.heads, *model.mlps])):
        what = f"no column {lacking[0]!r}" if lacking else f"{len(own)} rows of {len(set(own))} heads and MLPs"
        raise SurgeryError(
            f"scores is a table with the layer, head and score of each of the {len(model.heads)} heads once, and of"
            f" each MLP or of none, as patch_paths returns it without receivers; this one has {what}"
        )


def _ranked(scores: pd.DataFrame, ranking: Ranking, without_all: float) -> list[Head]:
    """All heads, the most important first, heads of equal scores in their order; `without_all` is the change of the
    metric without any head."""
    values = scores["score"].to_numpy(dtype=float)
    importance = np.abs(values) if ranking == "absolute" else values * np.sign(without_all)
    order = np.lexsort([scores["head"], scores["layer"], -importance])  # the last is the first key
    return [(int(scores["layer"].iloc[place]), int(scores["head"].iloc[place])) for place in order]


def lost_without_all(full: Array, none: Array) -> Array:
    """The loss of the metric without all heads, by prompt; refused where it cannot be told from none."""
    lost = full - none
    if len(lost) > 1 and abs(lost.mean()) <= 2 * lost.std(ddof=1) / np.sqrt(len(lost)):
        raise SurgeryError(
            f"the ablation of all heads lowers the metric by {lost.mean():.3g}, within twice its standard error over"
            f" {len(lost)} prompts: a share of that means nothing. Take another metric or ablation, or more prompts"
        )
    return lost


def _curve(rows: pd.DataFrame, counts: Sequence[int], total: int, draws: int) -> Faithfulness:
    """Faithfulness and its areas, from the metric of each circuit."""
    by_circuit = rows.pivot(index="circuit", columns="prompt", values=METRIC)  # (circuit, prompt)
    none, full = (by_circuit.loc[name].to_numpy() for name in ("0 heads", FULL))  # (prompt,)
    lost = lost_without_all(full, none)
    share = np.array([0, *counts, total]) / total  # (size,)
    names = ["0 heads", *(f"{count} heads" for count in counts), FULL]
    values = by_circuit.loc[names].to_numpy()  # (size, prompt)
    samples = np.random.default_rng(RESAMPLED).integers(len(lost), size=(RESAMPLES, len(lost)))  # (draw, prompt)
    resampled = shares_kept(values - none, lost, samples)  # (size, draw)
    of_random = [[f"{count} heads, random {number}" for count in counts] for number in range(draws)]
    ends = np.zeros((draws, 1)), np.ones((draws, 1))
    shares = (by_circuit.mean(axis=1) - none.mean()) / lost.mean()  # (circuit,)
    random = np.concatenate([ends[0], [shares.loc[own_names].to_numpy() for own_names in of_random], ends[1]], axis=1)
    own = shares.loc[names].to_numpy()  # (size,)
    low, high = np.nanquantile(resampled, [0.025, 0.975], axis=1) if len(lost) > 1 else np.full((2, len(own)), np.nan)
    columns = {"share": share, "heads": [0, *counts, total], "faithfulness": own, "low": low, "high": high}
    columns |= {"random_low": random.min(0), "random_mean": random.mean(0), "random_high": random.max(0)}
    areas = [_areas(share, values) for values in random]
    random_cpr, random_cmd = np.mean(areas, axis=0).tolist()
    return Faithfulness(*_areas(share, own), random_cpr, random_cmd, pd.DataFrame(columns), rows)


def shares_kept(kept: Array, lost: Array, samples: npt.NDArray[np.integer]) -> Array:
    """The share kept (..., prompt) of what is lost (prompt,) in samples of the prompts (draw, prompt): (..., draw). NaN
    where a sample loses nothing."""
    whole = lost[samples].mean(1)
    shares: Array = kept[..., samples].mean(-1) / np.where(whole == 0, np.nan, whole)
    return shares


def _areas(share: Array, values: Array) -> tuple[float, float]:
    """CPR and CMD by the trapezoidal rule: the area under a curve, and that of its distance to 1."""
    return float(np.trapezoid(values, share)), float(np.trapezoid(np.abs(1 - values), share))
