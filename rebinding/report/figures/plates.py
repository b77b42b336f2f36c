"""Every figure of the paper: which evidence it needs, what the paper's figure shows, and what ours does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from matplotlib.figure import Figure

from rebinding.evidence import Evidence, Kind
from rebinding.evidence.request import Facet
from rebinding.experiments.binding.kinds import BINDING
from rebinding.experiments.circuit.kinds import ABLATION, PATHS, PRUNING
from rebinding.experiments.roles.kinds import ROLES
from rebinding.experiments.tracing.kinds import DIAGNOSTIC, EVERY_TOKEN, TRACING
from rebinding.report.figures import drawings
from rebinding.report.folder import Model, asks


@dataclass(frozen=True)
class Shows:
    """Evidence of a kind, where its requests have these facets."""

    kind: Kind
    facets: Mapping[str, Facet] = field(default_factory=dict)


def of(kind: Kind, **facets: Facet) -> Shows:
    """A kind of evidence, or the part of it that has these facets."""
    return Shows(kind, MappingProxyType(facets))


@dataclass(frozen=True)
class Plate:
    """A figure that is drawn for every model. `uses` says which evidence it shows; `draw` gives None where a model has
    none of it."""

    key: str
    section: str
    title: str
    stands_for: str
    says: str
    shows: str
    uses: tuple[Shows, ...]
    draw: Callable[[Model], Figure | None]
    shares: Literal["", "x", "y"] = ""
    """The axis that has one scale for all models of a page."""
    special: bool = False
    """Most models have none of it, and nothing is missing then."""

    def shows_any(self, evidence: Iterable[Evidence]) -> bool:
        """Whether a claim with this evidence is to be read beside this figure."""
        return any(asks(one, use.kind, **use.facets) for one in evidence for use in self.uses)


MAP_SAYS = (
    "That figure has colours and no numbers: labels matter from the swap sentence on, the object goes from its own"
    " token to the last one."
)
PLACES = "layers from bottom to top, tokens with a role from left to right"


def tracing(boxes: int, section: str, suffix: str, note: str) -> tuple[Plate, ...]:
    """The figures of section 3."""
    return (
        Plate(
            f"tracing{suffix}",
            section,
            "Where the answer comes from",
            f"Beside the paper's figure of information flow{note}.",
            MAP_SAYS,
            f"Normalised IIA of three edits in three colours; {PLACES}. White: nothing, or not traced with that edit.",
            (of(TRACING, boxes=boxes),),
            drawings.combined(boxes),
        ),
        Plate(
            f"flow{suffix}",
            section,
            "The same, over every token",
            f"Beside the paper's figure of information flow{note}, whose axis is the whole prompt.",
            MAP_SAYS,
            "Normalised IIA of three edits in three colours; layers from bottom to top, all tokens from the first that"
            " differs, those with a role named. `pytest claims --every-token` traces them.",
            (of(TRACING, boxes=boxes, roles=EVERY_TOKEN, design="published"),),
            drawings.flow(boxes),
            special=True,
        ),
        Plate(
            f"modes{suffix}",
            section,
            "The same, one map for each edit",
            f"Beside the appendix's maps, one for each edit{note}.",
            MAP_SAYS,
            f"Raw IIA, with the base of the unpatched counterfactual; {PLACES}. Hatched: not traced.",
            (of(TRACING, boxes=boxes),),
            drawings.modes(boxes),
        ),
        Plate(
            f"readout{suffix}",
            section,
            "Where the state is resolved",
            f"Beside the appendix's readout diagnostic{note}.",
            "There, patching the end of the swap helps the question about the asked box, and patching the readout helps"
            " every question.",
            "Change of the margin by layer, for each question and both places of the patch.",
            (of(DIAGNOSTIC, boxes=boxes),),
            drawings.diagnostic(boxes),
            shares="y",
        ),
    )


VARIED = ("controlled", "isolated", "third slot", "random directions")
PLATES: tuple[Plate, ...] = (
    *tracing(3, "tracing", "", ""),
    *tracing(5, "five", "-five", ", with five boxes and a swap that distracts"),
    Plate(
        "circuit",
        "circuit",
        "The circuit",
        "Beside the paper's circuit diagram.",
        "There, groups E to A stand at their tokens, and information goes down and to the right.",
        "Heads of the circuit that is judged: a row for each token, layers from left to right.",
        (of(ABLATION, beside="groups"), of(PATHS)),
        drawings.circuit,
    ),
    Plate(
        "links",
        "circuit",
        "The path diagram, with what was measured",
        "Beside the paper's circuit diagram, whose arrows have no numbers.",
        "There, E by V to D, D by Q to C, C by V to B, B by Q to A.",
        "Groups from the context to the answer; on each arrow the component of the receiver (Q, V, K with V) and the"
        " logits that the answer loses if the sender is as in a noise prompt, with 95 % intervals.",
        (of(PATHS),),
        drawings.links,
    ),
    Plate(
        "graph",
        "circuit",
        "What a search finds that is not told where to look",
        "Not in the paper, whose stages look at one token each.",
        "",
        "Heads at their tokens, layers from left to right; an arrow is as thick as its effect in logits, dashed"
        " where it works against the answer.",
        (),
        drawings.graph,
        special=True,
    ),
    Plate(
        "pruned",
        "circuit",
        "What our own discovery leaves",
        "Beside the paper's table of heads after pruning.",
        "",
        "Heads that path patching found here and pruning left: a row for each token, layers from left to right.",
        (of(PRUNING), of(ABLATION, beside="heads")),
        drawings.left,
    ),
    Plate(
        "overlap",
        "circuit",
        "Which heads are found again",
        "Beside the paper's table of heads by group.",
        "It prints the heads, and no scores.",
        "Darker: the head's noise costs more of the answer. Squares: the circuit that is judged; crosses: found here.",
        (of(PATHS), of(PRUNING)),
        drawings.overlap,
    ),
    Plate(
        "roles",
        "roles",
        "What the groups do",
        "Beside the paper's bars of head roles.",
        "There, B moves the pointed object and leaves the new one; the four printed numbers are diamonds.",
        "Change of logit of the pointed object (filled) and of the new object (hatched), for each group: as the code"
        " was released, as the text says, and under the controlled procedure.",
        (of(ROLES),),
        drawings.bars,
        shares="y",
    ),
    Plate(
        "dots",
        "binding",
        "Shifts of queries and keys",
        "Beside the paper's tables of the Q/K interventions.",
        "There, query and keys each redirect, and both together cancel; printed numbers are diamonds.",
        "Change of the log attention ratio, of the logit margin, and share of switches, with 95 % intervals.",
        (of(BINDING, variation="published"),),
        drawings.dots,
        shares="x",
    ),
    Plate(
        "heads",
        "binding",
        "The same shifts, head by head",
        "Not in the paper, whose averages hide single heads.",
        "",
        "dR of every head of group B for the query, the keys and both.",
        (of(BINDING, variation="published"),),
        drawings.by_head,
        shares="x",
    ),
    Plate(
        "variations",
        "robust",
        "The same shifts, run in other ways",
        "Not in the paper, which runs one ordered pair of slots on keys of whole KV groups.",
        "",
        "dR for the query, the keys and both: as published, controlled, on single heads, and to the third slot.",
        tuple(of(BINDING, variation=name) for name in VARIED),
        drawings.variations,
        shares="x",
    ),
)
