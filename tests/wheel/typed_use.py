"""Every public name as a user writes it, for `mypy --strict` against the installed wheel; never run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from rebinding import (
    MLP,
    Circuit,
    CleanRun,
    Edit,
    Evaluation,
    Faithfulness,
    Graph,
    Hypotheses,
    Model,
    NothingEdited,
    Pairs,
    Prompts,
    Read,
    Recording,
    Sensitivity,
    Verdicts,
    accuracy,
    check_circuit,
    design,
    discover,
    evaluate,
    faithfulness,
    judge,
    kl_divergence,
    load,
    logit_difference,
    patch_paths,
    plot_attention,
    plot_faithfulness,
    plot_graph,
    plot_heads,
    plot_sensitivity,
    plot_trace,
    probability,
    sensitivity,
    trace,
)


def own_metric(logits: Tensor, clean: CleanRun) -> Tensor:
    return (logits - clean.logits).abs().sum(1) + clean.answers.shape[1]


def use(folder: Path, report: Callable[[str], None]) -> tuple[Verdicts, object, object]:
    model: Model = load(str(folder), dtype="bfloat16", device="cuda:0")
    clean: Prompts = model.prompts(
        ["a b", "b a"], positions={"first": 0, "own": [0, 1]}, answers=[["a", "b"], ["b", "a"]]
    )
    noise: Prompts = model.fill("{one} {two}", [{"one": "a", "two": "b"}], answers=("{one}", "{two}"))
    pairs = Pairs(clean, noise)
    stories: Pairs = model.story_pairs(design("published", model, boxes=5), 8, first=4)
    recording: Recording = model.record(clean, keep=("z", "pattern"))
    values: list[Tensor] = recording.read(
        Read("z", head=[(0, 1), (2, 3)], at="own"), Read("resid", layer=2, at=[0, -1])
    )
    edits = [Edit("z", recording, at="first", head=(0, 1)), Edit("k", values[0], at=0, head=(0, 0), scope="group")]
    try:
        recording.run(edits, Read("logits"), attention="frozen")
        recording.run_each([edits[0], edits], Read("answers"), allow_noop=True)
    except NothingEdited:
        pass
    graph: Graph = discover(model, pairs, positions="all", share=0.05, minutes=5, report=report)
    circuit: Circuit = graph.circuit()
    evaluation: Evaluation = evaluate(model, circuit, clean.having("own"), means=stories.clean, draws=3)
    assert evaluation.circuit <= evaluate(model, [(0, 1), (2, 3)], clean + noise, match="role").circuit
    curve: Faithfulness = faithfulness(model, patch_paths(model, pairs), clean, ablation="zero", metric=own_metric)
    checked: Hypotheses = check_circuit(model, [(0, 1), (2, 3)], clean, draws=3)
    assert checked.equivalence.outcome == checked.minimality.outcome
    by_set: Sensitivity = sensitivity(model, circuit, {"own": clean, "other": noise}, ablations=["zero"], share=0.5)
    assert len(by_set.flips) <= len(by_set.table)
    evaluate(model, [(0, 1), (2, MLP)], clean)
    plot_sensitivity(by_set)
    plot_faithfulness(curve).set_title(f"{curve.cpr:.2f}")
    for metric in (accuracy, kl_divergence, logit_difference, probability):
        evaluate(model, circuit, clean, ablation="resample", metric=metric)
    recording.run(Edit("z", lambda z: 2 * z, at="first", head=(0, 1)), Read("logits"))
    table = patch_paths(
        model, stories, at=-1, receivers=[(3, 1)], component="kv", receivers_at="question_box", freeze=False
    )
    axes = plot_heads(table)
    plot_trace(trace(model, pairs + stories), column="base_margin", axes=axes)
    plot_attention(recording, (0, 1), prompt=1, at="own", axes=plot_graph(graph, 7))
    verdicts = judge("planted:pointer", every_row=True, report=folder, options=["--samples", "24"])
    return verdicts, table, trace(model, pairs[:2], layers=[0], at=["first", 1])
