"""The name of a line: what is measured, without the words of its prompts."""

from __future__ import annotations

from rebinding.evidence import PromptSet, Request
from rebinding.experiments.attention.request import AttentionToRoles
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.circuit.request import Ablation, Pruning
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.roles.request import Interchange
from rebinding.experiments.tracing.request import TracingMap


def name_of(request: Request) -> str:
    """The kind, and what tells requests of other costs apart."""
    match request:
        case Paths():
            said = _path(request)
        case Pruning():
            said = f"pruning of {len(request.circuit)} heads"
        case Ablation():
            said = f"{request.KIND.name}, beside {request.beside}"
        case Interchange():
            said = f"roles, {request.mode}"
        case Shifts():
            said = f"binding, {request.variation}"
        case TracingMap():
            said = "map" if request.roles is None else f"map of {len(request.roles)} roles"
        case AttentionToRoles():
            said = f"attention of {len(request.heads)} heads"
        case _:
            said = request.KIND.name
    return said + "".join(f", {what}" for what in _stories(_prompts(request)))


def _path(request: Paths) -> str:
    to = "logits" if request.stage.receivers is None else f"{len(request.receivers)} heads"
    sent = "link" if request.senders is not None else "paths"
    return f"{sent} {request.stage.group} to {to}{', all frozen' if request.how.frozen == 'all' else ''}"


def _prompts(request: Request) -> PromptSet:
    found: PromptSet | None = getattr(request, "prompts", None)
    return request.slots[0] if found is None else found  # type: ignore[attr-defined]  # directions: a set for each slot


def _stories(prompts: PromptSet) -> list[str]:
    """What is unusual about prompts, but for their words."""
    told = {
        "balanced": prompts.design == "counterbalanced",
        f"{prompts.boxes} boxes": prompts.boxes != 3,
        f"{prompts.operations} {prompts.verb}s": prompts.operations != 1,
        f"a {prompts.verb}": prompts.operations == 1 and prompts.verb != "swap",
        "narrative": prompts.narrative,
        f"{prompts.cut} tokens earlier": prompts.cut > 0,
    }
    return [what for what, unusual in told.items() if unusual]
