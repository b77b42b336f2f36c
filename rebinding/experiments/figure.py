"""A figure of the report: the evidence it needs, what the paper's figure shows, and what ours shows.

The figures of a section are the tuple `FIGURES` of its module `figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rebinding.evidence import Evidence, Kind
from rebinding.evidence.request import Facet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ReportedModel(Protocol):
    """A model of a report: its description and its evidence."""

    @property
    def about(self) -> Mapping[str, Any]: ...

    @property
    def printed_numbers(self) -> Mapping[str, float]:
        """The numbers that the model is compared with, by quantity, such as `binding.q.dR`."""
        ...

    @property
    def stages(self) -> Mapping[str, Evidence]:
        """The evidence of each stage of our own discovery, by group."""
        ...

    def discovered_circuit(self) -> list[tuple[str, int, int, str]]:
        """The circuit that our own discovery finds, before pruning: group, layer, head, role."""
        ...

    def find_evidence(self, kind: Kind, **facets: Facet) -> Mapping[str, Evidence]:
        """The evidence of a kind whose requests have these facets, by label."""
        ...

    def find_largest_evidence(self, kind: Kind, **facets: Facet) -> Evidence | None:
        """The evidence among `find_evidence(kind, **facets)` that rests on most units; None if there is none."""
        ...


def has_facets(evidence: Evidence, kind: Kind, **facets: Facet) -> bool:
    """Whether evidence is of this kind, and its request has these facets."""
    own = evidence.settings["facets"]
    return evidence.experiment == kind.name and all(own.get(name) == value for name, value in facets.items())


@dataclass(frozen=True)
class Shows:
    """Evidence of a kind, where its requests have these facets."""

    kind: Kind
    facets: Mapping[str, Facet] = field(default_factory=dict)


def shows(kind: Kind, **facets: Facet) -> Shows:
    """A kind of evidence, or the part of it that has these facets."""
    return Shows(kind, MappingProxyType(facets))


@dataclass(frozen=True)
class FigureSpec:
    """A figure that is drawn for every model. `uses` is the evidence that it shows; `draw` returns None for a model
    without that evidence."""

    key: str
    section: str
    title: str
    stands_for: str
    says: str
    shows: str
    uses: tuple[Shows, ...]
    draw: Callable[[ReportedModel], Figure | None]
    shares: Literal["", "x", "y"] = ""
    """The axis that has one scale for all models of a page."""
    special: bool = False
    """Most models do not have this figure, and nothing is missing then."""

    def shows_any(self, evidence: Iterable[Evidence]) -> bool:
        """Whether this figure shows any of the evidence of a claim."""
        return any(has_facets(item, use.kind, **use.facets) for item in evidence for use in self.uses)


def heads_by_group(heads: Iterable[tuple[str, int, int, str]]) -> dict[str, list[tuple[int, int]]]:
    """The heads (layer, head) of each group of a circuit."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for group, layer, head, _ in heads:
        groups.setdefault(group, []).append((layer, head))
    return groups


def cut_label(cut: Facet) -> str:
    """For a title: how many tokens before the ':' prompts were read."""
    return f", {cut} tokens before ':'" if cut else ""
