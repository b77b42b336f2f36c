"""A plant as text: its heads line by line, its circuit by group, and its truth table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from rebinding.planted.language import Line
from rebinding.planted.plant import Plant, build, parse

WIDTH = 110


def table(name: str) -> str:
    """The plant of a name as text."""
    plant = build(parse(name))
    return "\n".join([*_heading(plant), "", *_heads(plant), "", *_circuit(plant), "", *_truth(plant)])


def plain(name: str) -> dict[str, Any]:
    """The plant of a name for programs: its circuit, and the verdict that each row has on it."""
    plant = build(parse(name))
    return {
        "name": plant.specification.name,
        "circuit": [head._asdict() for head in plant.circuit],
        "truth": {
            row: {"verdict": str(truth), "n": truth.n, "reason": truth.reason} for row, truth in plant.truth.items()
        },
    }


def sentence_of(line: Line) -> str:
    """A line of the wiring as a sentence."""
    places = ", ".join(f"{kind} {distance} back" for kind, distance in line.distances)
    parts = [f"at {line.at}", f"attends to {line.look}"]
    parts += [f"({places})"] if places else []
    parts += [f"where {line.where}"] if line.where else []
    parts += [f"preferring {line.prefer}"] if line.prefer else []
    return " ".join(parts) + f"; writes {line.write}"


def _heading(plant: Plant) -> Iterator[str]:
    config, specification = plant.model.config, plant.specification
    yield specification.name
    yield (
        f"{type(plant.model).__name__}: {config.num_hidden_layers} layers, {config.num_attention_heads} heads on"
        f" {config.num_key_value_heads} KV heads of {config.head_dim}, hidden {config.hidden_size};"
        f" {len(plant.decoys)} decoys; up to {specification.boxes} boxes,"
        f" softness {specification.softness:g}"
    )


def _heads(plant: Plant) -> Iterator[str]:
    yield "heads (layer.head)"
    for seat in sorted(plant.seats, key=lambda seat: (seat.line.layer, seat.head)):
        place = f"{seat.line.layer}.{seat.head}"
        yield f"  {place:>5}  {seat.line.group or '-'}  {seat.line.name:12} {sentence_of(seat.line)}"


def _circuit(plant: Plant) -> Iterator[str]:
    yield "circuit"
    for group, heads in groupby(plant.circuit, key=lambda head: head.group):
        members = list(heads)
        yield f"  {group}  at {members[0].role:24} " + " ".join(f"{head.layer}.{head.head}" for head in members)


def _truth(plant: Plant) -> Iterator[str]:
    yield "truth table (n: prompts that decide the row)"
    for row, truth in plant.truth.items():
        yield f"  {row:46} {truth!s:24} n={truth.n}"
        yield from textwrap.wrap(truth.reason, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
