"""Correction for many claims at once: expected false alarms, and the rejections that survive Holm's correction."""

from collections.abc import Mapping
from dataclasses import dataclass

from statsmodels.stats.multitest import multipletests

from rebinding.verdicts.outcome import Verdict


@dataclass(frozen=True)
class Family:
    """The global statement over a run.

    Of `judged` claims, if all were true, `expected_false_alarms` would be NOT REPLICATED by luck (an upper bound: the
    rules keep each error at or below `level`, whatever their dependence). `rejected` are NOT REPLICATED; of these
    `surviving` remain so with family-wise error `level` (Holm). `adjusted` has the adjusted p-values of all judged
    claims that have a p-value.
    """

    level: float
    judged: int
    expected_false_alarms: float
    rejected: tuple[str, ...]
    surviving: tuple[str, ...]
    adjusted: Mapping[str, float]

    @property
    def statement(self) -> str:
        """One sentence for the end of a run."""
        luck = f"{self.judged} claims judged, at most {self.expected_false_alarms:.1f} false alarms expected by luck"
        stand = ", ".join(self.surviving) or "none"
        return f"{luck}; {len(self.rejected)} not replicated, surely so after Holm's correction: {stand}"


def family(verdicts: Mapping[str, Verdict], *, level: float = 0.05) -> Family:
    """Holm's correction over the rejecting tests of all judged claims (any dependence between them is allowed)."""
    judged = {name: verdict for name, verdict in verdicts.items() if verdict.judged and verdict.kind != "report"}
    p_values = {name: verdict.p_value for name, verdict in judged.items() if verdict.p_value is not None}
    adjusted: dict[str, float] = {}
    if p_values:
        corrected = multipletests(list(p_values.values()), alpha=level, method="holm")[1]
        adjusted = {name: float(p) for name, p in zip(p_values, corrected, strict=True)}
    rejected = tuple(name for name, verdict in judged.items() if verdict.outcome == "NOT REPLICATED")
    surviving = tuple(name for name in rejected if adjusted.get(name, 1.0) <= level)
    return Family(level, len(judged), level * len(judged), rejected, surviving, adjusted)
