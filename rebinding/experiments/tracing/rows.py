"""The rows of tracing: the columns of a cell.

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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

if TYPE_CHECKING:
    from rebinding.experiments.tracing.maps import TracedPair

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
    """Hits and margins from logits (prompt, layer, token, candidate); the last candidate is the rival."""
    values = logits.float().numpy()
    answer = np.array([pair.answer for pair in pairs])[:, None, None]  # (prompt, 1, 1)
    of_answer = np.take_along_axis(values, answer[..., None], axis=-1)[..., 0]  # (prompt, layer, token)
    is_other = np.arange(values.shape[-1] - 1) != answer[..., None]  # (prompt, 1, 1, candidate)
    margin = of_answer - np.where(is_other, values[..., :-1], -np.inf).max(axis=-1)
    has_rival = np.array([pair.rival is not None for pair in pairs])[:, None, None]
    return {
        "hit": values[..., :-1].argmax(axis=-1) == answer,
        "hit_with_counterfactual": values.argmax(axis=-1) == answer,
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
