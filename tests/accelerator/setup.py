"""A planted model on fake devices, and a small request of every kind of experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, attach_execution_device_hook

from rebinding.cost.fake_device import fake_accelerator, move_to_fake_device
from rebinding.evidence import Evidence, Request
from rebinding.experiments.ablation import Means
from rebinding.experiments.binding.request import request_shifts
from rebinding.experiments.circuit.request import request_ablation, request_pruning
from rebinding.experiments.paths.request import STAGE_BY_NAME, conventions_of_plant, request_paths
from rebinding.experiments.prompts import MEANS_ID, draw_noise_pairs
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.tracing.request import request_diagnostic, request_map
from rebinding.experiments.unedited import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, check, load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build, parse
from rebinding.surgery import Anatomy
from tests.accelerator.cpu_backed import CpuBackedDevice, Wait

LOOPS = frozenset({"replay", "replay_frozen", "run_mean_ablated", "run_layer", "before_layer", "attention"})
"""Functions of the surgeon that go through layers, or are called in each."""


@dataclass(frozen=True, eq=False)
class Place:
    """A planted model on the CPU, the same on fake devices, and the fake device that computes there."""

    cpu: Workbench
    on_device: Workbench
    fake_device: CpuBackedDevice
    anatomy: Anatomy
    circuit: Circuit

    def measure(self, request: Request) -> tuple[Evidence, list[Wait]]:
        """Evidence from there, and where the program waited for the device to compute it."""
        with self.fake_device:
            self.fake_device.waits = []
            return self.on_device.get(request), self.fake_device.waits


def waits_in_loops(waits: list[Wait]) -> list[Wait]:
    """Those that happen once a layer."""
    return [wait for wait in waits if LOOPS & set(wait.within)]


@cache
def place_model(name: str, devices: int) -> Place:
    """`planted:NAME` on one or two devices, checked there as any subject is when it is loaded."""
    cpu_model, device_model, fake_device = load(f"planted:{name}"), load(f"planted:{name}"), CpuBackedDevice()
    model: Any = device_model.model
    places = split(device_model, devices)
    with fake_device:
        move_to_fake_device(model, fake_device, places)
        for path, device in places.items() if devices > 1 else ():
            add_device_hook(model, path, device)
        anatomy = check(model)
    loaded_model = replace(device_model, loader=lambda: model, device=fake_accelerator(), anatomy=anatomy)
    return Place(
        Workbench(cpu_model),
        Workbench(loaded_model),
        fake_device,
        cpu_model.anatomy,
        Circuit(build(parse(name)).circuit),
    )


def split(loaded_model: LoadedModel, devices: int) -> Mapping[str, torch.device]:
    """Layers shared out in order; embedding and logits on the first device, the final norm on the last."""
    count, anatomy = loaded_model.anatomy.n_layers, loaded_model.anatomy
    layers = {f"{anatomy.layers}.{n}": fake_accelerator(n * devices // count) for n in range(count)}
    return {
        "": fake_accelerator(0),
        **layers,
        anatomy.final_norm: fake_accelerator(devices - 1),
        anatomy.head: fake_accelerator(0),
    }


def add_device_hook(model: Any, path: str, device: torch.device) -> None:
    """The hooks with which accelerate brings a module's inputs to its device under `device_map="auto"`."""
    module = model.get_submodule(path)
    add_hook_to_module(module, AlignDevicesHook(execution_device=device, io_same_device=path == ""))
    if path:
        attach_execution_device_hook(module, device)


def requests(bench: Workbench, heads: Circuit, n: int = 2) -> Iterator[tuple[str, Request]]:
    """Requests of the kinds that edit most, as the study makes them, with few prompts, draws and roles."""
    prompts, ways = bench.prompts, builtin_procedure("published")
    design, found_on = prompts.design("published"), prompts.design("partner_second")
    conventions = conventions_of_plant(ways.circuit, "published")
    yield "ability", request_ability(prompts, design, n)
    pairs = draw_noise_pairs(prompts, conventions, n)
    for name, stage in STAGE_BY_NAME.items():
        if name in "ACD":
            receivers = heads.group(stage.receivers) if stage.receivers else ()
            yield f"paths {name}", request_paths(pairs, stage, receivers, conventions)
    means = Means(prompts.draw(found_on, range(MEANS_ID, MEANS_ID + n)))
    for comparison in ("groups", "heads", "random"):
        ablation = request_ablation(prompts, heads, found_on, "published", n=n, comparison=comparison)
        yield f"ablation {comparison}", replace(ablation, means=means, draws=1)
    walk = request_pruning(prompts, Circuit(heads.heads[::2]), conventions, n=n)
    yield "pruning", replace(walk, means=means, orders=1)
    for pairing in ("pointer", "content_control"):
        yield f"roles {pairing}", request_interchange(prompts, heads, design, pairing, n, ways.roles)
    for variation in ("published", "isolated"):
        shifts = request_shifts(prompts, heads, "published", variation, ways.binding, n=n, directions=2, draws=1)
        yield f"binding {variation}", shifts
    yield "map", request_map(prompts, design, range(n), "target_box", ("swap_second", "readout"), ways.tracing)
    yield "diagnostic", request_diagnostic(prompts, design, n // 2, ways.tracing)


def numbers(evidence: Evidence) -> dict[str, Any]:
    """The columns of floats."""
    rows = evidence.rows
    return {str(name): rows[name].to_numpy() for name in rows if rows[name].dtype.kind == "f"}
