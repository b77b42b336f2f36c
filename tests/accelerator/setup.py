"""A plant on pretended devices, and a small request of every kind of experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, attach_execution_device_hook

from rebinding.evidence import Evidence, Request
from rebinding.experiments.circuit.request import Means
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import given
from rebinding.planted import build, parse
from rebinding.rehearsal.ledger import Wait
from rebinding.rehearsal.pretended import Pretence, disguise, pretended
from rebinding.study import binding, circuit, roles, tracing
from rebinding.study.bench import MEANS, Bench
from rebinding.subjects import Subject, check_subject, load
from rebinding.surgery import Anatomy

LOOPS = frozenset({"replay", "replay_frozen", "run_held", "run_layer", "before_layer", "attention"})
"""Functions of the surgeon that go through layers, or are called in each."""


@dataclass(frozen=True, eq=False)
class Place:
    """A plant on the CPU, the same on pretended devices, and the pretence that computes there."""

    here: Bench
    there: Bench
    pretence: Pretence
    anatomy: Anatomy
    circuit: Circuit

    def measured(self, request: Request) -> tuple[Evidence, list[Wait]]:
        """Evidence from there, and where the program waited for the device to compute it."""
        with self.pretence:
            self.pretence.ledger.reset()
            return self.there.measured(request), self.pretence.ledger.waits


def in_loops(waits: list[Wait]) -> list[Wait]:
    """Those that happen once a layer."""
    return [one for one in waits if LOOPS & set(one.within)]


def placed(name: str, devices: int) -> Place:
    """`planted:NAME` on one or two devices, checked there as any subject is when it is loaded."""
    here, there, pretence = load(f"planted:{name}"), load(f"planted:{name}"), Pretence()
    model: Any = there.model
    places = split(there, devices)
    with pretence:
        disguise(model, pretence, places)
        for path, device in places.items() if devices > 1 else ():
            hook_on(model, path, device)
        anatomy = check_subject(model)
    subject = replace(there, opened=lambda: model, device=pretended(), anatomy=anatomy)
    return Place(Bench(here), Bench(subject), pretence, here.anatomy, Circuit(build(parse(name)).circuit))


def split(subject: Subject, devices: int) -> Mapping[str, torch.device]:
    """Layers shared out in order; embedding and logits on the first device, the final norm on the last."""
    count, anatomy = subject.anatomy.n_layers, subject.anatomy
    layers = {f"{anatomy.layers}.{n}": pretended(n * devices // count) for n in range(count)}
    return {"": pretended(0), **layers, anatomy.final_norm: pretended(devices - 1), anatomy.head: pretended(0)}


def hook_on(model: Any, path: str, device: torch.device) -> None:
    """The hooks with which accelerate brings a module's inputs to its device under `device_map="auto"`."""
    module = model.get_submodule(path)
    add_hook_to_module(module, AlignDevicesHook(execution_device=device, io_same_device=path == ""))
    if path:
        attach_execution_device_hook(module, device)


def requests(bench: Bench, heads: Circuit, n: int = 2) -> Iterator[tuple[str, Request]]:
    """A request of every kind, as the study makes them, with few prompts, draws and roles."""
    drawn, found_on = bench.design("published"), bench.design("partner_second")
    ways = given("published")
    way = circuit.of_a_plant(ways.circuit, "published")
    yield "ability", circuit.ability(bench, drawn, n)
    pairs = circuit.noise_pairs(bench, way, n)
    for name, stage in circuit.STAGES.items():
        if name in "ACD":
            receivers = heads.group(stage.receivers) if stage.receivers else ()
            yield f"paths {name}", circuit.link(pairs, stage, receivers, way)
    means = Means(bench.draw(found_on, range(MEANS, MEANS + n)))
    for beside in ("groups", "heads", "random"):
        asked = circuit.ablated(bench, heads, found_on, "published", n=n, beside=beside)
        yield f"ablation {beside}", replace(asked, means=means, draws=1)
    walk = circuit.pruned(bench, Circuit(heads.heads[::2]), way, n=n)
    yield "pruning", replace(walk, means=means, orders=1)
    for pairing in ("pointer", "content_control"):
        yield f"roles {pairing}", roles.interchanged(bench, heads, drawn, pairing, n, ways.roles)
    for variation in ("published", "isolated"):
        shifts = binding.shifted(bench, heads, "published", variation, ways.binding, n=n, directions=2, draws=1)
        yield f"binding {variation}", shifts
    yield "map", tracing.traced(bench, drawn, "target_box", ("swap_second", "readout"), n, ways.tracing)
    yield "diagnostic", tracing.diagnosed(bench, drawn, n // 2, ways.tracing)


def numbers(evidence: Evidence) -> dict[str, Any]:
    """The columns of floats."""
    rows = evidence.rows
    return {str(name): rows[name].to_numpy() for name in rows if rows[name].dtype.kind == "f"}
