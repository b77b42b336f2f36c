"""Section 3: where does the answer come from? Residual interchange at every layer and token.

The columns of a cell:

| column | meaning |
|---|---|
| `prompt`, `mode`, `layer`, `token` | the pair and the cell |
| `place`, `role` | the token's names in the original, by place and by function (the place if it has no function) |
| `differs` | whether the pair's prompts differ in this token |
| `ran` | whether the cell was run; otherwise it is a no-op |
| `relative_change` | how far the patch changes the stream: the largest change as a share of the largest value there |
| `hit` | as published: the first largest logit among the original's objects is that of its answer |
| `hit_with_counterfactual` | the same with the counterfactual's answer as one more candidate |
| `margin` | logit of the original's answer minus the largest of its other objects |
| `counterfactual_margin` | logit of the original's answer minus that of the counterfactual's; NaN if it has none |
| `answer_logit` | logit of the original's answer |
| `base_...` | the same for the counterfactual without a patch |

The residual of the *original* run, at the input of one layer and at one token, is written into the run of its
*counterfactual*; the logits at the readout then show whether the original's answer is restored. Naively, one such cell
costs a full forward pass. Two facts make the map cheap and change no number:

* by causality the residuals of a pair agree before the first token in which its prompts differ, and at layer 0 wherever
  the tokens agree. Such a cell is a no-op: it gets the unpatched logits and is not run;
* a cell cannot change layers below its own or tokens before its own. All layers of a token are one batch that grows
  layer by layer and computes that token and those after it.

The pairs to trace come from a design, through the filter of correct originals; some modes are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.metrics import Score
from rebinding.experiments.tokens import BLOCK, prompt_blocks, relative_change, token_batch
from rebinding.experiments.tracing.request import OVERSAMPLING, TRACING, Query, counterfactual
from rebinding.surgery import Edit, LogitsOf, Read, RecordedRun, Surgeon
from rebinding.task.designs import TRACING_MODES, Design, DesignError, Pair
from rebinding.task.prompts import AnswerRule, Encoded, Encoder, PromptError, TokenizedPrompt, aligned

PLACES = ("context_box[", "context_object[", "swap_first", "swap_second", "swap_period", "question_box", "readout")
"""The beginnings of role names by place; other roles are named by function."""


def rows_of(
    mode: str,
    pairs: Sequence[TracedPair],
    cells: Tensor,
    changes: Tensor,
    logits: Tensor,
    base: Tensor,
    layers: Sequence[int],
    tokens: Sequence[int],
) -> pd.DataFrame:
    """Evidence rows from logits (prompt, layer, token, candidate) and unpatched logits (prompt, candidate)."""
    shape = cells.shape
    places, roles = zip(*(names_of(pair.original.roles, tokens) for pair in pairs), strict=True)
    differs = np.array([np.isin(tokens, pair.differing) for pair in pairs])[:, None]  # (prompt, 1, token)
    columns: dict[str, Any] = {
        "prompt": np.array([pair.id for pair in pairs])[:, None, None],
        "mode": mode,
        "layer": np.array(layers, dtype=np.int16)[:, None],
        "token": np.array(tokens, dtype=np.int16),
        "place": np.array(places, dtype=object)[:, None],
        "role": np.array(roles, dtype=object)[:, None],
        "differs": differs,
        "ran": cells.numpy(),
        "relative_change": changes.numpy(),
        **scores(pairs, logits),
        **{f"base_{name}": value for name, value in scores(pairs, base[:, None, None]).items()},
    }
    table = pd.DataFrame({name: np.broadcast_to(value, shape).reshape(-1) for name, value in columns.items()})
    return table.astype({"mode": "category", "place": "category", "role": "category"})


def scores(pairs: Sequence[TracedPair], logits: Tensor) -> dict[str, np.ndarray]:
    """Hits and margins from logits (prompt, layer, token, candidate); the last candidate is the rival.

    Where it is the answer again, a copy of its logit, from another product, is no rival: it may be rounded higher.
    """
    values = logits.float().numpy()
    answer = np.array([pair.answer for pair in pairs])[:, None, None]  # (prompt, 1, 1)
    of_answer = np.take_along_axis(values, answer[..., None], axis=-1)[..., 0]  # (prompt, layer, token)
    is_other = np.arange(values.shape[-1] - 1) != answer[..., None]  # (prompt, 1, 1, candidate)
    margin = of_answer - np.where(is_other, values[..., :-1], -np.inf).max(axis=-1)
    has_rival = np.array([pair.rival is not None for pair in pairs])[:, None, None]
    repeats = np.array([not pair.changes_answer or pair.rival is None for pair in pairs])[:, None, None]
    hit = values[..., :-1].argmax(axis=-1) == answer
    return {
        "hit": hit,
        "hit_with_counterfactual": np.where(repeats, hit, values.argmax(axis=-1) == answer),
        "margin": margin,
        "counterfactual_margin": np.where(has_rival, of_answer - values[..., -1], np.float32("nan")),
        "answer_logit": of_answer,
    }


def names_of(roles: Mapping[str, int], tokens: Sequence[int]) -> tuple[list[str], list[str]]:
    """The names of tokens by place, and by function if there is one; empty for a token without a name."""
    places = {position: name for name, position in roles.items() if name.startswith(PLACES)}
    functions: dict[int, str] = {}
    for name, position in roles.items():
        if not name.startswith(PLACES):
            functions.setdefault(position, name)
    by_place = [places.get(token, "") for token in tokens]
    return by_place, [functions.get(token, place) for token, place in zip(tokens, by_place, strict=True)]


Cells: TypeAlias = Tensor
"""(prompt, layer, token) booleans."""


@dataclass(frozen=True)
class TracedPair:
    """An original and its counterfactual as tokens, with the candidates that score an answer.

    `candidates` are the answer tokens of the original's objects after its operations, in the order of the boxes;
    `answer` is the place of the right one among them. `rival` is the token of the counterfactual's answer; None: it has
    no answer.
    """

    id: int
    original: TokenizedPrompt
    counterfactual: TokenizedPrompt
    candidates: tuple[int, ...]
    answer: int
    rival: int | None

    @property
    def changes_answer(self) -> bool:
        """Whether the counterfactual's answer differs from the original's (also if it has none)."""
        return self.rival != self.candidates[self.answer]

    @property
    def differing(self) -> tuple[int, ...]:
        """The tokens in which the two prompts differ."""
        return aligned(self.original, self.counterfactual)


def trace(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    *,
    mode: str,
    layers: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    roles: Sequence[str] | None = None,
    score: Score | None = None,
) -> Evidence:
    """The map of one mode: one row per pair x layer x token (columns: `rebinding.experiments.tracing.maps`).

    `layers` are inputs of decoder layers; all layers and all `tokens` by default. With `roles`, a pair has rows only
    for its own tokens with one of these roles, whatever their positions in other pairs (`context_box` is the label of
    every slot). A metric on the originals adds the columns `metric` and `base_metric`.
    """
    check_pairs(pairs)
    layers = list(range(surgeon.anatomy.n_layers) if layers is None else layers)
    settings = {
        "mode": mode,
        "site": "resid",
        "direction": "original into counterfactual",
        "layers": layers,
        "tokens": None if tokens is None else list(tokens),
        "roles": None if roles is None else list(roles),
        "length": len(pairs[0].original),
        "surgeon": type(surgeon).__name__,
    }
    tables = [
        _map(surgeon, pairs[part], mode, layers, tokens, roles, None if score is None else score.part(part))
        for part in prompt_blocks(surgeon, [pair.original for pair in pairs])
    ]
    return merge([TRACING.evidence(table, settings) for table in tables])


def _map(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    mode: str,
    layers: Sequence[int],
    tokens: Sequence[int] | None,
    roles: Sequence[str] | None,
    score: Score | None,
) -> pd.DataFrame:
    """The map of a block of pairs; their recordings are in memory together."""
    allowed = range(len(pairs[0].original)) if tokens is None else tokens
    columns = list(
        allowed if roles is None else sorted({at for pair in pairs for at in _tokens_with(pair, roles)} & set(allowed))
    )
    requested = _has_role(pairs, columns, roles).expand(-1, len(layers), -1)  # (prompt, layer, token)
    cells = requested & changing(pairs, layers, columns)
    patched = patched_logits(surgeon, pairs, cells, layers=layers, tokens=columns, score=score)
    rows = rows_of(mode, pairs, cells, patched.relative_change, patched.logits, patched.base, layers, columns)
    if patched.metric is not None and patched.base_metric is not None:
        base = patched.base_metric[:, None, None].expand_as(patched.metric)  # (prompt, layer, token)
        rows = rows.assign(metric=patched.metric.flatten().numpy(), base_metric=base.flatten().numpy())
    return rows[requested.reshape(-1).numpy()].reset_index(drop=True)


def changing(pairs: Sequence[TracedPair], layers: Sequence[int], tokens: Sequence[int]) -> Cells:
    """The cells that are not no-ops: from the first differing token on; at layer 0 only differing tokens."""
    return torch.stack([cells_of(pair.differing, layers, tokens) for pair in pairs])  # (prompt, layer, token)


def cells_of(differing: Sequence[int], layers: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """The cells of one pair that are not no-ops: (layer, token)."""
    token, above = torch.tensor(tokens), torch.tensor(layers)[:, None] > 0  # (token,), (layer, 1)
    return (above & (token > min(differing))) | torch.isin(token, torch.tensor(differing))


def _tokens_with(pair: TracedPair, roles: Sequence[str]) -> set[int]:
    """The tokens of a pair with one of these roles."""
    return {at for name, at in pair.original.roles.items() if name.partition("[")[0] in roles}


def _has_role(pairs: Sequence[TracedPair], tokens: Sequence[int], roles: Sequence[str] | None) -> Tensor:
    """Whether each token of each pair has one of these roles (all if None): (prompt, 1, token)."""
    rows = [[roles is None or token in _tokens_with(pair, roles) for token in tokens] for pair in pairs]
    return torch.tensor(rows)[:, None]


@dataclass(frozen=True, eq=False)
class Patched:
    """Logits at the readout of the candidates and the rival, patched (prompt, layer, token, candidate) and unpatched
    (prompt, candidate), and the relative change of each patch (prompt, layer, token). With a metric, its patched and
    unpatched values, (prompt, layer, token) and (prompt,)."""

    logits: Tensor
    base: Tensor
    relative_change: Tensor
    metric: Tensor | None = None
    base_metric: Tensor | None = None


def patched_logits(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    cells: Cells,
    *,
    layers: Sequence[int],
    tokens: Sequence[int],
    score: Score | None = None,
) -> Patched:
    """Patch each cell in a run of its own.

    If a pair has no rival, its answer fills that column. Cells that are not run have the unpatched logits.
    """
    length, candidates = len(pairs[0].original), candidate_tokens(pairs)
    originals = surgeon.record(token_batch([pair.original for pair in pairs]))
    recording = surgeon.record(token_batch([pair.counterfactual for pair in pairs]))
    new, old = (_residuals(surgeon, side, layers, tokens) for side in (originals, recording))
    changes = torch.stack([relative_change(*values).cpu() for values in zip(new, old, strict=True)], dim=1)
    reads = [Read("logits", at=length - 1, reduce=LogitsOf(candidates))]
    if score is not None:
        reads.append(Read("logits", at=length - 1, reduce=score.take(torch.arange(len(pairs)))))
    base, *base_metric = (values.cpu() for values in surgeon.run(recording, [], reads))  # (prompt, candidate)
    logits = base[:, None, None].repeat(1, len(layers), len(tokens), 1)  # (prompt, layer, token, candidate)
    metric = [values.repeat(1, len(layers), len(tokens)) for values in base_metric]  # (prompt, layer, token)
    for column, token in enumerate(tokens):
        rows_of_layer = [torch.nonzero(of_layer)[:, 0] for of_layer in cells[:, :, column].T]
        patched = [number for number, rows in enumerate(rows_of_layer) if len(rows)]
        edits = [
            [Edit("resid", new[number][rows, column], at=token, layer=layers[number], rows=rows)]
            for number in patched
            for rows in [rows_of_layer[number]]
        ]
        if edits:  # a patch may be a no-op (two tokens, one residual): then the cell is the unpatched run
            values, *scored = surgeon.sweep(recording, edits, reads, allow_noop=True)  # (layer, prompt, candidate)
            logits[:, patched, column] = values.cpu().transpose(0, 1)
            for kept, of_layers in zip(metric, scored, strict=True):  # (layer, prompt, 1, 1)
                kept[:, patched, column] = of_layers[..., 0, 0].cpu().T
    return Patched(logits, base, changes, *metric, *(values[:, 0, 0] for values in base_metric))


def _residuals(surgeon: Surgeon, recording: RecordedRun, layers: Sequence[int], tokens: Sequence[int]) -> list[Tensor]:
    """Residuals of unedited prompts, one (prompt, token, hidden) a layer."""
    return surgeon.run(recording, [], [Read("resid", at=tokens, layer=layer) for layer in layers])


def candidate_tokens(pairs: Sequence[TracedPair]) -> Tensor:
    """The tokens whose logits are kept: the candidates, and the rival (or the answer, if there is no rival)."""
    lines = [[*pair.candidates, pair.candidates[pair.answer] if pair.rival is None else pair.rival] for pair in pairs]
    return torch.tensor(lines)  # (prompt, candidate)


def check_pairs(pairs: Sequence[TracedPair]) -> None:
    """Refuse pairs that cannot be traced together."""
    if not pairs:
        raise PromptError("no pairs to trace; tracing needs at least one")
    token_batch([side for pair in pairs for side in (pair.original, pair.counterfactual)])
    for pair in pairs:
        if not pair.differing:
            raise PromptError(f"pair {pair.id} is one prompt twice: no patch can change anything; use another mode")
        if len(pair.candidates) != len(pairs[0].candidates):
            raise PromptError(
                f"pair {pair.id} has {len(pair.candidates)} candidates, pair {pairs[0].id} {len(pairs[0].candidates)};"
                " trace stories with equally many boxes together"
            )


class UnchangedAnswer(DesignError):
    """A claim was to rest on a mode whose counterfactual has the original's answer."""


def trace_design(
    surgeon: Surgeon,
    encoder: Encoder,
    design: Design,
    *,
    mode: str,
    n: int,
    first_id: int = 0,
    query: Query = "same",
    rule: AnswerRule = "continuation",
    for_claims: bool = True,
    layers: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    roles: Sequence[str] | None = None,
) -> Evidence:
    """Trace one mode on the first `n` of `4 n` ids whose original is answered correctly (fewer, if there are fewer).

    A mode that does not change the answer is refused unless `for_claims=False`, because restoring the answer shows
    nothing. Its evidence then has the setting `changes_answer: false`, and no claim accepts it.
    """
    pool = range(first_id, first_id + OVERSAMPLING * n)
    candidates = (traced_pair(encoder, counterfactual(design, number, mode, query), rule) for number in pool)
    pairs = correct_ones(surgeon, candidates, n)
    if not pairs:
        raise DesignError(
            f"no original of ids {pool.start}..{pool.stop - 1} is answered correctly among its objects, so there is"
            " nothing to trace; take another model, design or first_id"
        )
    if for_claims:
        check_changed(mode, pairs, query)
    evidence = trace(surgeon, pairs, mode=mode, layers=layers, tokens=tokens, roles=roles)
    changes = all(pair.changes_answer for pair in pairs)
    return TRACING.evidence(evidence.rows, {**evidence.settings, "query": query, "changes_answer": changes})


def check_changed(mode: str, pairs: Sequence[TracedPair], query: Query = "same") -> None:
    """Refuse pairs whose two prompts have the same answer: restoring it shows nothing."""
    same = [pair.id for pair in pairs if not pair.changes_answer]
    if same:
        usable = [name for name, entry in TRACING_MODES.items() if entry.changes_answer and entry.keeps_length]
        raise UnchangedAnswer(
            f"mode {mode!r} with query {query!r} leaves the answer as it is ({len(same)} of {len(pairs)} pairs, the"
            f" first is id {same[0]}): restoring it shows nothing. Pass for_claims=False to look at it, or use one of"
            f" {', '.join(usable)}"
        )


def traced_pair(encoder: Encoder, pair: Pair, rule: AnswerRule = "continuation") -> TracedPair:
    """Encode a pair and add its candidates."""
    original, altered = encoder.encode([pair.original, pair.counterfactual])
    return scored_pair(encoder, pair, original, altered, rule)


def scored_pair(encoder: Encoder, pair: Pair, original: Encoded, other: Encoded, rule: AnswerRule) -> TracedPair:
    """An encoded pair: the candidates are the original's objects after its operations, by slot of their box."""
    story = pair.original.story
    contents = [(box, thing) for box, thing in story.state().items() if thing is not None]
    rival = encoder.answer_token(pair.counterfactual.answer, rule) if pair.counterfactual.answerable else None
    return TracedPair(
        pair.id,
        original,
        other,
        encoder.answer_tokens([thing for _, thing in contents], rule),
        [box for box, _ in contents].index(pair.original.question),
        rival,
    )


def correct_ones(surgeon: Surgeon, pool: Iterator[TracedPair], n: int) -> list[TracedPair]:
    """The first `n` pairs of a pool whose original is answered correctly; consumes no more of the pool than needed.

    Takes pairs in the blocks in which they are traced, so that one recording can serve both. Correct, as published,
    means that the first largest logit among the original's objects is that of its answer.
    """
    correct: list[TracedPair] = []
    while len(correct) < n:
        part = list(islice(pool, min(BLOCK, n - len(correct))))
        if not part:
            break
        correct += [pair for pair, is_right in zip(part, are_right(surgeon, part), strict=True) if is_right]
    return correct[:n]


def are_right(surgeon: Surgeon, pairs: Sequence[TracedPair]) -> list[bool]:
    """Whether each original is answered correctly; runs all of them together."""
    candidates = torch.tensor([pair.candidates for pair in pairs])  # (prompt, candidate)
    logits = candidate_logits(surgeon, [pair.original for pair in pairs], candidates)
    right: list[bool] = (
        logits.argmax(dim=1) == torch.tensor([pair.answer for pair in pairs]).to(logits.device)
    ).tolist()
    return right


def candidate_logits(surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], candidates: torch.Tensor) -> torch.Tensor:
    """Logits of candidates (prompt, candidate) at the readout of unedited prompts."""
    read = Read("logits", at=len(prompts[0]) - 1, reduce=LogitsOf(candidates))
    return surgeon.run(surgeon.record(token_batch(prompts)), [], [read])[0]
