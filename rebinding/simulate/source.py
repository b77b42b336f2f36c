"""An evidence source that draws evidence from a world, the table of its simulators, and its engine.

The table has the function that draws evidence of each experiment, or says why there is none.

The claims, their gates and their rules are the real ones; no model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import pandas as pd
import torch

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.store import Store
from rebinding.experiments.prompts import Stories
from rebinding.experiments.roles.request import Interchange
from rebinding.models import LoadedModel
from rebinding.paper.numbers import checkpoint
from rebinding.paper.procedure import EITHER
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.simulate.attention import simulate_attention, simulate_shifts
from rebinding.simulate.circuits import (
    simulate_ability,
    simulate_ablation,
    simulate_contributions,
    simulate_floors,
    simulate_group_knockout,
    simulate_interchange,
    simulate_paths,
    simulate_pruning,
    simulate_random_interchange,
    simulate_replays,
    simulate_stream,
)
from rebinding.simulate.tracing import simulate_answered, simulate_diagnostic, simulate_map, simulate_mention
from rebinding.simulate.worlds import NotSimulated, Run, at_unmeasured_token
from rebinding.study.engine import Engine, Session
from rebinding.surgery.anatomy import NOWHERE, Anatomy, LayerParts, Mask
from rebinding.task.chat import form_of
from rebinding.task.prompts import Encoder

Simulator: TypeAlias = Callable[[Stories, Any, Run], tuple[pd.DataFrame, dict[str, Any]]]
"""From prompts, a request and a sample of a world to rows, and to the settings that summaries look at."""
SIMULATORS: dict[str, Simulator] = {
    "ability": simulate_ability,
    "replays": simulate_replays,
    "floors": simulate_floors,
    "answered": simulate_answered,
    "tracing": simulate_map,
    "first-mention": simulate_mention,
    "readout-diagnostic": simulate_diagnostic,
    "paths": simulate_paths,
    "ablation": simulate_ablation,
    "group-knockout": simulate_group_knockout,
    "pruning": simulate_pruning,
    "contributions": simulate_contributions,
    "stream": simulate_stream,
    "roles": simulate_interchange,
    "random groups": simulate_random_interchange,
    "attention": simulate_attention,
    "binding": simulate_shifts,
}
LEFT_OUT: dict[str, str] = {
    "stored-state": "ours; no sentence says which tokens hold the objects",
    "means": "tensors; a simulated ablation needs none",
    "unswapped": "ours; the paper says nothing of the circuit on stories without its swap",
    "knockout": "ours; no sentence says what the model does without the circuit",
    "search steps": "ours; a world would have to say which of all heads and tokens a search finds",
    "search losses": "ours; a world would have to say which of all heads and tokens a search finds",
    "crossings": "ours; a world would have to say which of all heads and tokens a search finds",
    "searched circuit": "ours; a world would have to say which of all heads and tokens a search finds",
    "swap_label_directions": "tensors; the exchange that needs them is not simulated",
    "swap_labels": "ours; no sentence says what a swap label's key does",
    "shaped-attention": "the text has no number for what D does to C's attention",
    "directions": "tensors; a simulated shift needs none",
    "exchange": "ours; no sentence says what a head's own query of another question does",
}
"""Why there is no simulated evidence of an experiment; the table of rates shows the reason."""


def simulator_of(kind: type[Request]) -> Simulator:
    """The function that draws evidence of a class of requests; NotSimulated names one that has none, and why."""
    name = kind.KIND.name
    if name not in SIMULATORS:
        raise NotSimulated(f"{name} ({LEFT_OUT[name]})" if name in LEFT_OUT else name)
    return SIMULATORS[name]


class Simulated:
    """The evidence of one sample of a world. Two requests on the same prompts get paired numbers."""

    def __init__(self, prompts: Stories, run: Run) -> None:
        self.prompts = prompts
        self.run = run

    def get(self, request: Request) -> Evidence:
        """Draw the evidence of a request; raises NotSimulated for a kind without a simulator."""
        simulate = simulator_of(type(request))
        rows, settings = simulate(self.prompts, request, self._run_for(request))
        return request.KIND.evidence(rows, settings)

    def _run_for(self, request: Request) -> Run:
        """The run for a request. Shortened prompts are read at another token than the paper's numbers."""
        world, cut = self.run.world, request.prompts.cut if isinstance(request, OnPrompts) else 0
        if cut:
            world = at_unmeasured_token(world)
        readout = next((name for name, removed in EITHER.items() if removed == cut), "")
        world = world.under(readout)
        return replace(self.run, world=world if cut else world.under(convention_of(request)))


def convention_of(request: Request) -> str:
    """The conventions of section 4.2 that a request has, as verdicts name them; nothing of another section."""
    if not isinstance(request, Interchange):
        return ""
    return "paper places, text direction" if request.mode == "paper" else "published places, code direction"


class SimulatedEngine(Engine):
    """An engine without computation: a session draws its evidence from one sample of its model's world."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def loaded_model(self, name: str, *, dtype: str, device: str, store: Store | None) -> LoadedModel:
        return subject_without_weights(self.run.world.model)

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        prompts = shared_prompts(skip_prompts)
        form = checkpoint(self.run.world.model).chat
        return Session(loaded_model, prompts, Simulated(prompts, self.run), form)


@cache
def embedded_tokenizer() -> Any:
    """The tokenizer of the package, which encodes the prompts of all models."""
    return build_tokenizer()


@cache
def shared_prompts(skip_prompts: int) -> Stories:
    """The prompts of all models and samples, encoded once."""
    tokenizer = embedded_tokenizer()
    return Stories(Encoder(tokenizer, form_of(tokenizer)), skip_prompts=skip_prompts)


@cache
def subject_without_weights(model: str) -> LoadedModel:
    """One of the paper's models without its weights, with the number of its layers and heads."""
    tokenizer, anatomy = embedded_tokenizer(), anatomy_of(model)
    form, device = form_of(tokenizer), torch.device("cpu")
    return LoadedModel(
        model, _refuse_to_load, tokenizer, anatomy, form, "bfloat16", device, known_fingerprint=f"{model}, simulated"
    )


def _refuse_to_load() -> Any:
    raise AssertionError("the evidence of this model is simulated, and something requested its weights")


def anatomy_of(model: str) -> Anatomy:
    """The sizes of a model of the paper, without module paths."""
    shape = checkpoint(model)
    parts = tuple(
        LayerParts(
            number, shape.heads, shape.kv_heads, shape.head_dim, "", NOWHERE, NOWHERE, NOWHERE, "", (), Mask(), number
        )
        for number in range(shape.layers)
    )
    return Anatomy(parts, shape.heads * shape.head_dim, 0, decoder="", layers="", final_norm="", head="", branches=None)
