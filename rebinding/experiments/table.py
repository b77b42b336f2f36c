"""The table of experiments: what can be requested, and the function that computes it.

A request says its name, its columns and its blocks. `rebinding.simulate.source` has a
table by the same names, and the figures of `rebinding.report.figures` name the experiments that they show;
`tests/experiments/test_table.py` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from rebinding.evidence import Evidence, Request
from rebinding.experiments.ablation import Ablation, Means, measure_ablation, measure_means
from rebinding.experiments.attention import (
    AttentionToRoles,
    ShapedAttention,
    measure_attention,
    measure_shaped_attention,
)
from rebinding.experiments.binding.measure import measure_exchange, measure_shifts, measure_vectors
from rebinding.experiments.binding.request import Exchange, MeanVectors, Shifts
from rebinding.experiments.binding.swap_labels import (
    LabelExchange,
    LabelVectors,
    measure_label_exchange,
    measure_label_vectors,
)
from rebinding.experiments.circuit.measure import (
    measure_contributions,
    measure_knockout,
    measure_pruning,
    measure_stream,
)
from rebinding.experiments.circuit.request import Contributions, GroupKnockout, Knockout, Pruning, Stream
from rebinding.experiments.paths.measure import measure_paths
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.roles.measure import measure_interchange, measure_random_interchange
from rebinding.experiments.roles.request import Interchange, RandomInterchange
from rebinding.experiments.search.measure import (
    measure_crossings,
    measure_losses,
    measure_searched_circuit,
    measure_step,
)
from rebinding.experiments.search.request import Crossings, Losses, SearchedCircuit, Step
from rebinding.experiments.static import UnswappedQuestions
from rebinding.experiments.tracing.measure import (
    measure_answered,
    measure_diagnostic,
    measure_map,
    measure_mention,
    measure_stored_state,
)
from rebinding.experiments.tracing.request import Answered, FirstMention, ReadoutDiagnostic, StoredState, TracingMap
from rebinding.experiments.unedited import (
    Ability,
    Floors,
    Replays,
    measure_ability,
    measure_floors,
    measure_replays,
)

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


@dataclass(frozen=True)
class Experiment:
    """A class of requests, and the function that computes one from a workbench and the request alone: evidence, or
    tensors that several experiments need."""

    request: type[Request]
    run: Callable[[Workbench, Any], Evidence | Mapping[str, Tensor]]
    makes: Literal["evidence", "tensors"] = "evidence"

    def evidence(self, bench: Workbench, request: Request) -> Evidence:
        result = self.run(bench, request)
        assert isinstance(result, Evidence), f"{request.KIND.name} has tensors and no rows"
        return result

    def tensors(self, bench: Workbench, request: Request) -> Mapping[str, Tensor]:
        result = self.run(bench, request)
        assert not isinstance(result, Evidence), f"{request.KIND.name} has rows and no tensors"
        return result


def by_name(*experiments: Experiment) -> dict[str, Experiment]:
    """Experiments by the names of their kinds."""
    return {experiment.request.KIND.name: experiment for experiment in experiments}


EXPERIMENTS = by_name(
    Experiment(Ability, measure_ability),
    Experiment(Replays, measure_replays),
    Experiment(Floors, measure_floors),
    Experiment(Answered, measure_answered),
    Experiment(TracingMap, measure_map),
    Experiment(FirstMention, measure_mention),
    Experiment(ReadoutDiagnostic, measure_diagnostic),
    Experiment(StoredState, measure_stored_state),
    Experiment(Paths, measure_paths),
    Experiment(Means, measure_means, makes="tensors"),
    Experiment(Ablation, measure_ablation),
    Experiment(UnswappedQuestions, measure_ablation),
    Experiment(Knockout, measure_knockout),
    Experiment(GroupKnockout, measure_knockout),
    Experiment(Pruning, measure_pruning),
    Experiment(Contributions, measure_contributions),
    Experiment(Stream, measure_stream),
    Experiment(Step, measure_step),
    Experiment(Losses, measure_losses),
    Experiment(Crossings, measure_crossings),
    Experiment(SearchedCircuit, measure_searched_circuit),
    Experiment(Interchange, measure_interchange),
    Experiment(RandomInterchange, measure_random_interchange),
    Experiment(LabelVectors, measure_label_vectors, makes="tensors"),
    Experiment(LabelExchange, measure_label_exchange),
    Experiment(AttentionToRoles, measure_attention),
    Experiment(ShapedAttention, measure_shaped_attention),
    Experiment(MeanVectors, measure_vectors, makes="tensors"),
    Experiment(Shifts, measure_shifts),
    Experiment(Exchange, measure_exchange),
)
"""Every experiment, by its name. A suite elsewhere adds its own: `EXPERIMENTS |= by_name(Experiment(...))`."""


def experiment_of(kind: type[Request]) -> Experiment:
    """The entry of the table for a class of requests."""
    experiment = EXPERIMENTS.get(kind.KIND.name)
    if experiment is None or experiment.request is not kind:
        raise LookupError(
            f"no experiment computes {kind.__module__}.{kind.__qualname__} ({kind.KIND.name!r}); "
            "add it to rebinding.experiments.table.EXPERIMENTS"
        )
    return experiment
