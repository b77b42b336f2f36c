"""A folder of reference numbers: a tiny model, its prompts, and what the experiments gave on it elsewhere.

Everything that a test needs is read from the folder: shapes, prompt ids, swap order, heads, positions, tolerances.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rebinding.surgery import Anatomy, TorchSurgeon, derive
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoded, Prompt
from tests.arithmetic.rounding import ACTIVE
from tests.close import allowance
from tests.reference.naive.prompts import INVERSE

SAMPLE_PACK = Path(__file__).parent / "llama-tiny"
"""The pack that lies here. Nothing but `test_packs` may lean on what is in it."""
ROLES = {name: role for role, name in INVERSE.items()}
"""The pack's names of roles, and ours."""
ABSOLUTE, RELATIVE = 2e-5, 2e-4
"""Float32 agreement of two implementations, as the packs' authors measured and suggest it: either bound suffices."""


class Agrees(Protocol):
    """Numbers of an experiment agree with a pack's, each of which is made of so many parts that may be off."""

    def __call__(
        self, experiment: str, actual: Any, expected: Any, *, parts: int = 1, absolute: float | None = None
    ) -> None: ...


@dataclass(frozen=True)
class Pack:
    """One folder."""

    folder: Path

    @cached_property
    def expected(self) -> dict[str, Any]:
        """The file of numbers."""
        expected: dict[str, Any] = json.loads((self.folder / "expected.json").read_text())
        return expected

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Its entries by name."""
        return {entry["name"]: entry for entry in self.expected["entries"]}

    @cached_property
    def _prompts(self) -> dict[str, Any]:
        prompts: dict[str, Any] = json.loads((self.folder / "prompts.json").read_text())
        return prompts

    @cached_property
    def tokenizer(self) -> Any:
        """The pack's tokenizer."""
        return AutoTokenizer.from_pretrained(self.folder / "model")

    @cached_property
    def surgeon(self) -> TorchSurgeon:
        """The pack's model, in float32."""
        model = AutoModelForCausalLM.from_pretrained(
            self.folder / "model", dtype=torch.float32, attn_implementation="eager"
        )
        return TorchSurgeon(model.eval(), derive(model))

    @property
    def anatomy(self) -> Anatomy:
        """What the model consists of."""
        return self.surgeon.anatomy

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors kept beside the numbers."""
        return load_file(self.folder / "mean_z.safetensors")

    @property
    def designs(self) -> list[str]:
        """The designs of its prompts."""
        return list(dict.fromkeys(record["design"] for record in self._prompts["prompts"]))

    def raw(self, design: str) -> dict[int, dict[str, Any]]:
        """The pack's own records of a design's prompts, by id."""
        return {record["id"]: record for record in self._prompts["prompts"] if record["design"] == design}

    def prompts(self, design: str, ids: list[int] | None = None) -> list[Encoded]:
        """A design's prompts with our names of the roles; in the order of `ids`, if given."""
        records = self.raw(design)
        return [encoded(records[number]) for number in (records if ids is None else ids)]

    def starting(self, prefix: str) -> dict[str, dict[str, Any]]:
        """The entries whose names start so."""
        return {name: entry for name, entry in self.entries.items() if name.startswith(prefix)}


def encoded(record: dict[str, Any]) -> Encoded:
    """A prompt of the pack as the experiments take it."""
    contents = tuple(Contains(box, item) for box, item in zip(record["boxes"], record["objects"], strict=True))
    swaps = (Swap(*record["swap"]),) if record["swap"] else ()
    story = Story(contents, swaps, impossible="ignore")
    return Encoded(record["text"], tuple(record["token_ids"]), roles(record), prompt=Prompt(story, record["question"]))


def roles(record: dict[str, Any]) -> dict[str, int]:
    """The record's positions under our names."""
    places = {ROLES[name]: place for name, place in record["roles"].items() if name in ROLES and place is not None}
    for kind in ("context_box", "context_object"):
        places |= {f"{kind}[{slot}]": place for slot, place in enumerate(record["roles"][kind])}
    return places


def deviation(actual: Any, expected: Any, absolute: float | None = None) -> float:
    """The largest excess over the suggested tolerance, or an absolute one, as a multiple of it; at most one agrees.

    The packs' tolerance is for the kernels that there are. `--rounding` is noisier than any of them: under it the
    tolerance is at least that of every other test.
    """
    actual_values, expected_values = (
        values.double() if isinstance(values, torch.Tensor) else torch.tensor(np.array(values, dtype=np.float64))
        for values in (actual, expected)
    )
    assert actual_values.shape == expected_values.shape, (
        f"shapes {tuple(actual_values.shape)} and {tuple(expected_values.shape)}"
    )
    tolerance = max(ABSOLUTE, allowance(expected_values)) if ACTIVE else ABSOLUTE
    allowed = torch.clamp(RELATIVE * expected_values.abs(), min=tolerance) if absolute is None else absolute
    return float(((actual_values - expected_values).abs() / allowed).max()) if actual_values.numel() else 0.0
