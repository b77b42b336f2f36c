"""Where packs come from. The shown one was made with the published prompts, and the requests of published rows draw the
same ones here: the other tests take their prompts from the pack, whichever it is, and would not notice if a row drew
others. The second one is made by code that shares nothing with what it checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rebinding.experiments.binding.request import request_shifts
from rebinding.experiments.prompts import Stories
from rebinding.experiments.roles.request import request_interchange, roles_stories
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import ROLE_OF_GROUP
from rebinding.paper.procedure import builtin_procedure
from tests.reference.pack import SAMPLE_PACK, Pack
from tests.reference.test_exp3 import WORDS

PACK = Pack(SAMPLE_PACK)
CIRCUIT = Circuit(tuple(CircuitHead(group, 0, 0, role) for group, role in ROLE_OF_GROUP.items()))
"""Any heads: they do not matter for prompts."""


@pytest.fixture(scope="module")
def prompts() -> Stories:
    loaded_model = load(
        str(SAMPLE_PACK / "model"), dtype="float32", device="cpu", form="template"
    )  # without date lines
    return Stories(loaded_model.encoder())


@pytest.mark.parametrize("kind", WORDS)
def test_head_roles(prompts: Stories, kind: str) -> None:
    entry, conventions = PACK.entries[f"head_roles/A/{kind}"], builtin_procedure("published").roles
    stories_of_rows = roles_stories(prompts, conventions, "published")
    request = request_interchange(prompts, CIRCUIT, stories_of_rows, kind, len(entry["ids"]), conventions)
    assert request.prompts.ids == tuple(entry["ids"])
    pairs = prompts.encode(request.prompts)
    for side, encoded in (("original", pairs.prompts), ("counterfactual", pairs.counterfactuals)):
        expected = PACK.prompts(entry["settings"][side].removeprefix("design "), entry["ids"])
        assert [prompt.ids for prompt in encoded] == [prompt.ids for prompt in expected]


def test_binding_numbers_equal_the_pack(prompts: Stories) -> None:
    evaluation, first = PACK.prompts("qk_intervention/evaluation"), PACK.prompts("qk_intervention/direction/slot0")
    conventions = builtin_procedure("published").binding
    counts = {"n": len(evaluation), "directions": len(first), "draws": 1}
    request = request_shifts(prompts, CIRCUIT, "published", "published", conventions, **counts)
    assert [prompt.ids for prompt in prompts.encode(request.prompts).prompts] == [prompt.ids for prompt in evaluation]
    (batch,) = request.batches
    for slot, expected_slot in enumerate(batch.slots):
        expected = PACK.prompts(f"qk_intervention/direction/slot{slot}")
        assert [prompt.ids for prompt in prompts.encode(expected_slot).prompts] == [prompt.ids for prompt in expected]


FOLDER = Path(__file__).parent
SOURCES = [FOLDER / "make_pack.py", *sorted((FOLDER / "naive").glob("*.py"))]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_nothing_that_runs_a_model_is_shared(source: Path) -> None:
    """Of the package only prompts; and of `tests` only what is held here, and tokenizers."""
    nodes = list(ast.walk(ast.parse(source.read_text("utf-8"))))
    modules = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    actual = [module for module in modules if module.startswith(("rebinding", "tests"))]
    allowed = ("rebinding.task.", "tests.reference.naive", "tests.task.tokenizers")
    assert [name for name in actual if not name.startswith(allowed)] == []
