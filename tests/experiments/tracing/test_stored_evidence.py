"""Maps, mentions and diagnostics are stored once, block by block, and read back without measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rebinding.evidence.store import Store
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing import measure as tracing_measure
from rebinding.experiments.tracing import request as requests
from rebinding.experiments.tracing.request import DIAGNOSTIC_MODE as DIAGNOSED
from rebinding.experiments.tracing.request import Answered, InBlocks, ReadoutDiagnostic, request_map, request_mention
from rebinding.experiments.workbench import Workbench
from rebinding.paper.procedure import builtin_procedure
from rebinding.surgery import Surgeon, TorchSurgeon
from tests.experiments.setup import published_design as plan
from tests.experiments.setup import sentence_piece_model as loaded_model

ROUNDING = 1e-4
"""Logits of this model are below 100: ten units in the last place of such a number."""
CONVENTIONS = builtin_procedure("published").tracing
MENTIONED = "context_target_box_and_swap_query_box"
Make = Callable[[Stories, Sequence[int]], InBlocks]
MAKERS: dict[str, tuple[Make, str]] = {
    "answered": (
        lambda prompts, ids: Answered(prompts.draw(plan(), ids, ("tracing", "target_box")), CONVENTIONS.rule),
        "are_right",
    ),
    "tracing": (
        lambda prompts, ids: request_map(prompts, plan(), ids, "target_box", ("readout", "context_box"), CONVENTIONS),
        "trace",
    ),
    "first-mention": (
        lambda prompts, ids: request_mention(
            prompts, plan(), ids, MENTIONED, "context_partner", "swap_asked", CONVENTIONS
        ),
        "mention",
    ),
    "readout-diagnostic": (
        lambda prompts, ids: ReadoutDiagnostic(prompts.draw(plan(), ids, ("questions", DIAGNOSED)), CONVENTIONS.rule),
        "diagnose_questions",
    ),
}
"""How each kind is requested, and the function that measures it."""


@pytest.fixture(autouse=True)
def use_blocks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BLOCK", 2)


def stored(root: Path) -> set[tuple[str, str]]:
    return {(entry.experiment, entry.key) for entry in Store(root).entries()}


def note_sizes(measuring: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of pairs or questions of each call of a measuring function from now on."""
    measure, sizes = vars(tracing_measure)[measuring], []

    def note_size(surgeon: Surgeon, items: Sequence[Any], *args: Any, **options: Any) -> Any:
        sizes.append(len(items))
        return measure(surgeon, items, *args, **options)

    monkeypatch.setattr(tracing_measure, measuring, note_size)
    return sizes


@pytest.mark.parametrize("kind", MAKERS)
def test_blocks_are_stored_once_and_read_back(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has only the blocks; evidence of all prompts, or of a part, is read from them, and says what was
    requested."""
    make, measuring = MAKERS[kind]
    bench = Workbench(loaded_model(), Store(tmp_path))
    request = make(bench.prompts, range(5))
    evidence = bench.get(request)
    assert evidence.settings["request"] == request.plain
    assert (
        evidence.rows["prompt"].unique().tolist() == evidence.settings["request"]["prompts"]["ids"] == [0, 1, 2, 3, 4]
    )
    blocks = bench.prompts.blocks(request)
    assert [block.n for block in blocks] == [2, 2, 1]
    assert stored(tmp_path) == {bench.address(block) for block in blocks}
    monkeypatch.setattr(tracing_measure, measuring, lambda *args, **kwargs: pytest.fail("a block was measured again"))
    bench = Workbench(loaded_model(), Store(tmp_path))
    second = bench.get(make(bench.prompts, range(5)))
    pd.testing.assert_frame_equal(second.rows, evidence.rows)
    assert second.settings == evidence.settings
    part = bench.prompts.part(request, 2, 4)
    assert part == blocks[1]
    of_part = evidence.rows[evidence.rows["prompt"].isin((2, 3))].reset_index(drop=True)
    pd.testing.assert_frame_equal(bench.get(part).rows, of_part)
    assert len(stored(tmp_path)) == 3


@pytest.mark.parametrize("kind", MAKERS)
def test_missing_blocks_are_measured_together(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the surgeon takes; what is stored is what each block gives alone, to rounding."""
    make, measuring = MAKERS[kind]
    alone, together = (Workbench(loaded_model(), Store(tmp_path / name)) for name in ("alone", "together"))
    request = make(alone.prompts, range(9))
    blocks = alone.prompts.blocks(request)
    for block in blocks:
        alone.get_block(block)
    together.get_block(blocks[3])
    monkeypatch.setattr(TorchSurgeon, "prompts_at_once", lambda surgeon, length: 5)
    sizes = note_sizes(measuring, monkeypatch)
    evidence = together.get(make(together.prompts, range(9)))
    per_prompt = 3 if kind == "readout-diagnostic" else 1  # a question about each of three boxes
    assert sizes == [4 * per_prompt, 2 * per_prompt, 1 * per_prompt], "two blocks, one before a stored one, the last"
    assert stored(tmp_path / "together") == stored(tmp_path / "alone")
    expected = alone.get(request)
    pd.testing.assert_frame_equal(evidence.rows, expected.rows, rtol=0, atol=ROUNDING)
    assert evidence.settings == expected.settings
