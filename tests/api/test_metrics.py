"""Metrics, ablations and curves against plain hooks on the library's own model, and against formulas by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import rebinding
from rebinding import CleanRun, Model, Pairs, Prompts, SurgeryError
from rebinding.api.evaluation import AblationValue, Ranking, _curve
from rebinding.api.plots import plot_faithfulness
from rebinding.task.prompts import PromptError
from tests.api.small import changed_z, logits_of, model_of, prompts_of, z_of

TOLERANCE = 1e-5
"""Logits of a few units in float64 that pass through float32: some tens of units of 1.2e-7."""


def clean_run(logits: Tensor, answers: list[list[int]]) -> CleanRun:
    return CleanRun(torch.tensor(answers), lambda: logits)


def test_metrics_are_their_formulas() -> None:
    """Two words with probabilities 1/4 and 3/4 against 1/2 and 1/2; logits up to a constant."""
    edited = torch.tensor([[0.0, math.log(3)]]) + 5
    clean = clean_run(torch.tensor([[1.0, 1.0]]), [[1, 0]])
    assert rebinding.probability(edited, clean).item() == pytest.approx(0.75)
    assert rebinding.logit_difference(edited, clean).item() == pytest.approx(math.log(3))
    assert rebinding.kl_divergence(edited, clean).item() == pytest.approx(
        0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    )
    three = torch.tensor([[2.0, 5.0, 3.0], [4.0, 4.0, 1.0]])
    of_three = clean_run(three, [[1, 0, 2], [0, 1, 2]])
    assert rebinding.logit_difference(three, of_three).tolist() == [2.5, 1.5]
    assert rebinding.accuracy(three, of_three).tolist() == [1.0, 0.0]
    assert rebinding.logit_difference(three, clean_run(three, [[1], [2]])).tolist() == [5.0, 1.0]


def test_every_metric_of_a_path_equals_hooks() -> None:
    """One sender's z is that of the noise prompt, every other head is held at its clean value."""
    model = model_of()
    clean, noise = prompts_of(model), prompts_of(model, first=2)
    raw, (sender, other) = model.loaded.model, ((1, 2), (3, 0))
    clean_z, noise_z = z_of(raw, clean.tokens), z_of(raw, noise.tokens)

    def hold(z: Tensor, *, layer: int, head: tuple[int, int]) -> Tensor:
        held = clean_z[layer].clone()
        if layer == head[0]:
            held[:, -1, head[1]] = noise_z[layer][:, -1, head[1]]
        return held

    unedited = logits_of(raw, clean.tokens)
    log_clean = unedited.log_softmax(1)
    for head in (sender, other):
        with changed_z(raw, {layer: partial(hold, layer=layer, head=head) for layer in range(4)}):
            edited = logits_of(raw, clean.tokens)
        kl = (log_clean.exp() * (log_clean - edited.log_softmax(1))).sum(1)
        right = clean.candidates()[:, 0, None]
        changed = [p.softmax(1).gather(1, right)[:, 0] for p in (edited, unedited)]
        for metric, expected in ((rebinding.kl_divergence, kl), (rebinding.probability, changed[0] - changed[1])):
            table = rebinding.patch_paths(model, Pairs(clean, noise), senders=[head], metric=metric)
            assert expected.mean().item() != pytest.approx(0, abs=10 * TOLERANCE)
            assert table["score"].item() == pytest.approx(expected.mean().item(), abs=TOLERANCE)


def test_a_traced_metric_equals_hooks() -> None:
    """The clean residual at one layer and token in the noise run, against the clean run; prompts without answers."""
    model = model_of()
    clean, noise = (model.prompts(prompts_of(model, first=first).tokens, positions={"early": 3}) for first in (0, 2))
    raw = model.loaded.model
    (clean_resid,) = model.record(clean).read(rebinding.Read("resid", at=[3], layer=2))
    log_clean = logits_of(raw, clean.tokens).log_softmax(1)

    def patch(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0].clone()
        hidden[:, 3] = clean_resid[:, 0]
        return (hidden, *args[1:])

    handle = raw.get_submodule("model.layers.2").register_forward_pre_hook(patch)
    patched = logits_of(raw, noise.tokens)
    handle.remove()
    rows = rebinding.trace(model, Pairs(clean, noise), layers=[2], at=[3], metric=rebinding.kl_divergence)
    for name, logits in (("metric", patched), ("base_metric", logits_of(raw, noise.tokens))):
        expected = (log_clean.exp() * (log_clean - logits.log_softmax(1))).sum(1)
        assert rows[name].to_numpy() == pytest.approx(expected.numpy(), abs=TOLERANCE)
    assert (rows["metric"] - rows["base_metric"]).abs().max() > 10 * TOLERANCE
    assert "margin" not in rows
    assert "base_hit" not in rows
    with pytest.raises(PromptError, match="no answers"):
        rebinding.trace(model, Pairs(clean, noise), layers=[2], at=[3])


@pytest.fixture(scope="module")
def planted() -> Model:
    return rebinding.load("planted:pointer")


@pytest.fixture(scope="module")
def pairs(planted: Model) -> Pairs:
    return planted.story_pairs(rebinding.design("counterbalanced", planted), 12)


def test_a_search_by_the_lead_as_a_metric_is_the_default_search(planted: Model, pairs: Pairs) -> None:
    own = rebinding.discover(planted, pairs, positions="all", metric=rebinding.logit_difference)
    default = rebinding.discover(planted, pairs, positions="all")
    assert own.nodes == default.nodes
    assert [edge[:3] for edge in own.edges] == [edge[:3] for edge in default.edges]
    assert own.settings["metric"] == "logit_difference"


def test_a_search_by_divergence_finds_the_readout(planted: Model, pairs: Pairs) -> None:
    """A divergence is flat on the clean prompts: the default screen is refused. Without it the heads that write the
    answer are found, 6.0 and 6.3, each with a negative effect, since a divergence grows; on prompts without answers."""
    with pytest.raises(SurgeryError, match=r"no gradient on the clean prompts.*screen='none'"):
        rebinding.discover(planted, pairs, positions="all", metric=rebinding.kl_divergence)
    with pytest.raises(SurgeryError, match="no gradient"):
        rebinding.discover(planted, pairs, positions="all", metric=rebinding.accuracy)
    plain = Pairs(planted.prompts(pairs.clean.tokens), planted.prompts(pairs.noise.tokens))
    graph = rebinding.discover(planted, plain, positions="all", metric=rebinding.kl_divergence, screen="none")
    direct = {edge.sender[:2]: edge.effect for edge in graph.edges if edge.receiver is None}
    assert {(6, 0), (6, 3)} <= direct.keys()
    assert all(effect < 0 for effect in direct.values())
    with pytest.raises(SurgeryError, match=r"metric, share.* belong to the search at all positions"):
        rebinding.discover(planted, pairs, metric=rebinding.probability)  # type: ignore[call-overload]


def alone(model: Model, prompts: Prompts, kept: list[tuple[int, int]], values: list[Tensor]) -> Tensor:
    """The logits with every head but some at given values, ([prompt,] token, head, width) by layer, by plain hooks."""

    def ablate(z: Tensor, *, layer: int) -> Tensor:
        ablated = values[layer].to(z).expand_as(z).clone()
        for at, head in kept:
            if at == layer:
                ablated[:, :, head] = z[:, :, head]
        return ablated

    with changed_z(model.loaded.model, {layer: partial(ablate, layer=layer) for layer in range(4)}):
        return logits_of(model.loaded.model, prompts.tokens)


def lead(logits: Tensor, prompts: Prompts) -> Tensor:
    of_answers = logits.gather(1, prompts.candidates())
    return of_answers[:, 0] - of_answers[:, 1:].mean(1)


def values_of(ablation: str, model: Model, prompts: Prompts) -> list[Tensor]:
    """What ablated heads get. With two prompts the other one is the only one that can be drawn."""
    z = z_of(model.loaded.model, prompts.tokens)
    change: Callable[[Tensor], Tensor] = {
        "mean": lambda own: own.mean(0),
        "zero": lambda own: torch.zeros_like(own[0]),
        "resample": lambda own: own.flip(0),
    }[ablation]
    return [change(own) for own in z]


@pytest.mark.parametrize("ablation", ["mean", "zero", "resample"])
def test_each_ablation_equals_hooks(ablation: AblationValue) -> None:
    model = model_of()
    prompts, kept = prompts_of(model), [(1, 2), (3, 0)]
    evaluation = rebinding.evaluate(model, kept, prompts, ablation=ablation, metric=rebinding.logit_difference, draws=2)
    expected = lead(alone(model, prompts, kept, values_of(ablation, model, prompts)), prompts)
    unedited = lead(logits_of(model.loaded.model, prompts.tokens), prompts)
    assert not torch.allclose(expected, unedited, atol=10 * TOLERANCE)
    own = evaluation.rows[evaluation.rows["circuit"] == "circuit"].sort_values("prompt")
    assert own["metric"].to_numpy() == pytest.approx(expected.numpy(), abs=TOLERANCE)
    assert evaluation.circuit == pytest.approx(expected.mean().item(), abs=TOLERANCE)
    assert evaluation.model == pytest.approx(unedited.mean().item(), abs=TOLERANCE)


def test_a_resampled_prompt_is_another_one() -> None:
    """Of three prompts, two of them equal: each gets the values of one with other tokens."""
    model = model_of()
    tokens = prompts_of(model).tokens[[0, 1, 1]]
    prompts = model.prompts(tokens, answers=[[11, 50], [50, 7], [50, 7]])
    rows = rebinding.evaluate(
        model, [(1, 2)], prompts, ablation="resample", metric=rebinding.kl_divergence, draws=0
    ).rows
    z = z_of(model.loaded.model, tokens)
    expected = alone(model, prompts, [(1, 2)], [own[[1, 0, 0]] for own in z]).log_softmax(1)
    log_clean = logits_of(model.loaded.model, tokens).log_softmax(1)
    kl = (log_clean.exp() * (log_clean - expected)).sum(1)
    assert rows.loc[rows["circuit"] == "circuit", "metric"].to_numpy() == pytest.approx(kl.numpy(), abs=TOLERANCE)


def scores_of(model: Model, best: list[tuple[int, int]], sign: int) -> pd.DataFrame:
    """A table of all heads in which some change the metric most, in this order; all others not at all."""
    rank = {head: sign * float(len(best) - number) for number, head in enumerate(best)}
    rows = [(layer, head, rank.get((layer, head), 0.0)) for layer, head in model.heads]
    return pd.DataFrame(rows, columns=["layer", "head", "score"])


@pytest.mark.parametrize("ranking", ["signed", "absolute"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_curve_equals_hooks_and_the_trapezoidal_rule(ranking: Ranking, sign: int) -> None:
    """Circuits of two and twelve of 24 heads, by a metric that grows without all heads, and by its negative. A head
    whose change is the largest and in the other direction is the last by sign, and the first by size."""
    model = model_of()
    prompts = prompts_of(model)
    values = values_of("zero", model, prompts)
    log_clean = logits_of(model.loaded.model, prompts.tokens).log_softmax(1)

    def metric(logits: Tensor, clean: CleanRun) -> Tensor:
        return sign * rebinding.kl_divergence(logits, clean)

    def divergence(kept: list[tuple[int, int]]) -> float:
        log_edited = alone(model, prompts, kept, values).log_softmax(1)
        return (log_clean.exp() * (log_clean - log_edited)).sum(1).mean().item()

    best = [(1, 2), (3, 0), (0, 5)]
    scores = scores_of(model, best, sign)
    scores.loc[(scores["layer"] == 2) & (scores["head"] == 1), "score"] = -9.0 * sign
    order = [*best, *(head for head in model.heads if head not in (*best, (2, 1))), (2, 1)]
    order = order if ranking == "signed" else [(2, 1), *order[:-1]]
    curve = rebinding.faithfulness(
        model,
        scores,
        prompts,
        ranking=ranking,
        sizes=[2 / 24, 0.5],
        ablation="zero",
        metric=metric,
        draws=3,
    )
    none = divergence([])
    shares = [1 - divergence(order[:count]) / none for count in (2, 12)]
    assert curve.table["heads"].tolist() == [0, 2, 12, 24]
    assert curve.table["faithfulness"].to_numpy() == pytest.approx([0.0, *shares, 1.0], abs=100 * TOLERANCE)
    heights = [0.0, *shares, 1.0]
    widths = (2 / 24, 10 / 24, 12 / 24)
    area = sum(width * (heights[at] + heights[at + 1]) / 2 for at, width in enumerate(widths))
    gaps = [abs(1 - height) for height in heights]
    distance = sum(width * (gaps[at] + gaps[at + 1]) / 2 for at, width in enumerate(widths))
    assert curve.cpr == pytest.approx(area, abs=100 * TOLERANCE)
    assert curve.cmd == pytest.approx(distance, abs=100 * TOLERANCE)
    assert curve.table["random_low"].iloc[1] < curve.table["random_high"].iloc[1]
    assert plot_faithfulness(curve).get_ylabel() == "faithfulness"


def test_areas_of_a_curve_by_hand() -> None:
    """Faithfulness 0, 0.5, 1.5 and 1 with 0, 1, 2 and 4 of 4 heads: areas 1/16 + 4/16 + 10/16, and distances to one
    0.75/4 + 0.5/4 + 0.25/2. The two prompts disagree, so that the interval has a width."""
    metric = {"full model": (3.0, 5.0), "0 heads": (1.0, 3.0), "1 heads": (1.5, 4.5), "2 heads": (4.0, 6.0)}
    metric |= {f"{count} heads, random 0": (1.0, 3.0) for count in (1, 2)}
    rows = pd.DataFrame(
        [(name, prompt, value) for name, of in metric.items() for prompt, value in enumerate(of)],
        columns=["circuit", "prompt", "metric"],
    )
    curve = _curve(rows, [1, 2], 4, 1)
    assert curve.table["faithfulness"].tolist() == [0.0, 0.5, 1.5, 1.0]
    assert curve.cpr == pytest.approx(1 / 16 + 4 / 16 + 10 / 16)
    assert curve.cmd == pytest.approx(0.75 / 4 + 0.5 / 4 + 0.25 / 2)
    assert curve.random_cpr == pytest.approx(1 / 4)  # 0 to two heads of four, then up to 1
    assert curve.random_cmd == pytest.approx(3 / 4)
    assert (curve.table["low"].iloc[1], curve.table["high"].iloc[1]) == (0.25, 0.75)


def test_bad_metrics_and_tables_are_refused() -> None:
    model = model_of()
    clean, noise = prompts_of(model), prompts_of(model, first=2)
    pairs, no_answers = Pairs(clean, noise), model.prompts(clean.tokens)
    for metric, message in (
        (lambda logits, clean: logits, r"returns a number for each row, a tensor of shape \(2,\); got \(2, \d+\)"),
        (lambda logits, clean: logits.mean(), r"a tensor of shape \(2,\); got \(\)"),
        (lambda logits, clean: 1.0, "got float"),
        (lambda logits, clean: torch.full((len(logits),), math.nan), "not finite in 2 of 2 rows"),
        ("kl", "a metric is a function of logits and the clean run"),
    ):
        for run in (
            lambda metric: rebinding.patch_paths(model, pairs, metric=metric),
            lambda metric: rebinding.trace(model, pairs, layers=[1], metric=metric),
            lambda metric: rebinding.evaluate(model, [(1, 2)], clean, metric=metric),
        ):
            with pytest.raises(SurgeryError, match=message):
                run(metric)
    with pytest.raises(SurgeryError, match="probability needs 1 or more answer candidates a prompt"):
        rebinding.patch_paths(model, Pairs(no_answers, noise), metric=rebinding.probability)
    assert len(rebinding.patch_paths(model, Pairs(no_answers, noise), metric=rebinding.kl_divergence)) == 24
    of_divergence = rebinding.evaluate(model, [(1, 2)], no_answers, metric=rebinding.kl_divergence, draws=0)
    assert list(of_divergence.rows) == ["circuit", "prompt", "metric"]
    with pytest.raises(PromptError, match="no answers"):
        rebinding.evaluate(model, [(1, 2)], no_answers)
    with pytest.raises(PromptError, match="one prompt, not an ablation"):
        rebinding.evaluate(model, [(1, 2)], clean, means=noise[:1], ablation="resample")
    with pytest.raises(PromptError, match="leave means out"):
        rebinding.evaluate(model, [(1, 2)], clean, means=noise, ablation="zero")
    with pytest.raises(SurgeryError, match="ablation='mean' or ablation='zero' or ablation='resample'"):
        rebinding.evaluate(model, [(1, 2)], clean, ablation="noise")  # type: ignore[arg-type]
    table = scores_of(model, [(1, 2)], -1)
    for arguments, message in (
        ({"scores": table[:5]}, r"each of the 24 heads once.*has 5 rows of 5 heads"),
        ({"scores": table.drop(columns="score")}, "no column 'score'"),
        ({"scores": table, "sizes": [0.0, 1.0]}, "between none and all"),
        ({"scores": table, "ranking": "best"}, "ranking='signed' or ranking='absolute'"),
    ):
        with pytest.raises(SurgeryError, match=message):
            rebinding.faithfulness(model, prompts=clean, **arguments)

    def sign(logits: Tensor, clean: CleanRun) -> Tensor:
        """1 and -1 for two prompts, whatever is ablated."""
        return torch.tensor([1.0, -1.0]).to(logits)[: len(logits)]

    with pytest.raises(SurgeryError, match="within twice its standard error over 2 prompts"):
        rebinding.faithfulness(model, table, clean, metric=sign)
    assert np.isfinite(rebinding.faithfulness(model, table, clean[:1], ablation="zero", draws=1).cpr)
