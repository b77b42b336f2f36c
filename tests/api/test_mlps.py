"""MLPs as senders and receivers against plain hooks on the library's own model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import jsonschema
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import rebinding
from rebinding import MLP, Circuit, CircuitError, Graph, Model, Pairs, SurgeryError
from rebinding.api.discovery import search_pairs
from rebinding.api.evaluation import Ablation, AblationValue, with_token_roles
from rebinding.api.hypotheses import _complement
from rebinding.experiments.ablation import evaluate as evaluate_circuits
from rebinding.experiments.ablation import mean_z
from rebinding.experiments.random_draws import draw_circuits
from rebinding.experiments.search.graph import Edge, Node
from rebinding.experiments.search.graph import load as load_graph
from rebinding.experiments.search.pairs import record_pairs
from rebinding.experiments.search.request import SearchSettings
from rebinding.experiments.search.search import direct_effect, effect_via_receivers
from rebinding.experiments.tokens import Answers
from rebinding.models.loaded_model import owner_of
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from tests.api.small import LAYERS, LENGTH, logits_of, model_of, prompts_of
from tests.families.models import Family
from tests.report.schemas import FOLDER

TOLERANCE = 1e-5
"""Logits of a few units in float64 that pass through float32: some tens of units of 1.2e-7."""
LAST = LENGTH - 1
Change = Callable[[Tensor], Tensor]


def _input(change: Change, module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (change(args[0]),)


def _output(change: Change, module: object, args: object, output: Tensor) -> Tensor:
    return change(output)


@contextmanager
def hooked(model: PreTrainedModel, inputs: dict[str, Change], outputs: dict[str, Change]) -> Iterator[None]:
    """Change the input of some modules and the output of others."""
    with ExitStack() as stack, torch.no_grad():
        for path, change in inputs.items():
            stack.callback(model.get_submodule(path).register_forward_pre_hook(partial(_input, change)).remove)
        for path, change in outputs.items():
            stack.callback(model.get_submodule(path).register_forward_hook(partial(_output, change)).remove)
        yield


def place(path: str, layer: int) -> str:
    return f"model.layers.{layer}.{path}"


class Seen(NamedTuple):
    """What heads (layer: (prompt, token, head x head_dim)) and MLPs (layer: (prompt, token, hidden)) put out."""

    z: dict[int, Tensor]
    mlp: dict[int, Tensor]


def outputs_of(model: PreTrainedModel, ids: Tensor) -> Seen:
    seen = Seen({}, {})

    def keep(kept: dict[int, Tensor], layer: int, value: Tensor) -> Tensor:
        kept[layer] = value.clone()
        return value

    heads = {place("self_attn.o_proj", layer): partial(keep, seen.z, layer) for layer in range(LAYERS)}
    with hooked(model, heads, {place("mlp", layer): partial(keep, seen.mlp, layer) for layer in range(LAYERS)}):
        model(input_ids=ids)
    return seen


class Path(NamedTuple):
    sender: tuple[int, int]
    receiver: tuple[int, int] | None = None
    component: str | None = None
    freeze_mlps: bool = False


def follow(model: PreTrainedModel, pairs: Pairs, path: Path) -> Tensor:
    """The logits after path patching at the last token, by two forward passes with hooks."""
    clean, noise = (outputs_of(model, side.tokens) for side in (pairs.clean, pairs.noise))
    width = model.config.head_dim
    received: list[Tensor] = []

    def head_run(layer: int, value: Tensor) -> Tensor:
        held = clean.z[layer].clone()
        if (layer, path.sender[1]) == path.sender:
            own = slice(path.sender[1] * width, (path.sender[1] + 1) * width)
            held[:, LAST, own] = noise.z[layer][:, LAST, own]
        return held

    def mlp_run(layer: int, value: Tensor) -> Tensor:
        if (layer, MLP) == path.receiver:
            received.append(value[:, LAST].clone())
        value = (clean.mlp[layer] if path.freeze_mlps else value).clone()
        if (layer, MLP) == path.sender:
            value[:, LAST] = noise.mlp[layer][:, LAST]
        return value

    def keep(value: Tensor) -> Tensor:
        received.append(value[:, LAST].clone())
        return value

    heads = {place("self_attn.o_proj", layer): partial(head_run, layer) for layer in range(LAYERS)}
    mlps = {place("mlp", layer): partial(mlp_run, layer) for layer in range(LAYERS)}
    site = None
    if path.receiver is not None and path.component != "mlp":
        site = place(f"self_attn.{path.component}_proj", path.receiver[0])
    with hooked(model, heads, mlps | ({site: keep} if site else {})):
        after_sender = logits_of(model, pairs.clean.tokens)
    if path.receiver is None:
        return after_sender
    (value,), (layer, head) = received, path.receiver

    def write(output: Tensor) -> Tensor:
        output = output.clone()
        own = slice(None) if site is None else slice(head * width, (head + 1) * width)
        output[:, LAST, own] = value[:, own]
        return output

    with hooked(model, {}, {site or place("mlp", layer): write}):
        return logits_of(model, pairs.clean.tokens)


CASES = (
    Path((1, MLP)),
    Path((1, MLP), freeze_mlps=True),
    Path((1, 2), freeze_mlps=True),
    Path((1, MLP), (3, 1), "q"),
    Path((1, MLP), (3, 1), "q", True),
    Path((1, 2), (3, 1), "q", True),
    Path((1, 2), (2, MLP), "mlp"),
    Path((1, 2), (3, MLP), "mlp", True),
    Path((2, 2), (2, MLP), "mlp"),
    Path((2, 2), (2, MLP), "mlp", True),
    Path((0, MLP), (2, MLP), "mlp"),
    Path((0, MLP), (2, MLP), "mlp", True),
)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_path_of_an_mlp_equals_hooks(family: Family) -> None:
    """From and to MLPs, through other MLPs and past them; gemma3 has norms after both branches."""
    model = model_of(family)
    raw, pairs = model.loaded.model, Pairs(prompts_of(model, family), prompts_of(model, family, first=2))
    before = logits_of(raw, pairs.clean.tokens)
    answers = pairs.clean.candidates()

    def lead(logits: Tensor) -> Tensor:
        of_answers = logits.gather(1, answers)
        return of_answers[:, 0] - of_answers[:, 1:].mean(1)

    expected = [float((lead(follow(raw, pairs, path)) - lead(before)).mean()) for path in CASES]
    scores = []
    for path in CASES:
        receiver = {} if path.receiver is None else {"receivers": [path.receiver], "receivers_at": "readout"}
        table = rebinding.patch_paths(
            model, pairs, senders=[path.sender], component=path.component, freeze_mlps=path.freeze_mlps, **receiver
        )
        assert [*zip(table["layer"], table["head"], strict=True)] == [path.sender]
        scores.append(float(table["score"].iloc[0]))
    assert scores == pytest.approx(expected, abs=TOLERANCE)
    assert min(map(abs, expected)) > 10 * TOLERANCE
    # from a head to the MLP of its layer nothing is between; else freezing, sender and receiver all matter
    assert len({round(score, 5) for score in expected}) == len(CASES) - 1


def test_mlps_that_cannot_send_or_receive_are_refused() -> None:
    model = model_of()
    pairs = Pairs(prompts_of(model), prompts_of(model, first=2))
    to_mlp = partial(rebinding.patch_paths, model, pairs, receivers=[(2, MLP)], receivers_at="readout")
    with pytest.raises(SurgeryError, match=r"no MLP in layer 4: the model has layers 0 to 3"):
        rebinding.patch_paths(model, pairs, senders=[(4, MLP)])
    with pytest.raises(SurgeryError, match=r"MLPs receive with component='mlp', and heads with 'q'"):
        to_mlp(component="v")
    with pytest.raises(SurgeryError, match=r"no sender is below the last receiver \(layer 2\)"):
        to_mlp(component="mlp", senders=[(2, MLP), (3, 0)])
    with pytest.raises(SurgeryError, match="leave freeze=True"):
        rebinding.patch_paths(model, pairs, freeze=False, freeze_mlps=True)


def alone(model: PreTrainedModel, ids: Tensor, kept: dict[tuple[int, int], list[int]], values: Seen) -> Tensor:
    """The logits with every head and MLP at given values but at some tokens (every token of `kept[node]`), by hooks."""
    width = model.config.head_dim

    def ablate_heads(layer: int, z: Tensor) -> Tensor:
        ablated = values.z[layer].expand_as(z).clone()
        for (at, head), tokens in kept.items():
            if at == layer and head != MLP:
                own = slice(head * width, (head + 1) * width)
                ablated[:, tokens, own] = z[:, tokens, own]
        return ablated

    def ablate_mlp(layer: int, output: Tensor) -> Tensor:
        ablated, tokens = values.mlp[layer].expand_as(output).clone(), kept.get((layer, MLP), [])
        ablated[:, tokens] = output[:, tokens]
        return ablated

    heads = {place("self_attn.o_proj", layer): partial(ablate_heads, layer) for layer in range(LAYERS)}
    with hooked(model, heads, {place("mlp", layer): partial(ablate_mlp, layer) for layer in range(LAYERS)}):
        return logits_of(model, ids)


def ablated_to(model: Model, ids: Tensor, ablation: AblationValue) -> Seen:
    """The values of an ablation of two prompts; resampled, each gets those of the other one."""
    seen = outputs_of(model.loaded.model, ids)
    change: dict[AblationValue, Change] = {
        "mean": lambda value: value.mean(0),
        "zero": lambda value: torch.zeros_like(value[0]),
        "resample": lambda value: value.flip(0),
    }
    return Seen(*({layer: change[ablation](value) for layer, value in part.items()} for part in seen))


CIRCUIT = {"early": [(1, 2), (0, MLP)], "readout": [(3, 1), (2, MLP), (0, MLP)]}


@pytest.mark.parametrize(("family", "ablation"), [("llama", "mean"), ("llama", "resample"), ("gemma3", "zero")])
def test_a_circuit_with_mlps_alone_equals_hooks(family: Family, ablation: AblationValue) -> None:
    """At its roles, at all tokens, and its complement; curves over heads and MLPs begin without both."""
    model = model_of(family)
    prompts = prompts_of(model, family)
    raw, ids, answers = model.loaded.model, prompts.tokens, prompts.candidates()
    values = ablated_to(model, ids, ablation)
    early, every = 3, list(range(LENGTH))

    def lead(kept: dict[tuple[int, int], list[int]]) -> Tensor:
        of_answers = alone(raw, ids, kept, values).gather(1, answers)
        return of_answers[:, 0] - of_answers[:, 1:].mean(1)

    at_roles = {(1, 2): [early], (0, MLP): [early, LAST], (3, 1): [LAST], (2, MLP): [LAST]}
    nodes = [(1, 2), (2, MLP), (0, 1)]
    metric = rebinding.logit_difference
    expected = [lead(at_roles), lead(dict.fromkeys(nodes, every)), lead({})]
    for circuit, values_alone in ((Circuit.of(CIRCUIT), expected[0]), (nodes, expected[1])):
        result = rebinding.evaluate(model, circuit, prompts, ablation=ablation, metric=metric, draws=2, match="role")
        own = result.rows.loc[result.rows["circuit"] == "circuit", "metric"].to_numpy()
        assert own == pytest.approx(values_alone.numpy(), abs=TOLERANCE)
        assert len(set(result.random)) == 2
    assert len({tuple(value.round(decimals=3).tolist()) for value in expected}) == 3
    complement = {
        node: [at for at in every if at not in at_roles.get(node, [])] for node in [*model.heads, *model.mlps]
    }
    tables = partial(_complement, Circuit.of(CIRCUIT), model, {"early": [early] * 2, "readout": [LAST] * 2}, LENGTH)
    heads, tokens = tables()
    named = [
        with_token_roles(prompt, {name: at[number] for name, at in tokens.items()})
        for number, prompt in enumerate(prompts.tokenized)
    ]
    ablated = Ablation.of(model, prompts, named, None, ablation, [metric], mlps=True)
    rest = ablated.alone({"complement": heads})["metric"].to_numpy()
    assert rest == pytest.approx(lead(complement).numpy(), abs=TOLERANCE)


def test_curves_over_heads_and_mlps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first circuit is the best node, whatever it is; random circuits of it are MLPs, since it is one. Scores of
    some MLPs are refused."""
    model, circuits_of_draws = model_of(), list[Circuit]()
    prompts = prompts_of(model)
    scores = pd.DataFrame([*model.heads, *model.mlps], columns=["layer", "head"]).assign(score=0.1)
    scores.loc[(scores["layer"] == 2) & (scores["head"] == MLP), "score"] = -9.0
    scores.loc[(scores["layer"] == 1) & (scores["head"] == 0), "score"] = -8.0

    def keep(*args: Any, **options: Any) -> list[Circuit]:
        random = draw_circuits(*args, **options)
        circuits_of_draws.extend([args[0], *random])
        return random

    monkeypatch.setattr("rebinding.api.evaluation.draw_circuits", keep)
    ranked = rebinding.faithfulness(
        model, scores, prompts, ranking="absolute", sizes=[1 / 28, 2 / 28], metric=rebinding.kl_divergence, draws=3
    )
    assert [head[1:3] for head in circuits_of_draws[0].heads] == [(2, MLP)]
    assert all([head.head for head in circuit.heads] == [MLP] for circuit in circuits_of_draws[1:4])
    assert len({circuit.heads for circuit in circuits_of_draws[1:4]}) > 1
    assert {head[1:3] for head in circuits_of_draws[4].heads} == {(2, MLP), (1, 0)}
    assert ranked.table["heads"].tolist() == [0, 1, 2, 28]
    none = ranked.rows.loc[ranked.rows["circuit"] == "0 heads", "metric"].to_numpy()
    values = ablated_to(model, prompts.tokens, "mean")
    own = alone(model.loaded.model, prompts.tokens, {}, values).log_softmax(1)
    clean = logits_of(model.loaded.model, prompts.tokens).log_softmax(1)
    assert none == pytest.approx((clean.exp() * (clean - own)).sum(1).numpy(), abs=TOLERANCE)
    with pytest.raises(SurgeryError, match=r"each of the 24 heads once, and of each MLP or of none.*27 rows of 27"):
        rebinding.faithfulness(model, scores.iloc[:-1], prompts)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_ablating_in_one_batch_equals_edits(family: Family) -> None:
    """The two implementations on circuits with and without MLPs, which start at different layers."""
    model = model_of(family)
    prompts = prompts_of(model, family)
    circuits = {"both": Circuit.of(CIRCUIT), "mlp": Circuit.of({"readout": [(2, MLP)]}), "none": Circuit(())}
    means, mlps = (mean_z(model.surgeon, prompts.tokenized, site=site) for site in ("z", "mlp_out"))
    answers = Answers(prompts.candidates()[:, :, None], torch.zeros(2, dtype=torch.long))
    run = partial(
        evaluate_circuits, model.surgeon, prompts.tokenized, answers, range(2), circuits, means, mean_set="own"
    )
    batched, by_edits, heads_only = (
        run(method=method, mlps=own).rows for method, own in (("batched", mlps), ("edits", mlps), ("edits", None))
    )
    measured = ["label_logit", "margin", "probability"]
    assert np.allclose(batched[measured], by_edits[measured], rtol=0, atol=TOLERANCE)
    assert not np.allclose(batched[measured], heads_only[measured], rtol=0, atol=0.01)
    assert batched["label_logit"].round(3).nunique() == 6


def test_a_searched_edge_of_mlps_equals_hooks() -> None:
    """Every sender at the readout, to a head's query there and to an MLP there; through no other MLP."""
    model = model_of()
    pairs = Pairs(prompts_of(model), prompts_of(model, first=2))
    recorded = record_pairs(model.surgeon, search_pairs(pairs), mlps=True)
    raw, answers = model.loaded.model, pairs.clean.candidates()
    settings = SearchSettings(screen="none", min_attention=0.0, mlps=True)

    def lead(path: Path) -> list[float]:
        of_answers = follow(raw, pairs, path).gather(1, answers)
        return (of_answers[:, 0] - of_answers[:, 1:].mean(1)).tolist()

    tables = [direct_effect(recorded)]
    tables += [effect_via_receivers(recorded, [Node(*node, "readout")], settings) for node in ((3, 1), (2, MLP))]
    effective = 0
    for table, receiver, part in zip(tables, (None, (3, 1), (2, MLP)), ("direct", "q", "mlp"), strict=True):
        rows = table[(table["component"] == part) & (table["token"] == LAST)].set_index(["layer", "head"])
        senders = [(0, MLP), (1, 2), (2, 4)]
        assert ((2, MLP) in rows.index) == (receiver != (2, MLP))
        for sender in senders:
            after = rows.loc[[sender]].sort_values("prompt")
            expected = lead(Path(sender, receiver, part, True))
            assert after["after"].to_numpy() == pytest.approx(expected, abs=TOLERANCE)
            effective += int((after["after"] - after["before"]).abs().max() > 10 * TOLERANCE)
    assert effective == 9


def test_files_and_texts_name_mlps(tmp_path: FilePath) -> None:
    """A circuit and a graph with MLPs survive their files, where an MLP is `mlp`; the judge of claims refuses one."""
    model = rebinding.load("planted:pointer")
    graph = Graph(
        (Node(2, MLP, "readout"), Node(1, 3, "readout")),
        (Edge(Node(2, MLP, "readout"), None, "direct", 1.0, 0.5, 1.5),),
    )
    assert graph.lines()[0] == "the logits                   2.mlp at readout direct +1.00"
    circuit = graph.circuit()
    assert "A  at readout            2.mlp" in circuit.lines()
    for item, name in ((circuit, "circuit"), (graph, "graph")):
        path = tmp_path / f"{name}.json"
        model.save(item, path)
        content = json.loads(path.read_text())
        jsonschema.validate(content, json.loads((FOLDER / f"{name}.json").read_text()))
        assert "-1" not in json.dumps(content)
    assert model.load_circuit(tmp_path / "circuit.json") == circuit
    assert load_graph(tmp_path / "graph.json", owner_of(model.loaded)).nodes == graph.nodes
    text = (tmp_path / "circuit.json").read_text().replace('"mlp"', "-1")
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(CircuitError, match="there is no head -1"):
        model.load_circuit(tmp_path / "wrong.json")
    spec = parse_model("planted:pointer")
    judged = ModelUnderTest(spec, Settings((spec,), circuit=str(tmp_path / "circuit.json")))
    with pytest.raises(CircuitError, match=r"has MLPs, and the paper's claims are about heads"):
        judged.load_circuit()
