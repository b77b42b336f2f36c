"""Certify a model: edit every site at every layer, and compare the surgeon with full forwards of the library.

Each trial adds noise to one site of one layer, at half of the heads and one token of a random prompt. The surgeon
replays it. The reference (`rebinding.models.reference`) computes it without recording, prefix or replay. Their
residuals after the last layer are compared at every token from the edit on. The deviation is counted in allowances
for float32 rounding (`rebinding.models.rounding`); models of 16 bits compute in float32 meanwhile.

A layer costs 18 forwards of the prompt by the reference and 19 replays by the surgeon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rebinding.models.comparison import Comparison
from rebinding.models.probe import draw_tokens
from rebinding.models.reference import Reference
from rebinding.models.rounding import in_float32
from rebinding.models.trials import CELLS, Cell, missing_part
from rebinding.paper.certificate import Certificate, Gap, SiteResult, installed_versions
from rebinding.surgery import Anatomy, Surgeon, TorchSurgeon

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def certify(
    model: PreTrainedModel,
    anatomy: Anatomy,
    *,
    surgeon: Surgeon | None = None,
    layers: Sequence[int] | None = None,
    has_nnsight: bool = False,
    report_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Certificate:
    """Check a surgeon (a `TorchSurgeon` by default) on a model with a verified anatomy, at `layers` or at all.

    `report_progress` gets the numbers of finished and of all batches. With `has_nnsight` the first of these layers is
    also checked with the `NNsightSurgeon`.
    """
    tokens = draw_tokens(model, anatomy)
    chosen = tuple(range(anatomy.n_layers)) if layers is None else tuple(sorted(set(layers)))
    with in_float32(model, anatomy, has_parts=True):
        reference = Reference(model, anatomy, tokens)
        comparison = Comparison(surgeon or TorchSurgeon(model, anatomy), reference, chosen)
        comparison.run(report_progress)
        nnsight = _check_nnsight(reference, chosen[:1]) if has_nnsight else ((), ())
        return Certificate(
            architecture=type(model).__name__,
            anatomy=describe(anatomy),
            versions=installed_versions(),
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            tokens=tokens.shape[1],
            layers=chosen,
            sites=tuple(_results(comparison)),
            replay=comparison.compare_unedited(),
            attention=comparison.compare_attention(),
            gaps=(*_gaps(comparison), *nnsight[0]),
            errors=(*_as_gaps(comparison.errors), *nnsight[1]),
        )


def _results(comparison: Comparison) -> Iterator[SiteResult]:
    for cell in CELLS:
        outcomes = comparison.outcomes.get(cell)
        if not outcomes:
            continue
        worst = max(outcomes, key=lambda outcome: outcome.deviation)
        yield SiteResult(
            site=str(cell),
            layers=tuple(sorted({outcome.layer for outcome in outcomes})),
            silent=tuple(sorted({outcome.layer for outcome in outcomes if not outcome.effect > 1})),
            deviation=worst.deviation,
            layer=worst.layer,
            token=worst.token,
            effect=max(outcome.effect for outcome in outcomes),
            read=comparison.reads.get(cell.site) if cell.attention == "live" and cell.scope != "head" else None,
        )


def _gaps(comparison: Comparison) -> Iterator[Gap]:
    missing: dict[tuple[Cell, str], list[int]] = {}
    for cell in CELLS:
        for layer in comparison.layers:
            reason = missing_part(comparison.anatomy, cell, layer)
            if reason is not None:
                missing.setdefault((cell, reason), []).append(layer)
    yield from _as_gaps(missing | comparison.refused)
    if comparison.anatomy.branches is None:
        yield Gap("fast frozen path", (), "the norms of the layers are unknown, so frozen replays run whole layers")


def _as_gaps(layers_by_reason: Mapping[tuple[Cell, str], list[int]]) -> Iterator[Gap]:
    """One gap for all cells that have the same reason at the same layers."""
    cells: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (cell, reason), layers in layers_by_reason.items():
        cells.setdefault((reason, tuple(sorted(layers))), []).append(str(cell))
    for (reason, numbers), names in cells.items():
        yield Gap(", ".join(names), numbers, reason)


def _check_nnsight(reference: Reference, layers: tuple[int, ...]) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """What the `NNsightSurgeon` does not support on a model, and where it is wrong."""
    from rebinding.surgery.nnsight_surgeon import NNsightSurgeon  # takes seconds

    comparison = Comparison(NNsightSurgeon(reference.model, reference.anatomy), reference, layers)
    comparison.run(lambda done, total: None)
    cells: dict[str, list[str]] = {}
    for cell, reason in [*comparison.refused, *comparison.errors]:
        cells.setdefault(reason, []).append(str(cell))
    gaps = tuple(Gap(f"nnsight, {', '.join(names)}", (), reason) for reason, names in cells.items())
    wrong = (result for result in _results(comparison) if not max(result.deviation, result.read or 0.0) <= 1)
    return gaps, tuple(
        Gap(f"nnsight, {result.site}", result.layers, f"a deviation of {result.deviation:.3g} allowances")
        for result in wrong
    )


def describe(anatomy: Anatomy) -> dict[str, int | str | list[int]]:
    """The anatomy in short; sizes that differ between layers are listed."""
    return {
        "layers": anatomy.n_layers,
        **{name: sorted({getattr(part, f"n_{name}") for part in anatomy.parts}) for name in ("heads", "kv_heads")},
        "head_size": sorted({part.head_dim for part in anatomy.parts}),
        "hidden_size": anatomy.hidden,
    }
