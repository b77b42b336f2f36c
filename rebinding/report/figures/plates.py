"""Every figure of the paper: which evidence it needs, what the paper's figure shows, and what ours does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matplotlib.figure import Figure

from rebinding.report.figures import drawings
from rebinding.report.folder import Model


@dataclass(frozen=True)
class Plate:
    """A figure that is drawn for every model. `uses` are how the names of its evidence begin; `draw` gives None where
    this model has none of it."""

    key: str
    section: str
    title: str
    stands_for: str
    says: str
    shows: str
    uses: tuple[str, ...]
    draw: Callable[[Model], Figure | None]

    def rests_on(self, evidence: Iterable[str]) -> bool:
        """Whether a claim with this evidence is to be read beside this figure."""
        return any(name.startswith(self.uses) for name in evidence)


MAP_SAYS = (
    "That figure has colours and no numbers: labels matter from the swap sentence on, the object goes from its own"
    " token to the last one."
)
PLACES = "layers from bottom to top, tokens with a role from left to right"


def tracing(boxes: int, section: str, suffix: str, note: str) -> tuple[Plate, ...]:
    """The three figures of section 3."""
    return (
        Plate(
            f"tracing{suffix}",
            section,
            "Where the answer comes from",
            f"Beside the paper's figure of information flow{note}.",
            MAP_SAYS,
            f"Normalised IIA of three edits in three colours; {PLACES}. White: nothing, or not traced with that edit.",
            (f"tracing-{boxes}-",),
            drawings.combined(boxes),
        ),
        Plate(
            f"modes{suffix}",
            section,
            "The same, one map for each edit",
            f"Beside the appendix's maps, one for each edit{note}.",
            MAP_SAYS,
            f"Raw IIA, with the base of the unpatched counterfactual; {PLACES}. Hatched: not traced.",
            (f"tracing-{boxes}-",),
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
            (f"diagnostic-{boxes}-",),
            drawings.diagnostic(boxes),
        ),
    )


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
        ("ablated-groups", "link-"),
        drawings.circuit,
    ),
    Plate(
        "pruned",
        "circuit",
        "What our own discovery leaves",
        "Beside the paper's table of heads after pruning.",
        "",
        "Heads that path patching found here and pruning left: a row for each token, layers from left to right.",
        ("pruning", "ablated-heads"),
        drawings.left,
    ),
    Plate(
        "overlap",
        "circuit",
        "Which heads are found again",
        "Beside the paper's table of heads by group.",
        "It prints the heads, and no scores.",
        "Darker: the head's noise costs more of the answer. Squares: the circuit that is judged; crosses: found here.",
        ("paths-", "pruning"),
        drawings.overlap,
    ),
    Plate(
        "roles",
        "roles",
        "What the groups do",
        "Beside the paper's bars of head roles.",
        "There, B moves the pointed object and leaves the new one; the four printed numbers are diamonds.",
        "Change of logit of the pointed object (filled) and of the new object (hatched), for each group.",
        ("roles-",),
        drawings.bars,
    ),
    Plate(
        "dots",
        "binding",
        "Shifts of queries and keys",
        "Beside the paper's tables of the Q/K interventions.",
        "There, query and keys each redirect, and both together cancel; printed numbers are diamonds.",
        "Change of the log attention ratio, of the logit margin, and share of switches, with 95 % intervals.",
        ("binding-published-",),
        drawings.dots,
    ),
    Plate(
        "heads",
        "binding",
        "The same shifts, head by head",
        "Not in the paper, whose averages hide single heads.",
        "",
        "dR of every head of group B for the query, the keys and both.",
        ("binding-published-",),
        drawings.by_head,
    ),
    Plate(
        "variations",
        "robust",
        "The same shifts, run in other ways",
        "Not in the paper, which runs one ordered pair of slots on keys of whole KV groups.",
        "",
        "dR for the query, the keys and both: as published, on single heads, to the third slot, over all slot pairs.",
        ("binding-isolated", "binding-third", "binding-counterbalanced", "binding-random"),
        drawings.variations,
    ),
)
