"""Path patching, discovery, evaluation and judging by the public names."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import rebinding
from rebinding import Circuit, Edit, Pairs, Read
from rebinding.api.judging import JudgeError
from rebinding.experiments.paths.measure import discover as discover_by_stages
from rebinding.experiments.paths.measure import score_stage, to_noise_pairs
from rebinding.experiments.paths.request import PAPER, write_stratum
from rebinding.experiments.paths.summary import scores
from rebinding.experiments.prompts import Stories
from rebinding.experiments.search.measure import search_on
from rebinding.experiments.search.request import SearchSettings
from rebinding.experiments.workbench import Workbench
from rebinding.paper.circuit import CircuitError
from rebinding.surgery import SurgeryError
from rebinding.task.prompts import PromptError
from tests.api.small import changed_z, logits_of, model_of, prompts_of, z_of

TOLERANCE = 1e-5
"""As in test_recording."""
FLOAT32 = 1e-4
"""Logits of a planted model are below 10: some tens of units of 1.2e-7 of them, after seven layers."""


@pytest.fixture(scope="module")
def planted() -> rebinding.Model:
    return rebinding.load("planted:pointer")


@pytest.fixture(scope="module")
def pairs(planted: rebinding.Model) -> Pairs:
    return planted.story_pairs(rebinding.design("counterbalanced", planted), 36)


def test_paths_to_the_logits_equal_hooks() -> None:
    """Every sender at a named position, all other heads held: the mean change of the lead."""
    model = model_of()
    clean, noise = prompts_of(model), prompts_of(model, first=2)
    raw = model.loaded.model
    clean_z, noise_z = z_of(raw, clean.tokens), z_of(raw, noise.tokens)

    def lead(logits: Tensor) -> Tensor:
        of_answers = logits.gather(1, clean.answers)
        return of_answers[:, 0] - of_answers[:, 1:].mean(1)

    def hold(z: Tensor, *, layer: int, sender: tuple[int, int]) -> Tensor:
        z = clean_z[layer].clone()
        if layer == sender[0]:
            z[:, 12, sender[1]] = noise_z[layer][:, 12, sender[1]]
        return z

    table = rebinding.patch_paths(model, Pairs(clean, noise)).set_index(["layer", "head"])["score"]
    assert len(table) == 24
    before = lead(logits_of(raw, clean.tokens))
    for sender in model.heads:
        with changed_z(raw, {layer: partial(hold, layer=layer, sender=sender) for layer in range(4)}):
            after = lead(logits_of(raw, clean.tokens))
        assert float(table[sender]) == pytest.approx(float((after - before).mean()), abs=TOLERANCE)
    assert table.abs().max() > 1e-2


def test_paths_of_stories_are_those_of_the_stages(planted: rebinding.Model) -> None:
    """The same prompts by the paper's own stage B: the same table."""
    stories = Stories(planted.loaded.encoder())
    prompt_set = stories.draw(rebinding.design("published", planted), range(12), ("noise", "independent"))
    encoded = stories.encode(prompt_set)
    noise_pairs = to_noise_pairs(stories.encoder, encoded)
    assert noise_pairs.strata == tuple(write_stratum(prompt.prompt) for prompt in encoded.prompts)
    by_stage = scores(score_stage(planted.surgeon, noise_pairs, PAPER[1], [(6, 0), (6, 3)]), "logit")
    own = rebinding.patch_paths(
        planted,
        planted.story_pairs(rebinding.design("published", planted), 12),
        receivers=[(6, 3), (6, 0)],
        component="q",
        receivers_at="readout",
    )
    expected = by_stage[by_stage["layer"] < 6].set_index(["layer", "head"])[["score", "se"]]
    actual = own.set_index(["layer", "head"])[["score", "se"]].sort_index()
    assert actual.index.equals(expected.sort_index().index)
    assert np.allclose(actual, expected.sort_index(), rtol=0, atol=FLOAT32)
    assert (own["score"].diff().dropna() >= 0).all()
    assert float(own["score"].iloc[0]) < -1


def test_a_tracing_map_equals_single_patches() -> None:
    """Each cell is an edit of the residual stream of the noise prompt."""
    model = model_of()
    clean, noise = prompts_of(model), prompts_of(model, first=2)
    rows = rebinding.trace(model, Pairs(clean, noise), layers=[1, 3], at=["early", "readout"])
    assert len(rows) == 2 * 2 * 2
    recording = model.record(noise)
    for layer, token in ((1, 3), (3, 3), (1, 12), (3, 12)):
        edit = Edit("resid", model.record(clean), at=token, layer=layer)
        (logits,) = recording.run(edit, Read("logits"))
        of_answers = logits.gather(1, clean.answers)
        margin = of_answers[:, 0] - of_answers[:, 1:].amax(1)
        cell = rows[(rows["layer"] == layer) & (rows["token"] == token)].sort_values("prompt")["margin"]
        assert torch.allclose(torch.tensor(cell.to_numpy()).double(), margin.double(), atol=TOLERANCE)


def test_discovery_is_that_of_the_command(planted: rebinding.Model, pairs: Pairs) -> None:
    """The same prompts by the command's own way: the same nodes and edges, and effects to rounding."""
    graph = rebinding.discover(planted, pairs, positions="all")
    bench = Workbench(planted.loaded)
    stories = bench.prompts.design("counterbalanced")
    prompt_set = bench.prompts.draw(stories, range(36), ("noise", "independent"))
    expected = search_on(bench, prompt_set, SearchSettings()).graph()
    assert len(graph.nodes) > 10
    assert graph.nodes == expected.nodes
    assert [edge[:3] for edge in graph.edges] == [edge[:3] for edge in expected.edges]
    effects, expected_effects = ([edge[3:] for edge in side.edges] for side in (graph, expected))
    assert np.allclose(effects, expected_effects, rtol=0, atol=FLOAT32)


def test_discovery_at_roles_is_that_of_the_command(planted: rebinding.Model, pairs: Pairs) -> None:
    """The five stages on the command's own prompts; what one kind of discovery lacks is refused."""
    own = planted.story_pairs(rebinding.design("partner_second", planted), 24)
    circuit = rebinding.discover(planted, own)
    bench = Workbench(planted.loaded)
    request = bench.prompts.draw(bench.prompts.design("partner_second"), range(24), ("noise", "independent"))
    scored = to_noise_pairs(bench.prompts.encoder, bench.prompts.encode(request))
    assert circuit == discover_by_stages(planted.surgeon, scored).circuit
    assert set(circuit.groups) == set("ABCDE")
    with_partner = pairs.having("swap_partner", "context_partner")
    assert 0 < len(with_partner) < len(pairs)
    assert rebinding.discover(planted, with_partner).groups.keys() >= set("ABCD")
    with pytest.raises(PromptError, match=r"no swap_partner and no context_partner.*pairs\.having.*positions='all'"):
        rebinding.discover(planted, pairs)
    with pytest.raises(SurgeryError, match="belong to the search at all positions"):
        rebinding.discover(planted, own, share=0.1)
    with pytest.raises(SurgeryError, match="belong to the search at all positions"):
        rebinding.discover(planted, own, screen="none")
    with pytest.raises(SurgeryError, match=r"unknown screen 'no'; write screen='first-order' or .* or screen='none'"):
        rebinding.discover(planted, own, positions="all", screen="no")
    with pytest.raises(SurgeryError, match="unknown positions 'some'"):
        rebinding.discover(planted, own, positions="some")


def test_prompts_without_a_design_are_searched_as_well(planted: rebinding.Model, pairs: Pairs) -> None:
    """The stories as token ids, with two named positions: the heads at the readout are the same, and tokens are named
    by their distance from a named one."""

    def plain(prompts: rebinding.Prompts) -> rebinding.Prompts:
        named = {"asked": prompts.at("question_box").tolist(), "second": prompts.at("swap_second").tolist()}
        return planted.prompts(prompts.tokens, positions=named, answers=prompts.candidates().tolist())

    graph = rebinding.discover(planted, Pairs(plain(pairs.clean), plain(pairs.noise)), positions="all")
    by_token = {token: {node[:2] for node in graph.nodes if node.token == token} for _, _, token in graph.nodes}
    assert by_token["readout"] == {(6, 0), (6, 3), (5, 5), (4, 3)}
    assert by_token["asked"] == {(2, 7), (3, 3)}
    assert {"readout", "asked", "second"} <= set(by_token)
    assert all(token.rpartition("@")[2].startswith(("readout", "asked", "second")) for token in by_token)
    evaluation = rebinding.evaluate(planted, graph.circuit(), plain(pairs.clean), draws=2)
    assert evaluation.model == 1.0


def test_an_evaluation_tells_a_circuit_from_a_part_of_it(planted: rebinding.Model, pairs: Pairs) -> None:
    """Right, wrong and random circuits; every number from the rows."""
    prompts = pairs.clean.having("context_partner_object")
    circuit = rebinding.discover(planted, pairs, positions="all").circuit()
    full = rebinding.evaluate(planted, circuit, prompts, means=pairs.noise, draws=3)
    part = rebinding.evaluate(planted, Circuit.of({"readout": [(6, 3)]}), prompts, means=pairs.noise, draws=0)
    assert full.model == full.circuit == 1.0
    assert max(full.random) < 0.8
    assert part.circuit < 0.8
    assert part.random == ()
    assert len(full.rows) == len(prompts) * 5
    for means, message in (
        (pairs.noise[:1], "not an ablation"),
        (planted.prompts([[5, 6], [6, 5]]), "of 2 tokens, for"),
    ):
        with pytest.raises(ValueError, match=message):
            rebinding.evaluate(planted, circuit, prompts, means=means)
    for bad, message in (
        ({"readout": [(9, 0)]}, "do not exist in a model of 7 layers x 8 heads"),
        ({"nowhere": [(1, 0)]}, "no position 'nowhere'"),
    ):
        with pytest.raises((CircuitError, ValueError), match=message):
            rebinding.evaluate(planted, Circuit.of(bad), prompts)


def test_errors_of_path_patching_say_what_to_do(planted: rebinding.Model, pairs: Pairs) -> None:
    with pytest.raises(SurgeryError, match="go together"):
        rebinding.patch_paths(planted, pairs, receivers=[(1, 1)])
    with pytest.raises(SurgeryError, match=r"no head \(1, 9\)"):
        rebinding.patch_paths(planted, pairs, receivers=[(1, 9)], component="q", receivers_at="readout")
    for arguments, message in (
        ({"receivers": (2, 3), "component": "q", "receivers_at": "readout", "senders": [(5, 5)]}, "no sender is below"),
        ({"receivers": [(0, 3)], "component": "q", "receivers_at": "readout"}, "no sender is below"),
        ({"receivers": [(6, 0)], "component": "z", "receivers_at": "readout"}, "unknown component 'z'"),
        ({"receivers": [(6, 0)], "component": "q", "receivers_at": "readout", "scope": "all"}, "unknown scope 'all'"),
        ({"receivers": [(6, 0)], "component": "k", "receivers_at": "question_box"}, "every score would be zero"),
        (
            {"receivers": [(6, 0)], "component": "k", "receivers_at": "question_box", "freeze": False},
            "'question_box' is before 'readout'",
        ),
    ):
        with pytest.raises(SurgeryError, match=message):
            rebinding.patch_paths(planted, pairs, **arguments)
    with pytest.raises(SurgeryError, match="there is no layer 7"):
        rebinding.trace(planted, pairs, layers=[7])
    with pytest.raises(ValueError, match="differ between prompts"):
        rebinding.trace(planted, pairs[:4], at=["context_asked"])
    with pytest.raises(ValueError, match="no effect is significant on so few; give 4"):
        rebinding.discover(planted, pairs[:3])
    single_answer = planted.prompts(pairs.clean.tokens, answers=pairs.clean.candidates()[:, :1].tolist())
    with pytest.raises(ValueError, match="this needs 2 answers for each prompt"):
        rebinding.trace(planted, Pairs(single_answer, pairs.noise))


def test_one_pair_has_no_standard_error(planted: rebinding.Model, pairs: Pairs) -> None:
    table = rebinding.patch_paths(planted, pairs[0])
    assert table["se"].isna().all()
    assert (table["freedom"] == 0).all()


def test_positions_of_a_map_are_one_token_on_both_sides(planted: rebinding.Model, pairs: Pairs) -> None:
    """A name that is another token in the noise prompts would be patched across tokens."""
    clean = planted.prompts(pairs.clean.tokens, positions={"x": 60}, answers=pairs.clean.candidates().tolist())
    noise = planted.prompts(pairs.noise.tokens, positions={"x": 70})
    with pytest.raises(ValueError, match="differ between prompts"):
        rebinding.trace(planted, Pairs(clean, noise)[:2], layers=[1], at=["x"])


def test_circuits_are_saved_with_their_model(planted: rebinding.Model, tmp_path: Path) -> None:
    circuit = Circuit.of({"readout": [(6, 3), (6, 0)], "question_box": [(3, 3)]})
    planted.save(circuit, tmp_path / "circuit.json")
    assert set(planted.load_circuit(tmp_path / "circuit.json").heads) == set(circuit.heads)
    with pytest.raises(CircuitError, match="heads of one model mean nothing in another"):
        rebinding.load("planted:recency").load_circuit(tmp_path / "circuit.json")
    assert circuit.without([(6, 3)]).heads == (circuit.heads[1], circuit.heads[2])
    for make in (lambda: circuit.without([(1, 1)]), lambda: Circuit.of([(6, 3)]), lambda: Circuit.of({"a": (6, 3)})):
        with pytest.raises(CircuitError):
            make()


ROOT = Path(__file__).parents[2]
LOADED = "import sys, rebinding; dir(rebinding); print(sorted({'torch', 'pandas', 'rebinding.api'} & set(sys.modules)))"


def test_every_name_has_a_docstring_and_a_place_in_the_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    headings = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^## .*$", page, re.MULTILINE))))
    assert headings == set(rebinding.__all__)
    constants = {"MLP": -1}
    assert {name: getattr(rebinding, name) for name in constants} == constants
    for name in set(rebinding.__all__) - constants.keys():
        value = getattr(rebinding, name)
        assert value.__name__ == name
        assert inspect.getdoc(value), name
        public = [(own, part) for own, part in vars(value).items() if not own.startswith("_") and callable(part)]
        assert all(inspect.getdoc(part) for _, part in public), name
        assert name in page


def test_the_lists_of_names_agree() -> None:
    """Those that a type checker sees, those that are imported late, and `__all__`."""
    source = (ROOT / "rebinding" / "__init__.py").read_text("utf-8")
    declared = re.findall(r"^    from rebinding\.([\w.]+) import (\w+) as \2$", source, re.MULTILINE)
    assert {name: module for module, name in declared} == rebinding._MODULES
    assert sorted(rebinding._MODULES) == sorted(rebinding.__all__)


def test_importing_the_package_imports_nothing_large() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'patch'; its names are MLP, Circuit, CircuitError, CleanRun"
    ):
        rebinding.patch  # noqa: B018


def test_judge_says_why_nothing_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that it lacks a plugin of the caller's own tests, whose options the environment may hold."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "--an-option-of-the-callers-tests")
    with pytest.raises(JudgeError, match=r"did you mean .*pointer"):
        rebinding.judge("planted:pointr", options=["--no-store"])
    with pytest.raises(ValueError, match="no model given"):
        rebinding.judge()


def test_a_list_of_heads_is_a_circuit_at_all_tokens() -> None:
    """Every other head at its mean over the prompts, by plain hooks on the library's own model."""
    model = model_of()
    prompts = prompts_of(model)
    kept = [(1, 2), (3, 0)]
    raw = model.loaded.model
    means = [z.mean(dim=0) for z in z_of(raw, prompts.tokens)]  # of each layer (token, head, width)

    def ablate(z: Tensor, *, layer: int) -> Tensor:
        for head in range(z.shape[2]):
            if (layer, head) not in kept:
                z[:, :, head] = means[layer][:, head]
        return z

    with changed_z(raw, {layer: partial(ablate, layer=layer) for layer in range(len(means))}):
        expected = logits_of(raw, prompts.tokens).gather(1, prompts.candidates())
    evaluation = rebinding.evaluate(model, kept, prompts, draws=3)
    rows = evaluation.rows[evaluation.rows["circuit"] == "circuit"].sort_values("prompt")
    margins = expected[:, 0] - expected[:, 1:].amax(1)
    assert np.allclose(rows["margin"].to_numpy(), margins.numpy(), rtol=0, atol=TOLERANCE)
    assert len(evaluation.random) == 3
    with pytest.raises(SurgeryError, match="there is no head"):
        rebinding.evaluate(model, [(9, 0)], prompts)
    for wrong in ([], [(1, 2), (1, 2)]):
        with pytest.raises(SurgeryError, match="each once, and at least one"):
            rebinding.evaluate(model, wrong, prompts)
    most = [(layer, head) for layer, head in model.heads if layer]
    with pytest.raises(CircuitError, match="too large for such a comparison"):
        rebinding.evaluate(model, most, prompts, match="role")
    assert "prompt" not in repr(evaluation)


def test_random_circuits_of_a_full_layer_are_drawn_from_all_layers() -> None:
    model = model_of()
    prompts = prompts_of(model)
    most = [(1, head) for head in range(5)]
    with pytest.raises(CircuitError, match="only 1 are left: match='role' draws from all layers"):
        rebinding.evaluate(model, most, prompts, draws=2)
    assert len(rebinding.evaluate(model, most, prompts, draws=2, match="role").random) == 2
    with pytest.raises(SurgeryError, match="match='role' or match='role_and_layer'"):
        rebinding.evaluate(model, most, prompts, match="layer")  # type: ignore[arg-type]
