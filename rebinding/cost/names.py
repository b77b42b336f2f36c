"""The name of a cost line: what is measured, without the words of its prompts."""

from __future__ import annotations

from rebinding.evidence import PromptSet, Request
from rebinding.experiments.attention import AttentionToRoles
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.circuit.request import Ablation, Pruning
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.roles.request import Interchange
from rebinding.experiments.tracing.request import ReadoutDiagnostic, TracingMap


def name_of(request: Request) -> str:
    """The kind of a request, and the properties that its cost depends on."""
    match request:
        case Paths():
            name = _path(request)
        case Pruning():
            name = f"pruning of {len(request.circuit)} heads"
        case Ablation():
            name = f"{request.KIND.name}, vs {request.comparison}"
        case Interchange():
            name = f"roles, {request.mode}{', single heads' if request.single_heads else ''}"
        case Shifts():
            name = f"binding, {request.variation}"
        case TracingMap():
            name = "map" if request.roles is None else f"map of {len(request.roles)} roles"
        case ReadoutDiagnostic():
            name = request.KIND.name + (", all windows" if request.all_windows else "")
        case AttentionToRoles():
            name = f"attention of {len(request.heads)} heads"
        case _:
            name = request.KIND.name
    return name + "".join(f", {text}" for text in _describe(_prompts(request)))


def _path(request: Paths) -> str:
    receivers = "logits" if request.stage.receivers is None else f"{len(request.receivers)} heads"
    kind = "link" if request.senders is not None else "paths"
    return f"{kind} {request.stage.group} to {receivers}{', all frozen' if request.settings.frozen == 'all' else ''}"


def _prompts(request: Request) -> PromptSet:
    prompts: PromptSet | None = getattr(request, "prompts", None)
    return request.slots[0] if prompts is None else prompts  # type: ignore[attr-defined]  # directions: a set per slot


def _describe(prompts: PromptSet) -> list[str]:
    """How prompts differ from the default ones, except in their words."""
    properties = {
        "balanced": prompts.design == "counterbalanced",
        f"{prompts.boxes} boxes": prompts.boxes != 3,
        f"{prompts.operations} {prompts.verb}s": prompts.operations != 1,
        f"a {prompts.verb}": prompts.operations == 1 and prompts.verb != "swap",
        "narrative": prompts.narrative,
        f"{prompts.cut} tokens earlier": prompts.cut > 0,
    }
    return [text for text, applies in properties.items() if applies]
