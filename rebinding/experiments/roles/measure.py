"""Section 4.2: attention-pattern patching. What does each head group do?

In an original prompt the heads of a group get the attention pattern (or the output) that they have in its
counterfactual, at one token. Values stay the original's own and everything downstream is recomputed, so a head that
*points* moves the answer to where the counterfactual's answer stands, and a head that *carries content* moves it to the
counterfactual's object.

Three words are measured at the readout: the original's own `answer`; the counterfactual's answer, `new_object`, which
the original does not contain in the content control; and `pointed_object`, the object that the asked box holds before
the swap, which stands in the original where the counterfactual's answer stands in a pointer pair.

A copied row may attend to keys after its query, if the group's token stands later in the counterfactual. As published,
`future="keep"` keeps them; `"mask"` removes them and rescales the rest to sum to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.random_draws import draw_circuits
from rebinding.experiments.roles.request import (
    MODES,
    RANDOM_ROLES,
    ROLES,
    WHOLE_GROUP,
    WORDS,
    Future,
    Interchange,
    RandomInterchange,
    RolePair,
    RolesMode,
    RolesPlace,
)
from rebinding.experiments.tokens import positions, prompt_blocks, relative_change, token_batch
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.numbers import Group
from rebinding.surgery import Edit, LogitsOf, Read, RecordedRun, Surgeon, SurgeryError
from rebinding.task.prompts import Encoded

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


def run_roles(
    surgeon: Surgeon,
    pairs: Sequence[RolePair],
    groups: Mapping[Group, Sequence[Head]],
    *,
    kind: str,
    token: Callable[[str], int],
    mode: RolesMode = "published",
    future: Future = "keep",
    single_heads: bool = True,
    block: int | None = None,
) -> Evidence:
    """Patch every group, and with `single_heads` every head of it alone, in every pair.

    `kind` names the pairs (`content_control`, `pointer`, ...). The evidence has a row per pair, patch and word: the
    word's logit in the unedited original (`before`), the patched original (`after`) and the counterfactual; the
    attention on later keys in the copied row (`future_mass`, the largest of the patched heads; kept or removed as the
    settings say); and the `relative_change` of the patch.
    """
    unknown = [group for group in groups if group not in MODES[mode]]
    if unknown:
        raise SurgeryError(f"groups are {', '.join(MODES[mode])}; got {', '.join(unknown)}")
    named = {group: tuple(heads) for group, heads in groups.items() if heads}
    if not named or not pairs:
        raise SurgeryError(f"nothing to patch: {len(pairs)} pairs, and groups with heads: {list(named)}")
    frames = [
        frame.assign(group=group)
        for part in prompt_blocks(surgeon, [pair.original for pair in pairs], block)
        for record in [_record(surgeon, pairs[part], token)]
        for group, heads in named.items()
        for frame in _run_group(record, heads, MODES[mode][group], future, single_heads)
    ]
    settings = {
        "kind": kind,
        "mode": mode,
        "future": future,
        "single_heads": single_heads,
        "groups": {group: [list(head) for head in heads] for group, heads in named.items()},
        "places": {group: list(MODES[mode][group]) for group in named},
    }
    return ROLES.evidence(pd.concat(frames, ignore_index=True), settings)


def run_random_groups(
    surgeon: Surgeon,
    pairs: Sequence[RolePair],
    groups: Sequence[Sequence[Head]],
    place: RolesPlace,
    *,
    token: Callable[[str], int],
    future: Future = "keep",
    block: int | None = None,
) -> Evidence:
    """Patch several groups at one place, each as a whole, in every pair; `draw` numbers the groups."""
    frames = [
        frame.assign(draw=draw)
        for part in prompt_blocks(surgeon, [pair.original for pair in pairs], block)
        for record in [_record(surgeon, pairs[part], token)]
        for draw, heads in enumerate(groups)
        for frame in _run_group(record, tuple(heads), place, future, single_heads=False)
    ]
    settings = {
        "future": future,
        "place": list(place),
        "groups": [[list(head) for head in heads] for heads in groups],
    }
    return RANDOM_ROLES.evidence(pd.concat(frames, ignore_index=True), settings)


@dataclass(frozen=True, eq=False)
class _Block:
    """Recorded pairs, and the measured words with their logits in the unedited runs of both sides."""

    surgeon: Surgeon
    pairs: Sequence[RolePair]
    original: RecordedRun
    counterfactual: RecordedRun
    words: Tensor
    before: Tensor
    in_counterfactual: Tensor

    @property
    def originals(self) -> list[Encoded]:
        return [pair.original for pair in self.pairs]

    @property
    def counterfactuals(self) -> list[Encoded]:
        return [pair.counterfactual for pair in self.pairs]


def _record(surgeon: Surgeon, pairs: Sequence[RolePair], token: Callable[[str], int]) -> _Block:
    """Record both sides of some pairs."""
    words = torch.tensor([[token(word) for word in pair.words()] for pair in pairs])  # (pair, word)
    sides = [pair.original for pair in pairs], [pair.counterfactual for pair in pairs]
    original, counterfactual = (surgeon.record(token_batch(prompts)) for prompts in sides)
    before, in_counterfactual = (
        surgeon.run(recording, [], [_logits(prompts, words)])[0][:, 0].cpu()
        for recording, prompts in zip((original, counterfactual), sides, strict=True)
    )
    return _Block(surgeon, pairs, original, counterfactual, words, before, in_counterfactual)


def _run_group(
    block: _Block, heads: tuple[Head, ...], place: RolesPlace, future: Future, single_heads: bool
) -> Iterator[pd.DataFrame]:
    """Patch all heads of a group together, and then each alone: the rows of one run."""
    site, role = place
    at = positions(block.originals, role)
    new = _read(block.surgeon, block.counterfactual, block.counterfactuals, heads, place)
    change = relative_change(new, _read(block.surgeon, block.original, block.originals, heads, place))  # (pair, head)
    later_mass = _future_mass(new, at) if site == "pattern" else torch.zeros_like(change)
    new = _masked(new, at) if site == "pattern" and future == "mask" else new
    patches = [tuple(range(len(heads))), *((n,) for n in range(len(heads)) if single_heads)]
    variants = [[Edit(site, new[:, patch][:, :, None], at[:, None], [heads[n] for n in patch])] for patch in patches]
    read = _logits(block.originals, block.words)
    (after,) = block.surgeon.sweep(block.original, variants, [read], allow_noop=True)  # (patch, pair, 1, word)
    for number, (patch, logits) in enumerate(zip(patches, after[:, :, 0].cpu(), strict=True)):
        layer, head = heads[patch[0]] if number else (WHOLE_GROUP, WHOLE_GROUP)
        sizes = {"future_mass": later_mass[:, patch].amax(1), "relative_change": change[:, patch].amax(1)}
        yield _frame(block, logits, sizes).assign(layer=layer, head=head)


def _logits(prompts: Sequence[Encoded], words: Tensor) -> Read:
    """Read the logits of the measured words at the readout."""
    return Read("logits", at=positions(prompts, "readout")[:, None], reduce=LogitsOf(words))


def _read(
    surgeon: Surgeon, recording: RecordedRun, prompts: Sequence[Encoded], heads: Sequence[Head], place: RolesPlace
) -> Tensor:
    """Patterns or outputs of some heads at a place in unedited prompts: (pair, head, width); narrow heads end in
    zeros."""
    site, role = place
    (values,) = surgeon.run(recording, [], [Read(site, positions(prompts, role)[:, None], heads)])
    return values[:, :, 0].float().cpu()


def _is_future(rows: Tensor, query: Tensor) -> Tensor:
    """Whether a key of pattern rows (pair, head, key) is after the query: (pair, 1, key)."""
    return torch.arange(rows.shape[-1])[None, None] > query[:, None, None]


def _future_mass(rows: Tensor, query: Tensor) -> Tensor:
    """The attention of pattern rows on keys after the query."""
    return torch.where(_is_future(rows, query), rows, 0.0).sum(-1)  # (pair, head)


def _masked(rows: Tensor, query: Tensor) -> Tensor:
    """Pattern rows without the keys after the query, rescaled to sum to one; rows without such keys are unchanged."""
    is_future = _is_future(rows, query)
    past = torch.where(is_future, 0.0, rows)
    has_future = (rows * is_future).sum(-1, keepdim=True) > 0  # (pair, head, 1)
    return torch.where(has_future, past / past.sum(-1, keepdim=True), rows)


def _frame(block: _Block, after: Tensor, sizes: Mapping[str, Tensor]) -> pd.DataFrame:
    """A row per pair and word."""
    logits = {"before": block.before, "after": after, "counterfactual": block.in_counterfactual}
    columns: dict[str, Any] = {
        "prompt": np.repeat([pair.id for pair in block.pairs], len(WORDS)),
        "answer_slot": np.repeat([pair.answer_slot for pair in block.pairs], len(WORDS)),
        "word": np.tile(WORDS, len(block.pairs)),
        "text": [word for pair in block.pairs for word in pair.words()],
        "token": block.words.flatten().numpy(),
    }
    columns |= {name: value.flatten().numpy() for name, value in logits.items()}
    columns |= {name: np.repeat(value.numpy(), len(WORDS)) for name, value in sizes.items()}
    return pd.DataFrame(columns)


def measure_interchange(bench: Workbench, request: Interchange) -> Evidence:
    return run_roles(
        bench.surgeon,
        pairs_of(bench, request),
        dict(request.groups),
        kind=request.counterfactual,
        token=partial(bench.prompts.encoder.answer_token, rule=request.answers),
        mode=request.mode,
        future=request.future,
        single_heads=request.single_heads,
    )


def measure_random_interchange(bench: Workbench, request: RandomInterchange) -> Evidence:
    place, anatomy = MODES[request.mode][request.group], bench.surgeon.anatomy
    group = Circuit(tuple(CircuitHead(request.group, *head, place[1]) for head in request.heads))
    random_groups = draw_circuits(group, anatomy.heads, draws=request.draws, match="role_and_layer", exclude=True)
    return run_random_groups(
        bench.surgeon,
        pairs_of(bench, request),
        [[(head.layer, head.head) for head in random_group.heads] for random_group in random_groups],
        place,
        token=partial(bench.prompts.encoder.answer_token, rule=request.answers),
        future=request.future,
    )


def pairs_of(bench: Workbench, request: Interchange | RandomInterchange) -> list[RolePair]:
    """The encoded pairs of a request."""
    return [RolePair(*pair) for pair in bench.prompts.encode(request.prompts).pairs]
