"""The golden prompts: which ids of which designs are guarded, and their hashes.

An id is a stable name for a prompt forever. `golden.json` was written once; if a prompt under an old name changes, the
test fails, and the right thing is to undo the change. `python -m tests.task.golden` adds names that are missing and
never rewrites one that is there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rebinding.task.designs import NOISE_KINDS, TRACING_MODES, Design, Pair, design
from rebinding.task.prompts import Prompt
from rebinding.task.text import render_raw

FILE = Path(__file__).with_name("golden.json")

DESIGNS: dict[str, tuple[Design, tuple[int, ...]]] = {
    "published/train": (design(), (*range(30), 299, 300, 10000)),
    "published/test": (design(split="test"), tuple(range(30))),
    "published/none": (design(split="none"), tuple(range(10))),
    "published/train/5/before": (design(boxes=5, distractor="before"), tuple(range(10))),
    "published/train/5/after": (design(boxes=5, distractor="after"), tuple(range(10))),
    "published/train/no operation": (design(operations=0), tuple(range(5))),
    "published/train/two swaps": (design(operations=2), tuple(range(5))),
    "published/train/move": (design(verb="move"), tuple(range(5))),
    "published/train/7": (design(boxes=7), tuple(range(5))),
    "partner_second/train": (design("partner_second"), tuple(range(20))),
    "counterbalanced/discovery": (design("counterbalanced"), tuple(range(40))),
    "counterbalanced/directions": (design("counterbalanced", split="directions"), tuple(range(20))),
    "counterbalanced/evaluation": (design("counterbalanced", split="evaluation"), tuple(range(20))),
    "counterbalanced/discovery/5/after": (design("counterbalanced", boxes=5, distractor="after"), tuple(range(20))),
    "counterbalanced/discovery/refill": (design("counterbalanced", verb="refill"), tuple(range(10))),
    "counterbalanced/discovery/narrative": (design("counterbalanced", narrative=True), tuple(range(10))),
    "counterbalanced/discovery/4/two swaps": (design("counterbalanced", boxes=4, operations=2), tuple(range(20))),
}
PAIRED = ("published/train", "partner_second/train", "counterbalanced/discovery")
PAIRED_IDS = (0, 7, 8)


def names() -> Iterator[tuple[str, Prompt]]:
    """Every guarded prompt under its name: design, what it is, id."""
    for name, (stories, ids) in DESIGNS.items():
        for prompt_id in ids:
            yield f"{name}/prompt/{prompt_id}", stories.prompt(prompt_id)
    for name in PAIRED:
        for prompt_id in PAIRED_IDS:
            for kind, pair in pairs(DESIGNS[name][0], prompt_id):
                yield f"{name}/{kind}/original/{prompt_id}", pair.original
                yield f"{name}/{kind}/counterfactual/{prompt_id}", pair.counterfactual
            for slot in range(3):
                yield f"{name}/direction {slot}/{prompt_id}", DESIGNS[name][0].direction(prompt_id, slot)


def pairs(stories: Design, prompt_id: int) -> Iterator[tuple[str, Pair]]:
    for mode in TRACING_MODES:
        yield mode, stories.tracing(prompt_id, mode)
    for kind in NOISE_KINDS:
        yield kind, stories.noise(prompt_id, kind)
    for mirror, suffix in ((False, ""), (True, " mirrored")):
        yield f"content control{suffix}", stories.content_control(prompt_id, mirror=mirror)
        yield f"pointer{suffix}", stories.pointer(prompt_id, mirror=mirror)
        yield f"structure only{suffix}", stories.structure_only_pointer(prompt_id, mirror=mirror)


def digest(prompt: Prompt) -> str:
    """The beginning of the sha256 of the raw text: enough to tell any change."""
    return hashlib.sha256(render_raw(prompt).text.encode()).hexdigest()[:12]


def load() -> dict[str, str]:
    content: Any = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return dict(content)


if __name__ == "__main__":
    stored = load()
    grown = {name: stored.get(name, digest(prompt)) for name, prompt in names()}
    FILE.write_text(json.dumps(stored | grown, indent=0) + "\n", encoding="utf-8")
