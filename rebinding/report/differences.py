"""The differences between this run and the procedure published with the paper that may change a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rebinding.evidence import Kind
from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.circuit.request import ABLATION, PRUNING
from rebinding.experiments.paths.request import PATHS
from rebinding.experiments.roles.request import ROLES
from rebinding.experiments.tracing.request import TRACING
from rebinding.paper.procedure import EARLY
from rebinding.report.folder import Model, Run


@dataclass(frozen=True)
class Difference:
    """One difference. `applies` says whether it concerns a model of this run."""

    this_run: str
    published: str
    applies: Callable[[Run, Model], bool]


def has_evidence(*kinds: Kind) -> Callable[[Run, Model], bool]:
    """A condition: the model has evidence of one of these kinds."""
    return lambda run, model: any(model.find_evidence(kind) for kind in kinds)


def _is_planted(run: Run, model: Model) -> bool:
    return model.about.get("kind") == "planted"


def _uses_balanced_means(run: Run, model: Model) -> bool:
    ablated = has_evidence(ABLATION, PRUNING)
    return ablated(run, model) and model.about.get("mean_set") == "counterbalanced"


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "Prompt ids are disjoint: discovery from 0, means from 100, pruning from 200, evaluation from 300, directions"
        " from 10,000 on. Published rows of section 5 begin at 0, as published.",
        "Head roles and binding are measured on ids that means, pruning and directions have used; so are our published"
        " rows of head roles.",
        lambda run, model: True,
    ),
    Difference(
        "The number of prompts is the one that decides each row on a planted model, or that of --samples.",
        "100 or 300 prompts, by experiment.",
        lambda run, model: _is_planted(run, model) or run.settings.get("samples") is not None,
    ),
    Difference(
        "Prompts come from another design than the published one (see the settings).",
        "The box of the question stands first. Its partner stands second, and the swap names it first.",
        lambda run, model: run.settings.get("design", "published") != "published",
    ),
    Difference(
        "The circuit under test is not the printed one: a planted model declares it, this run discovers it, or a file"
        " has it.",
        "The heads of the paper's table.",
        lambda run, model: model.about.get("circuit_from") not in (None, "published"),
    ),
    Difference(
        "The hits of the unpatched counterfactual are subtracted, and controlled rows divide the difference by the"
        " share that they leave; tokens without a role are not traced; what the context adds is measured by patching it"
        " together with the swap.",
        "A raw share, without base, over every token, one token at a time.",
        has_evidence(TRACING),
    ),
    Difference(
        "In path patching all other heads are frozen, keys and values are those of one query head, the noise is an"
        " independent story, the partner is named second, and D acts on C's keys and values.",
        "Whole KV groups are patched; whether anything is frozen is not known (rows on discovery run both), and D is"
        " said to act on C's query, which cannot work when heads are frozen.",
        has_evidence(PATHS),
    ),
    Difference(
        "Heads outside the circuit are held at means over counterbalanced prompts, which cannot carry a slot.",
        "Means over prompts that all have the answer in the same slot.",
        _uses_balanced_means,
    ),
    Difference(
        "Random circuits and the circuit are evaluated on the same held-out ids.",
        "Random circuits are evaluated on the ids of the selection.",
        has_evidence(ABLATION),
    ),
    Difference(
        "Pruning walks the circuit in eight orders, each on prompts of its own, and the spread is reported.",
        "One walk, front to back.",
        has_evidence(PRUNING),
    ),
    Difference(
        "Controlled rows of head roles: every group, A included, gets attention patterns at its own token, the order of"
        " two statements is all that changes, and both directions of an id are one unit.",
        "A gets head outputs instead; objects and the wording of the swap change too, and the answer's slot goes one"
        " way. (The published rows do this.)",
        lambda run, model: bool(model.find_evidence(ROLES, direction="both")),
    ),
    Difference(
        "Controlled rows of section 5 run every ordered pair of slots on single heads, read all conditions on box and"
        " object tokens, and cross prompts with ten sets of directions from other words.",
        "One ordered pair, keys of whole KV groups, one set of directions; each condition is read on the tokens that it"
        " shifts, so its rows do not compare.",
        lambda run, model: bool(model.find_evidence(BINDING, variation="controlled")),
    ),
    Difference(
        "Published rows of sections 4.2 and 5 edit and read at the ':' that the answer follows, and again two tokens"
        " before it; they are never counted as not replicated.",
        "One of the two. Which one is unknown: the released code counts the tokens that are not padding, and misses two"
        " if padding is Llama's end-of-turn token.",
        lambda run, model: bool(model.find_evidence(ROLES, cut=EARLY) or model.find_evidence(BINDING, cut=EARLY)),
    ),
    Difference(
        "The printed random row is compared with three controls, and is never counted as not replicated.",
        "One row Random. The paper does not say which of three controls it is.",
        lambda run, model: bool(model.find_evidence(BINDING, variation="published")),
    ),
)


def find_differences(run: Run) -> Sequence[tuple[Difference, Mapping[str, bool]]]:
    """The differences that concern a model of the run, each with the models that it concerns."""
    pairs = [
        (difference, {model.name: difference.applies(run, model) for model in run.models}) for difference in DIFFERENCES
    ]
    return [(difference, models) for difference, models in pairs if any(models.values())]
