"""The maps and the diagnostic of section 3, at the tokens that have a role."""

from __future__ import annotations

from collections.abc import Sequence

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.diagnostic import diagnose
from rebinding.experiments.tracing.modes import trace_design, traced_pair
from rebinding.study.bench import EVALUATION, Bench
from rebinding.world.designs import Design, DesignName

WIDE = 5


def story(bench: Bench, name: DesignName, boxes: int) -> Design:
    """Three boxes and a swap, or five and a swap that distracts."""
    return bench.design(name, boxes=boxes, distractor="before") if boxes == WIDE else bench.design(name, boxes=boxes)


def traced(bench: Bench, name: DesignName, mode: str, roles: Sequence[str], *, boxes: int, n: int) -> Evidence:
    """The map of one mode, at the tokens that have one of these roles; `context_box` is the label of every slot."""
    settings = {"design": name, "mode": mode, "roles": list(roles), "boxes": boxes, "n": n}

    def compute() -> Evidence:
        drawn = story(bench, name, boxes)
        first = traced_pair(bench.encoder, drawn.tracing(EVALUATION, mode))
        tokens = sorted({at for role, at in first.original.roles.items() if role.partition("[")[0] in roles})
        return trace_design(
            bench.surgeon, bench.encoder, drawn, mode=mode, n=n, first_id=EVALUATION, tokens=tokens, shelf=bench.shelf
        )

    return bench.kept("tracing-maps", __name__, settings, compute)


def diagnosed(bench: Bench, name: DesignName, *, boxes: int, n: int) -> Evidence:
    """The readout diagnostic."""
    settings = {"design": name, "boxes": boxes, "n": n}

    def compute() -> Evidence:
        drawn = story(bench, name, boxes)
        return diagnose(bench.surgeon, bench.encoder, drawn, n=n, first_id=EVALUATION, shelf=bench.shelf)

    return bench.kept("diagnostics", __name__, settings, compute)
