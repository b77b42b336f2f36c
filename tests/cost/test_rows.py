"""Every claim asks a model without numbers for what it asks a model that runs: what docs/requests.md lists.

On the full shapes of the paper's models a head count, window, mask or norm that does not fit 48 layers fails here, and
not when the weights have been paid for.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from claims.catalogue import catalogue
from fixtures.cost import CostedModel
from rebinding.cost import source
from rebinding.cost.evidence import PassingGates
from rebinding.cost.hollow_model import ModelFacts
from rebinding.cost.source import CostEngine
from rebinding.cost.table import Accelerator
from rebinding.evidence import Request
from rebinding.experiments.paths.request import Paths
from rebinding.models import ALIASES
from rebinding.models.loaded_model import owner_of
from rebinding.models.shapes import shape_config
from rebinding.paper.circuit import Circuit, CircuitHead, save
from rebinding.study.gates import EvidenceLog
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study

pytestmark = pytest.mark.slow
LISTS = re.compile(r"(?<=<!-- list -->\n```\n).*?(?=```)", re.DOTALL)
PAGE = Path(__file__).parents[2] / "docs" / "requests.md"
ROLES = {"A": "readout", "B": "readout", "C": "question_box", "D": "swap_partner", "E": "context_partner"}
LAYERS = {"A": 3, "B": 3, "C": 2, "D": 1, "E": 0}
HEADS = Circuit(tuple(CircuitHead(group, LAYERS[group], 1, role) for group, role in ROLES.items()))
ON_NUMBERS = ("Paths", "Pruning")
"""Kinds of which more are asked where discovery finds more: how many there are hangs on numbers."""
EXTRA_REQUESTS = {"circuit.minimal": {"Ablation": 1}}
"""What rows ask for besides: the head by head ablation, where what was discovered does the task alone. On the page's
model and three prompts it does not, and the row ends there."""
N_ROWS = 9
"""Prompts of which all are right more often than chance would have it: rows that want this of evidence ask on."""
SEARCHING = {
    "beyond.route_through_swap_labels": "crossings",
    "beyond.groups_at_their_places": "crossings",
    "circuit.recovers_most.controlled": "searched circuit",
    "circuit.near_full.controlled": "searched circuit",
}


class RowRequests(NamedTuple):
    """What became of a row: its requests, what stopped it, and what is not costed."""

    requests: tuple[Request, ...]
    costs: dict[str, Any]


def small(name: str, tokens: int | None) -> ModelFacts:
    """gemma2-9b with few and narrow layers, and one head in each group."""
    config = shape_config("gemma2-9b")
    narrow = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 2000}
    wide = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
    for key, value in {**narrow, **wide, "layer_types": ["sliding_attention", "full_attention"] * 2}.items():
        setattr(config, key, value)
    return ModelFacts("gemma2-9b", config, "bfloat16", 83, "gemma", HEADS)


@pytest.fixture(scope="module")
def row_requests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RowRequests]:
    """Every row on the small model, with its circuit from a file, as that of gemma2-9b would not fit it."""
    file, model = tmp_path_factory.mktemp("circuit") / "circuit.json", parse_model("gemma2-9b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "model_facts", small)
        costs = CostEngine(Accelerator(int(80e9), 4e14, 3e12))
        owner = owner_of(costs.loaded_model(model.name, dtype="bfloat16", device="auto", store=None))
        save(HEADS, owner, file)
        case, log = (
            ModelUnderTest(model, Settings((model,), samples=N_ROWS, circuit=str(file), engine=costs)),
            EvidenceLog(),
        )
        costed_model = CostedModel(model, costs, case, Study.of(case, log, PassingGates))
        by_row = {}
        for row in catalogue():
            costed = costed_model.cost(row.claim, row.test)
            by_row[row.claim.id] = RowRequests(tuple(use.request for use in log.used if use.supports_verdict), costed)
    return by_row


def expected_counts() -> dict[str, Counter[str]]:
    """How many requests of each kind every row asks for, as the page has it."""
    requests, expected_rows, *_ = LISTS.findall(PAGE.read_text("utf-8"))
    kinds = {int(number): kind for number, kind in re.findall(r"^ *(\d+)  (\w+):", requests, re.MULTILINE)}
    by_row = {}
    for row, spans in re.findall(r"^(\S+) +N +\d+  (.+)$", expected_rows, re.MULTILINE):
        numbers: list[int] = []
        for span in [] if spans == "nothing" else spans.split(", "):
            first, _, last = span.partition("-")
            numbers += range(int(first), int(last or first) + 1)
        by_row[row] = Counter(kinds[number] for number in numbers)
    return by_row


def drop_varying_kinds(requests: Counter[str]) -> dict[str, int]:
    return {kind: 0 if kind in ON_NUMBERS else count for kind, count in requests.items()}


def test_every_row_has_the_requests_of_a_real_run(row_requests: dict[str, RowRequests]) -> None:
    expected_rows = expected_counts()
    assert len(expected_rows) > 100
    actual = {
        row: Counter(type(request).__name__ for request in dict.fromkeys(row_requests[row].requests))
        for row in expected_rows
    }
    expected = {
        row: drop_varying_kinds(requests) | EXTRA_REQUESTS.get(row, {}) for row, requests in expected_rows.items()
    }
    assert {row: drop_varying_kinds(requests) for row, requests in actual.items()} == expected


def test_no_row_is_stopped_and_only_the_search_is_not_costed(row_requests: dict[str, RowRequests]) -> None:
    assert {row: entry.costs["stopped"] for row, entry in row_requests.items() if entry.costs["stopped"]} == {}
    not_costed = {row: entry.costs["not costed"] for row, entry in row_requests.items() if entry.costs["not costed"]}
    assert not_costed == SEARCHING


def test_gates_are_costed(row_requests: dict[str, RowRequests]) -> None:
    names = {line["name"] for entry in row_requests.values() for _, line in entry.costs["lines"]}
    assert {"replays", "floors", "ability", "ability, balanced", "answered", "means", "directions"} <= names


def test_discovery_finds_the_known_heads_and_as_many_as_a_stage_keeps(row_requests: dict[str, RowRequests]) -> None:
    """Under the controlled rule, and under the published one, which keeps heads whatever they score."""
    ids = {"published": "circuit.heads_found_again.E", "controlled": "circuit.heads_found_again.E.controlled"}
    sent = {
        like: {path.stage.group: len(path.receivers) for path in row_requests[row].requests if isinstance(path, Paths)}
        for like, row in ids.items()
    }
    assert sent["controlled"] == {"A": 0, "B": 1, "C": 1, "D": 1, "E": 1}
    assert sent["published"] == {"A": 0, "B": 32, "C": 32, "D": 25, "E": 10}  # of 32 heads there are in all


def is_stage_a_over_all(request: Request) -> bool:
    """What every discovery begins with: the longest part of a run."""
    return isinstance(request, Paths) and request.stage.group == "A" and request.senders is None


def test_headline_rows_discover_nothing(row_requests: dict[str, RowRequests]) -> None:
    """They judge the circuit that is given: what the paper prints, or a file. Long rows discover anew."""
    rows = [row.claim.id for row in catalogue() if row.claim.headline is not None and not row.claim.long]
    requests = [request for row in rows for request in row_requests[row].requests]
    assert len(requests) > len(rows)
    assert not [request for request in requests if is_stage_a_over_all(request)]


def test_discoveries_share_their_first_stage(row_requests: dict[str, RowRequests]) -> None:
    """It is asked once for each kind of noise and freezing, however many rows and further stages follow it; and once
    on stories without a swap, for the row about them."""
    requests = [request for row in row_requests.values() for request in row.requests]
    first_stages = [request for request in requests if isinstance(request, Paths) and is_stage_a_over_all(request)]
    different = Counter(
        (request.prompts.design, request.facets["noise"], request.settings.frozen, request.facets.get("operations"))
        for request in set(first_stages)
    )
    assert different == Counter(
        [
            ("counterbalanced", "independent", "all", 0),
            ("counterbalanced", "independent", "all", None),
            ("published", "fresh", "none", None),
            ("published", "objects", "none", None),
            ("published", "rotation", "all", None),
            ("published", "rotation", "none", None),
        ]
    )
    assert len(first_stages) > 100, "many rows ask"


def test_a_line_is_plain_json(row_requests: dict[str, RowRequests]) -> None:
    """Processes send it to each other."""
    for entry in row_requests.values():
        assert json.loads(json.dumps(entry.costs)) == entry.costs


KEPT = 8e9
"""The most bytes that a run may keep for later requests: a tenth of the device."""


@pytest.mark.parametrize("alias", ALIASES)
def test_every_request_fits_the_shape(alias: str) -> None:
    """Evidence has the requested units, its numbers are finite, and edits change something: else a gate would stop a
    claim."""
    model, engine = parse_model(alias), CostEngine(Accelerator(int(80e9), 4e14, 3e12))
    case, log = ModelUnderTest(model, Settings((model,), engine=engine)), EvidenceLog()
    costed = CostedModel(model, engine, case, Study.of(case, log, PassingGates))
    costs = [costed.cost(row.claim, row.test) for row in catalogue()]
    assert [(cost["row"], cost["stopped"]) for cost in costs if cost["stopped"]] == []
    assert {cost["not costed"] for cost in costs} == {None, *SEARCHING.values()}
    assert len(costed.source.lines) > 100
    assert costed.source.missing_bytes < KEPT, "batches are cut from what is left"
