"""A study whose evidence is made up: the row, its gates and its rules are the real ones, and no model runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from rebinding.evidence import Evidence, Request
from rebinding.experiments.circuit.discovery import Discovery, TinyProbabilities
from rebinding.experiments.roles.request import Counterfactual
from rebinding.paper.claim import Claim
from rebinding.paper.numbers import checkpoint
from rebinding.paper.procedure import CircuitWay, ProcedureName, RolesWay
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.power.makers import MAKERS
from rebinding.power.world import NotSimulated, Run, elsewhere
from rebinding.study.asked import Asked
from rebinding.study.bench import Bench
from rebinding.study.case import DIRECTIONS, Case
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.subjects import Subject, origin
from rebinding.surgery.anatomy import Anatomy, Projection
from rebinding.verdicts import Gate, group_present
from rebinding.world.chat import Form, form_of

NOWHERE = Projection("", 0, 0)


@dataclass(frozen=True, eq=False)
class Told(Case):
    """One of the paper's models as far as it is known without weights: sizes, circuit, printed numbers."""

    made: Bench = field(kw_only=True)

    def _bench(self, name: str) -> Bench:
        return self.made

    @property
    def form(self) -> Form:
        """That of the model itself: prompts are drawn in the embedded tokenizer, which has another."""
        return checkpoint(self.name).chat

    def directions(self, sets: int) -> int:
        """As many as a run of the usual size asks for: how much directions spread is told by the world."""
        return DIRECTIONS


@dataclass(frozen=True, eq=False)
class Simulated(Study):
    """A study in one sample of a world."""

    run: Run = field(kw_only=True)
    _seen: dict[int, Gate] = field(default_factory=dict, kw_only=True)
    _asked: dict[Any, Evidence] = field(default_factory=dict, kw_only=True)
    _found: dict[tuple[str, CircuitWay], Discovery] = field(default_factory=dict, kw_only=True)

    def gates(self, claim: Claim) -> Iterator[Gate]:
        """The gates that all rows share, looked at once: no row sees other prompts or another model."""
        if claim.boxes not in self._seen:
            shared = [*self.replays_as_it_runs(claim.boxes), self.able(claim.boxes), self.beyond_guessing(claim.boxes)]
            self._seen[claim.boxes] = next((one for one in shared if not one.passed), shared[-1])
        yield self._seen[claim.boxes]
        for name in claim.groups:
            yield group_present(name, self.circuit.group(name))

    def roles(self, claim: Claim, counterfactual: Counterfactual, way: RolesWay | None = None) -> Evidence:
        """As of any study; to put the same question together again for every row takes longer than to answer it."""
        return self._once(super().roles, claim, counterfactual, way)

    def binding(self, claim: Claim, variation: str | None = None) -> Evidence:
        """The same of section 5."""
        return self._once(super().binding, claim, variation)

    def _once(self, ask: Callable[..., Evidence], claim: Claim, *how: Any) -> Evidence:
        key = (ask.__name__, claim.procedure, self.n(claim), self.cut, how)
        if key not in self._asked:
            self._asked[key] = ask(claim, *how)
        return self._asked[key]

    def _discovery(self, procedure: ProcedureName, way: CircuitWay) -> Discovery:
        if (procedure, way) not in self._found:
            with warnings.catch_warnings():  # of made-up answers some have next to no probability, as real ones do
                warnings.simplefilter("ignore", TinyProbabilities)
                self._found[procedure, way] = super()._discovery(procedure, way)
        return self._found[procedure, way]

    def _measured(self, bench: Bench, request: Request) -> Evidence:
        make = MAKERS.get(type(request))
        if make is None:
            raise NotSimulated(f"nobody has said how to make up {request.KIND.name}, of which no number is printed")
        run = replace(self.run, world=elsewhere(self.run.world)) if self.cut else self.run
        rows, settings = make(bench, request, run)
        return request.KIND.evidence(rows, settings)


@cache
def _words() -> tuple[Any, Form, dict[Any, Any], dict[Any, Any]]:
    """The embedded tokenizer and its chat form, and the prompts drawn in it: once for all models and samples."""
    tokenizer = build_tokenizer()
    return tokenizer, form_of(tokenizer), {}, {}


def bench_of(model: str) -> Bench:
    """Prompts for a model without weights."""
    shape, (tokenizer, form, sets, told) = checkpoint(model), _words()
    anatomy = _anatomy(shape.layers, shape.heads, shape.kv_heads, shape.head_dim)
    name = f"{model}, made up"
    subject = Subject(model, _nothing_to_open, tokenizer, anatomy, form, "bfloat16", torch.device("cpu"), told=name)
    return Bench(subject, sets=sets, told=told)


def simulated(model: str, bench: Bench, run: Run, samples: int | None = None) -> Simulated:
    """The study of a model in a sample of a world; `samples` is what `--samples` says."""
    asked = Asked(model, origin(model))
    case = Told(asked, Settings((asked,), samples=samples, device="cpu"), made=bench)
    return Simulated(case, run=run)


def _nothing_to_open() -> Any:
    raise AssertionError("evidence of this model is made up, and something asked for its weights")


def _anatomy(layers: int, heads: int, kv_heads: int, head_dim: int) -> Anatomy:
    """Sizes, and no places: there are no modules."""
    paths = dict.fromkeys(("decoder", "layers", "attention", "mlp", "output", "final_norm", "head"), "")
    return Anatomy(
        n_layers=layers, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim, hidden=heads * head_dim, vocabulary=0,
        q=NOWHERE, k=NOWHERE, v=NOWHERE, norms="unknown", query_key_norms=False, score_softcap=None,
        logit_softcap=None, logit_factor=1.0, windows=(None,) * layers, **paths,
    )  # fmt: skip
