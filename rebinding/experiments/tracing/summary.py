"""From rows of tracing to numbers: by token for pictures, by role for claims."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from rebinding.evidence import Evidence, EvidenceError
from rebinding.paper.claim import margin_of

Array: TypeAlias = npt.NDArray[np.float64]
Measure: TypeAlias = Literal["hit", "hit_with_counterfactual"]


def normalised(iia: Any, base: Any) -> Any:
    """Normalised interchange intervention accuracy: (IIA - base) / (1 - base).

    IIA is the share of pairs in which the patched counterfactual run gives the original's answer; base is the same
    share without a patch. So 0 means that the patch restored nothing, 1 that it restored all that could be restored,
    and a negative number that it did harm. At base = 1 there is nothing to restore and the value is NaN. The paper
    says "normalized IIA" without a definition and the published procedure has neither base nor norm; so IIA and base
    always stand beside this number.
    """
    room = 1.0 - pd.Series(base, dtype=float)
    value = (pd.Series(iia, dtype=float) - pd.Series(base, dtype=float)) / room.where(room > 0)
    return value if isinstance(iia, pd.Series) else float(value.iloc[0])


def by_token(evidence: Evidence, measure: Measure = "hit") -> pd.DataFrame:
    """One line per layer and token: IIA, base, normalised IIA, mean margins, and how many pairs were run and differ."""
    summary = _summed(evidence.rows, ["layer", "token"], measure)
    names = evidence.rows.groupby("token", observed=True)["role"].agg(lambda role: "|".join(sorted(set(role) - {""})))
    return summary.assign(role=summary["token"].map(names))


def by_role(evidence: Evidence, measure: Measure = "hit") -> pd.DataFrame:
    """One line per role and layer; a role's token may differ between prompts. For claims."""
    rows = claimable(evidence).rows
    return _summed(rows[rows["role"] != ""], ["role", "layer"], measure)


def effects(evidence: Evidence, role: str, measure: Measure = "hit") -> pd.DataFrame:
    """Per prompt and layer what patching a role restores: (hit - base hit) / (1 - base), layers x pairs.

    A line's mean is the normalised IIA of its layer. For claims: refuses evidence that cannot support one.
    """
    here = at(claimable(evidence).rows, role)
    gain = here[measure].astype(float) - here[f"base_{measure}"].astype(float)
    table = here.assign(gain=gain).pivot(index="layer", columns="prompt", values="gain")
    base = float(here.groupby("prompt")[f"base_{measure}"].first().mean())
    return table / (1.0 - base) if base < 1 else table * float("nan")


def restored(evidence: Evidence, *roles: str) -> Array:
    """What patching the tokens of some roles restores, (place, prompt): (lead - base lead) / (1 - mean base lead).

    A place is a role and a layer. Where the unpatched counterfactual gives the original's answer in every prompt there
    is nothing to restore, and every number is 0.
    """
    rows = leading(evidence)
    tables = []
    for role in roles:
        here = at(rows, role)
        tables.append(here.assign(gain=(here["lead"] - here["base"]) / room(evidence)))
    return np.concatenate([one.pivot(index="layer", columns="prompt", values="gain").to_numpy() for one in tables])


def differs(evidence: Evidence, role: str) -> bool:
    """Whether the prompts of every pair differ at a role's token; else a patch there writes what is there already."""
    return bool(at(evidence.rows, role)["differs"].all())


def leading(evidence: Evidence) -> pd.DataFrame:
    """Whether the original's answer comes out, with a patch and without.

    As published: its logit is the first largest among the original's objects. Where the counterfactual has no answer
    (the asked box is gone) that would be decided by ties, so there the answer has to lead by what counts as a
    difference of logits.
    """
    rows = claimable(evidence).rows
    if rows["counterfactual_margin"].notna().all():
        return rows.assign(lead=rows["hit"].astype(float), base=rows["base_hit"].astype(float))
    least = margin_of("margin")
    leads = {
        name: (rows[column] >= least).astype(float) for name, column in (("lead", "margin"), ("base", "base_margin"))
    }
    return rows.assign(**leads)


def room(evidence: Evidence) -> float:
    """The share of prompts in which there is something to restore; 1 where there is nothing at all."""
    return 1.0 - base(evidence) or 1.0


def base(evidence: Evidence) -> float:
    """How often the unpatched counterfactual gives the original's answer."""
    return float(leading(evidence).groupby("prompt")["base"].first().mean())


def all_layers(evidence: Evidence, place: str) -> pd.DataFrame:
    """The change that patching a token at every layer makes, (prompt, question); questions not asked are left out."""
    rows = evidence.rows
    whole = (rows["first"] == 0) & (rows["last"] == rows["last"].max()) & (rows["place"] == place)
    table: pd.DataFrame = rows[whole].pivot(index="prompt", columns="question", values="change").dropna(axis=1)
    return table


def at(rows: pd.DataFrame, role: str) -> pd.DataFrame:
    """The rows of a role's token, which may stand elsewhere in each prompt."""
    here = rows[(rows["role"] == role) | (rows["place"] == role)]
    if here.empty:
        known = sorted({*rows["role"], *rows["place"]} - {""})
        raise EvidenceError(f"no token has the role {role!r} in this evidence; the roles are {', '.join(known)}")
    return here


def claimable(evidence: Evidence) -> Evidence:
    """The evidence, unless its counterfactuals keep the original's answer: then no claim can rest on it."""
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
