"""One function a figure: from a model's evidence to the figure, or None where the model has none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.evidence.request import Facet
from rebinding.experiments.binding.kinds import BINDING
from rebinding.experiments.circuit import summary
from rebinding.experiments.circuit.kinds import PATHS, PRUNING
from rebinding.experiments.roles.kinds import ROLES
from rebinding.experiments.tracing.kinds import DIAGNOSTIC, EVERY_TOKEN, TRACING
from rebinding.experiments.tracing.panels import PANELS
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.graph import of_plain
from rebinding.report.figures.binding import head_figure, table_figure, variation_figure
from rebinding.report.figures.circuit import draw_circuit
from rebinding.report.figures.graph import draw_graph
from rebinding.report.figures.links import LINKS, Link, path_diagram, strength
from rebinding.report.figures.overlap import Heads, overlap_grid
from rebinding.report.figures.role_maps import combined_role_map, mode_role_maps
from rebinding.report.figures.roles import Bars, role_bars
from rebinding.report.figures.tracing import combined_map, readout_figure
from rebinding.report.folder import Model
from rebinding.report.intervals import Interval
from rebinding.report.printed import printed

MAIN = ("q", "k_both", "qk")


def combined(boxes: int) -> Callable[[Model], Figure | None]:
    """The three roles of the tracing figure in one map."""

    def draw(model: Model) -> Figure | None:
        found = by_mode(model, boxes)
        maps: dict[str, Evidence] = {str(panel): found[one.mode] for panel, one in PANELS.items() if one.mode in found}
        return combined_role_map(maps) if maps else None

    return draw


def flow(boxes: int) -> Callable[[Model], Figure | None]:
    """The same over all tokens, where all were traced, in the published stories: there a token has the same role in
    every prompt."""
    told: dict[str, Facet] = {"boxes": boxes, "roles": EVERY_TOKEN, "design": "published"}

    def draw(model: Model) -> Figure | None:
        found = {panel: model.one(TRACING, mode=one.mode, **told) for panel, one in PANELS.items()}
        maps = {panel: evidence for panel, evidence in found.items() if evidence is not None}
        return combined_map(maps) if maps else None

    return draw


def modes(boxes: int) -> Callable[[Model], Figure | None]:
    """One map for every mode."""

    def draw(model: Model) -> Figure | None:
        found = by_mode(model, boxes)
        return mode_role_maps(found) if found else None

    return draw


def diagnostic(boxes: int) -> Callable[[Model], Figure | None]:
    """The readout diagnostic."""

    def draw(model: Model) -> Figure | None:
        found = model.one(DIAGNOSTIC, boxes=boxes, design="published") or model.one(DIAGNOSTIC, boxes=boxes)
        return readout_figure(found) if found else None

    return draw


def by_mode(model: Model, boxes: int) -> Mapping[str, Evidence]:
    """The tracing maps by mode, of the published stories where there are any."""
    found: dict[str, Evidence] = {}
    for facets in ({}, {"design": "published"}):
        names = dict.fromkeys(str(one.settings["mode"]) for one in model.of(TRACING, boxes=boxes, **facets).values())
        maps = {mode: model.one(TRACING, boxes=boxes, mode=mode, **facets) for mode in names}
        found |= {mode: one for mode, one in maps.items() if one is not None}
    return found


def circuit(model: Model) -> Figure | None:
    """The circuit that is judged."""
    heads = tuple(CircuitHead(*head) for head in model.about.get("circuit", []))
    return draw_circuit(Circuit(heads), int(model.about["layers"]), "the circuit that is judged") if heads else None


def links(model: Model) -> Figure | None:
    """What each group of the circuit does to the answer through the next one."""
    heads = _grouped(model.about.get("circuit", []))
    roles = {group: role for group, _, _, role in reversed(model.about.get("circuit", []))}
    found = [Link(*link, _strength(model, link, heads)) for link in LINKS]
    if not any(one.strength for one in found):
        return None
    return path_diagram(found, roles, {group: len(mine) for group, mine in heads.items()})


def _strength(model: Model, link: tuple[str, str, str], heads: Mapping[str, Heads]) -> Interval | None:
    """Of the group alone as sender; None where that was not run. Rows say which heads sent."""
    sender, _, component = link
    stage = f"{sender} to {'logits' if component == 'direct' else component} at "
    run = [one for one in model.of(PATHS).values() if str(one.settings["facets"].get("stage", "")).startswith(stage)]
    mine = sorted(heads.get(sender, ()))
    alone = [one for one in run if sorted({*zip(one.rows["layer"], one.rows["head"], strict=True)}) == mine]
    controlled = [one for one in alone if one.settings["facets"].get("frozen") == "all"] or alone
    return strength(controlled[0], mine) if mine and controlled else None


def graph(model: Model) -> Figure | None:
    """What a search found that was not told where to look."""
    told = model.about.get("graph")
    return draw_graph(of_plain(told), int(model.about["layers"]), "found") if told else None


def left(model: Model) -> Figure | None:
    """What pruning leaves of the circuit that was discovered, in the published order of the walk."""
    found = model.one(PRUNING)
    if found is None or "layers" not in model.about:
        return None
    kept = summary.left(found)
    return draw_circuit(kept, int(model.about["layers"]), "discovered and pruned") if kept.heads else None


def overlap(model: Model) -> Figure | None:
    """Which heads each stage of path patching finds, beside those of the circuit that is judged."""
    judged, ours = _grouped(model.about.get("circuit", [])), _grouped(model.discovered())
    return overlap_grid(model.stages, judged, ours) if model.stages else None


def _grouped(heads: Iterable[tuple[str, int, int, str]]) -> dict[str, Heads]:
    groups: dict[str, list[tuple[int, int]]] = {}
    for group, layer, head, _ in heads:
        groups.setdefault(group, []).append((layer, head))
    return dict(groups)


def bars(model: Model) -> Figure | None:
    """Roles of the groups, once for every way in which they were patched."""
    ways = {name: both for name, facets in role_ways(model).items() if (both := _both(model, facets))}
    if not ways:
        return None
    named = {name.removeprefix("roles."): value for name, value in printed(model.about).items() if "roles." in name}
    by_group = {(name.partition(".")[0], name.partition(".")[2]): value for name, value in named.items()}
    return role_bars(ways, printed=by_group)


WAYS = {"published": "as released", "paper": "as the text says", "own_role": "controlled"}
"""What the ways of patching are called, in the order in which they are drawn."""


BY_WAY = ("mode", "direction", "design", "cut")


def role_ways(model: Model) -> Mapping[str, Mapping[str, Facet]]:
    """The facets of every way in which this model's groups were patched, by a name for people."""
    told = [one.settings["facets"] for one in model.of(ROLES).values()]
    found: list[Mapping[str, Facet]] = [{key: one.get(key) for key in BY_WAY} for one in told]
    ordered = sorted(found, key=lambda one: (list(WAYS).index(str(one["mode"])), str(one)))
    return {_way(one): one for one in ordered}


def _way(facets: Mapping[str, Facet]) -> str:
    told = f"{WAYS[str(facets['mode'])]}: {facets['design']}, direction {facets['direction']}"
    return f"{told}{_early(facets['cut'])}"


def _early(cut: Facet) -> str:
    return f", {cut} tokens before ':'" if cut else ""


def _both(model: Model, facets: Mapping[str, Facet]) -> Bars | None:
    control, pointer = (model.one(ROLES, pairs=pairs, **facets) for pairs in ("content_control", "pointer"))
    return None if control is None or pointer is None else (control, pointer)


def dots(model: Model) -> Figure | None:
    """The Q/K table as dots."""
    found = model.one(BINDING, variation="published", cut=None)
    if found is None:
        return None
    cells = [name.split(".") for name in printed(model.about) if name.startswith("binding.")]
    values = {(row, measure): printed(model.about)[f"binding.{row}.{measure}"] for _, row, measure in cells}
    return table_figure(
        found, printed={("random_qk" if row == "random" else row, what): value for (row, what), value in values.items()}
    )


def by_head(model: Model) -> Figure | None:
    """dR of every head of group B."""
    found = model.one(BINDING, variation="published", cut=None)
    return head_figure(found, conditions=MAIN) if found else None


def variations(model: Model) -> Figure | None:
    """The same shifts, run in other ways."""
    cuts = {one.settings["facets"].get("cut") for one in model.of(BINDING).values()}
    found = {
        f"{name}{_early(cut)}": one
        for name in ("published", "controlled", "isolated", "third slot")
        for cut in sorted(cuts, key=lambda cut: cut or 0)
        if (one := model.one(BINDING, variation=name, cut=cut)) is not None
    }
    return variation_figure(found, conditions=MAIN) if len(found) > 1 else None
