"""A circuit: a set of heads, each in a group that acts at a role; and its file format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

SCHEMA = 1
ORDER = ["layer", "head"]
AT = " at "
"""Separates a group's name from its role in files, for groups with several roles."""


Head: TypeAlias = tuple[int, int]
"""(layer, head); the MLP of a layer is (layer, MLP)."""
MLP = -1
"""In place of a head's number: the MLP of the layer. In files and texts it is `mlp`."""


def depth(node: Sequence[Any]) -> int:
    """The place of a head or an MLP (layer, head, ...) in a forward pass: it reads from those of smaller depth. Where
    both branches of a layer read its input, an MLP reads nothing from the heads of its layer."""
    return 2 * int(node[0]) + int(node[1] == MLP)


def forward_order(node: Sequence[Any]) -> tuple[int, tuple[Any, ...]]:
    """A key that sorts heads and MLPs as a forward pass computes them."""
    return depth(node), tuple(node)


def head_text(head: int) -> str:
    """The number of a head, or `mlp`."""
    return "mlp" if head == MLP else str(head)


def head_name(layer: int, head: int) -> str:
    """`5.3` for a head, `5.mlp` for an MLP."""
    return f"{layer}.{head_text(head)}"


class CircuitError(ValueError):
    """A circuit that does not fit the model, or a file that is no circuit."""


class CircuitHead(NamedTuple):
    """A head, or the MLP of a layer (`head` is `MLP`), and the role at which its group acts. A head in two groups is
    two of these."""

    group: str
    layer: int
    head: int
    role: str


@dataclass(frozen=True)
class Circuit:
    """Heads in groups; `settings` describe their discovery."""

    heads: tuple[CircuitHead, ...]
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if len(set(self.heads)) != len(self.heads):
            raise CircuitError("a circuit lists a head twice in one group")

    @classmethod
    def of(cls, heads: Mapping[str, Iterable[Head]]) -> Circuit:
        """A circuit from (layer, head) pairs by the name of their token (`readout`, `giver`, `contains@giver+1`); each
        token is a group."""
        try:
            if not all(isinstance(role, str) for role in heads):
                raise TypeError
            return cls(
                tuple(
                    CircuitHead(role, int(layer), int(head), role)
                    for role, pairs in heads.items()
                    for layer, head in pairs
                )
            )
        except (AttributeError, TypeError, ValueError):
            raise CircuitError(
                "give (layer, head) pairs by the name of a token, such as {'readout': [(6, 3), (6, 0)]}; got"
                f" {heads!r:.60}"
            ) from None

    @property
    def groups(self) -> dict[str, tuple[CircuitHead, ...]]:
        """The heads by group, in their order."""
        names = dict.fromkeys(head.group for head in self.heads)
        return {name: tuple(head for head in self.heads if head.group == name) for name in names}

    def group(self, name: str) -> tuple[tuple[int, int], ...]:
        """The (layer, head) pairs of a group, each once, even if it acts at several tokens."""
        return tuple(dict.fromkeys((head.layer, head.head) for head in self.heads if head.group == name))

    @property
    def places(self) -> dict[tuple[str, str], tuple[CircuitHead, ...]]:
        """The heads by group and role."""
        names = dict.fromkeys((head.group, head.role) for head in self.heads)
        return {name: tuple(head for head in self.heads if (head.group, head.role) == name) for name in names}

    @property
    def mlps(self) -> tuple[CircuitHead, ...]:
        """Its MLPs."""
        return tuple(head for head in self.heads if head.head == MLP)

    @property
    def pairs(self) -> int:
        """The number of head-position pairs, which the paper calls components."""
        return len({(head.layer, head.head, head.role) for head in self.heads})

    @property
    def unique(self) -> int:
        """The number of distinct heads, at any positions."""
        return len({(head.layer, head.head) for head in self.heads})

    def without(self, removed: Iterable[CircuitHead | Head]) -> Circuit:
        """The circuit without some heads; a (layer, head) pair is removed at every token."""
        excluded = set(removed)
        absent = {item for item in excluded if len(item) == 2} - {(head.layer, head.head) for head in self.heads}
        if absent:
            raise CircuitError(f"the circuit has no head {min(absent)}")
        kept = (head for head in self.heads if not {head, (head.layer, head.head)} & excluded)
        return Circuit(tuple(kept), self.settings)

    def check(self, n_layers: int, n_heads: int) -> Circuit:
        """Return the circuit; raise if one of its heads does not exist in a model of that size."""
        outside = [head for head in self.heads if not (0 <= head.layer < n_layers and MLP <= head.head < n_heads)]
        if not outside:
            return self
        swapped = all(0 <= head.head < n_layers and 0 <= head.layer < n_heads for head in self.heads)
        hint = " Read as (head, layer) all of them would fit: the file seems to list head first." if swapped else ""
        raise CircuitError(
            f"{len(outside)} heads do not exist in a model of {n_layers} layers x {n_heads} heads, the first is "
            f"[layer {outside[0].layer}, head {outside[0].head}].{hint}"
        )

    def lines(self) -> list[str]:
        """The circuit as text, a line per group and role."""
        groups = [
            f"{name}  at {role:18} " + " ".join(head_name(head.layer, head.head) for head in sorted(heads))
            for (name, role), heads in self.places.items()
        ]
        return [*groups, f"{self.pairs} head-position pairs, {self.unique} distinct heads (layer.head)"]


@dataclass(frozen=True)
class Owner:
    """The model that a circuit belongs to."""

    name: str
    fingerprint: str
    n_layers: int
    n_heads: int


def save(circuit: Circuit, owner: Owner, path: Path) -> None:
    """Write a circuit and its model to a file."""
    path.write_text(to_json(circuit, owner))


def to_json(circuit: Circuit, owner: Owner) -> str:
    """A circuit and its model as JSON (`schemas/circuit.json`). A group at several tokens has an entry for each."""
    roles = Counter(name for name, _ in circuit.places)
    groups = {
        name if roles[name] == 1 else f"{name}{AT}{role}": {
            "role": role,
            "heads": [[head.layer, "mlp" if head.head == MLP else head.head] for head in heads],
        }
        for (name, role), heads in circuit.places.items()
    }
    content = {"schema": SCHEMA, "order": ORDER, "model": asdict(owner), "groups": groups}
    content["settings"] = dict(circuit.settings)
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def head_number(head: Any) -> int:
    """The number of a head in a file; only the word `mlp` is an MLP."""
    if head != "mlp" and int(head) < 0:
        raise ValueError(f"there is no head {head}")
    return MLP if head == "mlp" else int(head)


def load(path: Path, owner: Owner) -> Circuit:
    """Read a circuit of this model; raise a CircuitError for any other file."""
    try:
        content = json.loads(path.read_text())
        if isinstance(content, dict) and "nodes" in content:
            raise CircuitError(
                f"{path} is a graph, not a circuit; discover --positions all --save writes the circuit beside it, and"
                " in Python model.save(graph.circuit(), path)"
            )
        model, schema, order = content["model"], content["schema"], content["order"]
        model_name, weights = model["name"], model["fingerprint"]
        heads = tuple(
            CircuitHead(name.partition(AT)[0], int(layer), head_number(head), str(group["role"]))
            for name, group in content["groups"].items()
            for layer, head in group["heads"]
        )
        settings = dict(content.get("settings", {}))
    except CircuitError:
        raise
    except FileNotFoundError:
        raise CircuitError(f"{path}: no such file; make one with: rebinding discover --save {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CircuitError(f"{path} is not a circuit file of this project: {error!r}") from None
    if schema != SCHEMA:
        raise CircuitError(f"{path} has circuit schema {schema}; this version reads {SCHEMA}")
    if order != ORDER:
        raise CircuitError(f"{path} lists heads as {order}, expected {ORDER}: swap the numbers of each pair")
    if weights != owner.fingerprint and model_name == owner.name:
        raise CircuitError(
            f"{path} was found on other weights of {model_name} ({str(weights)[:12]}) than those that are loaded"
            f" ({owner.fingerprint[:12]}): in another dtype, or at another revision. Load the model as it was then"
            " (dtype= of rebinding.load, --dtype on the command line), or run discover again."
        )
    if weights != owner.fingerprint:
        raise CircuitError(
            f"{path} belongs to {model_name} (weights {str(weights)[:12]}), not to {owner.name} "
            f"(weights {owner.fingerprint[:12]}): heads of one model mean nothing in another. Run discover on this one."
        )
    return Circuit(heads, settings).check(owner.n_layers, owner.n_heads)
