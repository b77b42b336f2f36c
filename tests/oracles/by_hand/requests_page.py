"""The requests of every row, as docs/requests.md shows them.

`python -m tests.oracles.by_hand.requests_page` writes the lists of that page again.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rebinding.evidence import Request
from rebinding.experiments.ablation import DRAWS, PROMPTS_OF_MEANS
from rebinding.experiments.circuit.request import ORDERS, RANDOM_SETS, Pruning
from rebinding.experiments.paths.request import STATIC_PAIRS, Paths
from rebinding.experiments.unedited import FLOOR_PROMPTS, IN_16_BITS, REPLAYED_PROMPTS
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper.circuit import Circuit, Head, save
from rebinding.paper.procedure import BUILTIN_PROCEDURES, builtin_procedure
from rebinding.planted import build
from rebinding.study import model_under_test as sizes
from rebinding.study.engine import Session
from rebinding.study.gates import Gates
from rebinding.task.designs import Design
from rebinding.verdicts import Gate
from tests.claims.run_claims import save_model
from tests.oracles.by_hand.judgements import Judged, Row, judged, limit_batches

PAGE = Path(__file__).parents[3] / "docs" / "requests.md"
LIST = re.compile(r"(?<=<!-- list -->\n```\n).*?(?=```)", re.DOTALL)
STANDS_FOR, E_HEADS = "gemma2-9b", 2
LEFT_OUT = ("draws", "orders", "random_sets", "block")
"""Sizes that are small in a test."""
DEFAULT = {"split": "train", "boxes": 3, "operations": 1, "verb": "swap", "distractor": None, "pairing": [],
         "narrative": False, "cut": 0}  # fmt: skip
"""Settings of prompts that are not printed."""
IDS = 4
"""The number of ids that are printed."""
WIDTH = 118
SIZES: Mapping[str, int | Mapping[Any, int]] = {
    "prompts of gates": sizes.PAPER["able"],
    "prompts of gates, five boxes": sizes.PAPER["able_wide"],
    "prompts of path patching": sizes.PAPER["paths"],
    "prompts of pruning": sizes.PAPER["pruned"],
    "prompts of ablation, for all rows": sizes.PAPER["evaluated"],
    "prompts of means": PROMPTS_OF_MEANS,
    "prompts of directions, per slot": sizes.DIRECTIONS,
    "sets of directions": {name: builtin_procedure(name).binding.batches for name in BUILTIN_PROCEDURES},
    "random directions": sizes.DRAWS,
    "random circuits": DRAWS,
    "random sets to compare with a head": RANDOM_SETS,
    "orders of pruning": ORDERS,
    "prompts of static path patching": STATIC_PAIRS,
    "prompts of replays": REPLAYED_PROMPTS,
    "prompts of the noise floor": {"in 32 bits": FLOOR_PROMPTS, "in 16": IN_16_BITS},
}
"""Sizes on the paper's models; a test uses smaller ones."""


class BelievingGates(Gates):
    """Gates of a model that can do everything, so that claims on tasks that the plant has not learned go on."""

    def check_chance(self, session: Session, stories: Design, n: int, cut: int = 0) -> Gate:
        return replace(super().check_chance(session, stories, n, cut), passed=True)

    def check_group(self, circuit: Circuit, group: str, heads: Sequence[Head], origin: str) -> Gate:
        return replace(super().check_group(circuit, group, heads, origin), passed=True)


def judge_paper_claims(model_folder: Path) -> Judged:
    """Judge the rows on a folder that stands in for a model of the paper, under the paper's conventions, with every
    candidate for the published discovery. Two batches of directions stand for ten. Group E keeps two heads, so that
    its layer has others to draw from."""
    plant = build("pointer", "gemma2", boxes=5)
    folder = save_model(plant.model, plant.tokenizer, model_folder / "model")
    heads = Circuit(plant.circuit)
    heads = heads.without([head for head in heads.heads if head.group == "E"][E_HEADS:])
    save(heads, owner_of(load(str(folder))), model_folder / "circuit.json")
    return judged(f"{STANDS_FOR}={folder}", model_folder / "circuit.json", ways=limit_batches(), gates=BelievingGates)


def lists(run: Judged) -> tuple[str, str, str, str, str]:
    """The lists of the page: numbered requests, their numbers by row, requests of gates, parts, sample sizes."""
    rows, grounds = run.rows, {ground for row in run.rows for ground in row.grounds}
    lines = {line: None for row in rows for line in map(describe_request, row.grounds)}
    number = {line: at for at, line in enumerate(lines, start=1)}
    gates = "".join(
        f"{_wrapped(describe_request(request))}\n" for request in run.evidence_by_request if request not in grounds
    )
    requests_text = "".join(f"{at:3}  {_wrapped(line)}\n" for line, at in number.items())
    width = max(len(row.claim.id) for row in rows)
    rows_text = "".join(
        f"{row.claim.id:{width}}  N {row.claim.n:3}  "
        f"{spans(number[describe_request(ground)] for ground in row.grounds)}\n"
        for row in rows
    )
    parts_text = "".join(
        f"{_wrapped(f'{row.claim.id}: {names}')}\n" for row in rows if (names := "; ".join(part_names(row)))
    )
    return (
        requests_text,
        rows_text,
        gates,
        parts_text,
        "".join(f"{name:36} {_format_size(number)}\n" for name, number in SIZES.items()),
    )


def _format_size(number: int | Mapping[Any, int]) -> str:
    return str(number) if isinstance(number, int) else ", ".join(f"{key} {value}" for key, value in number.items())


def part_names(row: Row) -> list[str]:
    """The names of the parts of a row."""
    return list(dict.fromkeys(part.part[0] for part in row.parts))


def describe_request(request: Request) -> str:
    """The kind of a request, and the fields that say what is measured."""
    fields = dict(request.plain)
    if isinstance(request, Pruning) or (isinstance(request, Paths) and request.senders is None):
        fields.pop("circuit", None)  # heads from an earlier result
        fields.pop("receivers", None)
    return f"{type(request).__name__}: {', '.join(_fields(fields))}"


def spans(numbers: Iterable[int]) -> str:
    """Numbers in ascending order; a run of consecutive numbers is given by its ends."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "nothing"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)


def _fields(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if name not in LEFT_OUT and value is not None:
            yield f"{name} {FORMATS.get(name, _value)(value)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"[{_prompts(value)}]" if "ids" in value else f"({', '.join(_fields(value))})"
    return (" ".join(map(_value, value)) or "none") if isinstance(value, list) else str(value)


def _heads(heads: str | Iterable[tuple[int, int]]) -> str:
    """Layer and head; for a stage, the letter of the receiving group."""
    return heads if isinstance(heads, str) else " ".join(f"{layer}.{head}" for layer, head in heads)


def _groups(groups: Iterable[tuple[str, Iterable[tuple[int, int]]]]) -> str:
    return "; ".join(f"{group} {_heads(heads)}" for group, heads in groups)


def _circuit(heads: Iterable[tuple[str, int, int, str]]) -> str:
    """The number of heads in each group."""
    return " ".join(f"{n} {group}" for group, n in Counter(group for group, *_ in heads).items())


def _slots(slots: Iterable[Any]) -> str:
    """Ordered pairs of slots, or the prompts between which directions are measured."""
    return " ".join(_value(slot) if isinstance(slot, Mapping) else "-".join(map(str, slot)) for slot in slots)


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "circuit": _circuit, "from_noise": _circuit, "groups": _groups, "slots": _slots,
    "heads": _heads, "receivers": _heads, "senders": _heads,
}  # fmt: skip
"""Fields with a format of their own."""


def _prompts(prompts: Mapping[str, Any]) -> str:
    ids = [str(number) for number in prompts["ids"]]
    printed = " ".join(ids[:IDS]) + (f" ... ({len(ids)})" if len(ids) > IDS else "")
    unusual = [f"{name} {_value(prompts[name])}" for name, default in DEFAULT.items() if prompts[name] != default]
    return ", ".join([str(prompts["design"]), *unusual, f"ids {printed}"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        new = iter(lists(judge_paper_claims(Path(folder))))
    PAGE.write_text(LIST.sub(lambda _: next(new), PAGE.read_text("utf-8")), "utf-8")
