"""Numbers from rows of tracing: by token for figures, by role for claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence, EvidenceError
from rebinding.evidence.evidence import cache_by_evidence
from rebinding.experiments.tracing.request import SpanName, before_the_answer
from rebinding.paper.claim import margin_of
from rebinding.paper.procedure import TracingConventions
from rebinding.verdicts.estimates import Array
from rebinding.verdicts.gates import Gate, requirement

MOST_CHANGE = 0.5
Measure: TypeAlias = Literal["hit", "hit_with_counterfactual"]


def normalised(iia: Any, base: Any) -> Any:
    """Normalised interchange intervention accuracy: (IIA - base) / (1 - base).

    IIA is the share of pairs in which the patched counterfactual run gives the original's answer; base is the same
    share without a patch. So 0 means that the patch restored nothing, 1 that it restored all that could be restored,
    and a negative number that it did harm. At base = 1 there is nothing to restore and the value is NaN. The paper
    says "normalized IIA" without a definition, and the published procedure has neither base nor norm; so report IIA
    and base with this number.
    """
    room = 1.0 - pd.Series(base, dtype=float)
    value = (pd.Series(iia, dtype=float) - pd.Series(base, dtype=float)) / room.where(room > 0)
    return value if isinstance(iia, pd.Series) else float(value.iloc[0])


def by_token(evidence: Evidence, measure: Measure = "hit") -> pd.DataFrame:
    """A line per layer and token: IIA, base, normalised IIA, mean margins, and how many pairs were run and differ."""
    summary = _summed(evidence.rows, ["layer", "token"], measure)
    names = evidence.rows.groupby("token", observed=True)["role"].agg(lambda role: "|".join(sorted(set(role) - {""})))
    return summary.assign(role=summary["token"].map(names))


def by_role(evidence: Evidence, measure: Measure = "hit") -> pd.DataFrame:
    """A line per role and layer, for claims; a role's token may differ between prompts."""
    rows = claimable(evidence).rows
    return _summed(rows[rows["role"] != ""], ["role", "layer"], measure)


@cache_by_evidence
def leading(evidence: Evidence, conventions: TracingConventions) -> pd.DataFrame:
    """Whether the original's answer leads, with a patch (`lead`) and without (`base`).

    As published, its logit must be the first largest among the original's objects. If no object has a substantial
    logit, noise and ties decide which is the largest; so `clear` requires a lead by the margin for logits. If the
    counterfactual has no answer (the asked box is gone), that is always required.
    """
    rows = claimable(evidence).rows
    is_clear = conventions.lead == "clear" or rows["counterfactual_margin"].isna().any()
    columns = {}
    for name, prefix in (("lead", ""), ("base", "base_")):
        rivals = ("margin",) if conventions.candidates == "original" else ("margin", "counterfactual_margin")
        over = rows[[f"{prefix}{rival}" for rival in rivals]].min(axis=1)  # skips NaN
        hit = rows[f"{prefix}{'hit' if conventions.candidates == 'original' else 'hit_with_counterfactual'}"]
        columns[name] = (over >= margin_of("margin")) if is_clear else hit
    return rows.assign(**{name: column.astype(float) for name, column in columns.items()})


@cache_by_evidence
def gains(evidence: Evidence, role: str, conventions: TracingConventions) -> pd.DataFrame:
    """The effect of patching a role's token, by layer and prompt: (lead - base) / room.

    Layers start at the second: at the input of the first, a patch of the edited token is the original run itself, and a
    patch of any other token is a no-op.
    """
    rows = leading(evidence, conventions)
    here = at(rows[rows["layer"] > 0], role)
    with_gain = here.assign(gain=(here["lead"] - here["base"]) / room(evidence, conventions))
    return with_gain.pivot(index="layer", columns="prompt", values="gain")


def gains_by_place(evidence: Evidence, conventions: TracingConventions, *roles: str) -> Array:
    """The effect of patching the tokens of some roles: (place, prompt); a place is a role and a layer."""
    return np.concatenate([gains(evidence, role, conventions).to_numpy() for role in roles])


def context_contribution(evidence: Evidence, conventions: TracingConventions) -> Array:
    """What the context label adds to the swap label: (layer, prompt); the lead with both patched minus that with one.

    If a run has a box neither from the context nor from the swap, no object has a substantial logit, and noise decides
    which is the largest. So here the answer has to lead clearly, whatever the procedure.
    """
    rows = leading(evidence, replace(conventions, lead="clear"))
    both, swap = (
        rows[rows["patched"] == name].pivot(index="layer", columns="prompt", values="lead") for name in ("both", "swap")
    )
    difference: Array = ((both - swap) / room(evidence, conventions)).to_numpy()
    return difference


def first_layer(evidence: Evidence, conventions: TracingConventions, *roles: str) -> pd.Series:
    """By prompt the first layer at which one of these roles restores the answer; the last layer + 1 if none does."""
    restores = sum(
        (gains(evidence, role, conventions) > 0 for role in roles[1:]), gains(evidence, roles[0], conventions) > 0
    )
    return restores.idxmax().where(restores.any(), int(evidence.rows["layer"].max()) + 1)


def last_layer(evidence: Evidence, conventions: TracingConventions, role: str) -> pd.Series:
    """By prompt the last layer at which a role restores the answer; at the first the edited token always does."""
    restores = gains(evidence, role, conventions) > 0
    return restores[::-1].idxmax().where(restores.any(), 0)


def restorable(evidence: Evidence, conventions: TracingConventions) -> pd.Series:
    """By prompt whether the unpatched counterfactual lacks the original's answer."""
    return leading(evidence, conventions).groupby("prompt")["base"].first() == 0


def room(evidence: Evidence, conventions: TracingConventions) -> float:
    """The share of prompts in which there is something to restore; 1 if gains are not normalised, or if the share is
    0."""
    return 1.0 if conventions.scale == "raw" else 1.0 - unpatched_hit_rate(evidence, conventions) or 1.0


def support(evidence: Evidence, conventions: TracingConventions) -> tuple[float, float]:
    """The range of one prompt's gain."""
    return -1.0 / room(evidence, conventions), 1.0 / room(evidence, conventions)


@cache_by_evidence
def unpatched_hit_rate(evidence: Evidence, conventions: TracingConventions) -> float:
    """The share of prompts in which the unpatched counterfactual gives the original's answer."""
    return float(leading(evidence, conventions).groupby("prompt")["base"].first().mean())


def margin_change(evidence: Evidence, place: str, layers: Literal["every_layer", "not_the_last"]) -> pd.DataFrame:
    """The change of the margin when a token is patched at many layers together: (prompt, question)."""
    rows = evidence.rows
    last = int(rows["last"].max())
    end = last if layers == "every_layer" else before_the_answer(last + 1).last
    is_window = (rows["first"] == 0) & (rows["last"] == end) & (rows["place"] == place)
    return rows[is_window].pivot(index="prompt", columns="question", values="change").dropna(axis=1)


def at(rows: pd.DataFrame, role: str) -> pd.DataFrame:
    """The rows of a role's token; its position may differ between prompts."""
    of_role = rows[(rows["role"] == role) | (rows["place"] == role)]
    if of_role.empty:
        names = sorted({*rows["role"], *rows["place"]} - {""})
        raise EvidenceError(f"no token has the role {role!r} in this evidence; the roles are {', '.join(names)}")
    return of_role


def claimable(evidence: Evidence) -> Evidence:
    """The evidence; an error if its counterfactuals keep the original's answer, because no claim can rest on it."""
    if not evidence.settings.get("changes_answer", True):
        raise EvidenceError(
            f"mode {evidence.settings.get('mode')!r} leaves the answer as it is; restoring it supports no claim."
            " Trace a mode that changes the answer"
        )
    return evidence


def _summed(rows: pd.DataFrame, keys: list[str], measure: Measure) -> pd.DataFrame:
    means = rows.groupby(keys, observed=True, as_index=False).agg(
        iia=(measure, "mean"),
        base=(f"base_{measure}", "mean"),
        margin=("margin", "mean"),
        base_margin=("base_margin", "mean"),
        pairs=("prompt", "nunique"),
        ran=("ran", "sum"),
        differs=("differs", "sum"),
    )
    return means.assign(normalised=normalised(means["iia"], means["base"]))


def becomes_other_object(evidence: Evidence, span: SpanName) -> npt.NDArray[np.bool_]:
    """Whether the answer becomes the object that a prompt with other objects answers with: (prompt,)."""
    rows = evidence.rows
    return rows.loc[(rows["donor"] == "objects") & (rows["span"] == span), "second"].to_numpy(dtype=bool)


def gate_swap_moves(evidence: Evidence) -> Gate:
    """The tokens of another swap change most answers: the patch acts, and what the swap says passes through it."""
    rows = evidence.rows
    own = rows.loc[(rows["donor"] == "swap") & (rows["span"] == "state"), "own"].to_numpy(dtype=bool)
    share = 1 - own.mean()
    detail = f"the tokens of another swap change {share:.0%} of the answers, more than half is needed"
    return requirement("swap_changes_answer", share > MOST_CHANGE, detail)
