"""A small shape without weights, and an evidence source that adds up what requests to it cost."""

from __future__ import annotations

from typing import Any

from rebinding.cost.fake_device import FakeDevice
from rebinding.cost.hollow_model import RowCountingSurgeon, load_hollow
from rebinding.cost.source import CostSource
from rebinding.evidence import Request
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import Workbench
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery.memory import CPU_BUDGET
from rebinding.surgery.recording import Recordings

SIZES = {"small": (3, 128), "middle": (5, 256), "large": (7, 384)}
"""Layers and hidden size of three shapes."""
TOKENS = 83
HEADS = Circuit(tuple(CircuitHead(group, layer, 1, role) for group, layer, role in (
    ("A", 2, "readout"), ("B", 2, "readout"), ("B", 1, "readout"), ("C", 1, "question_box"), ("D", 1, "swap_partner"),
    ("E", 0, "context_partner"),
)))  # fmt: skip


def overrides(layers: int, hidden: int) -> dict[str, Any]:
    return {
        **{"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 3 * hidden, "vocab_size": 4000},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
        "layer_types": (["sliding_attention", "full_attention"] * layers)[:layers],
    }


def hollow_bench(fake_device: FakeDevice, size: str = "small") -> Workbench:
    return Workbench(
        load_hollow(
            "gemma2-9b",
            fake_device,
            dtype="float32",
            tokens=TOKENS,
            budget=lambda: CPU_BUDGET,
            **overrides(*SIZES[size]),
        )
    )


def make_source(heads: Circuit = HEADS) -> CostSource:
    fake_device = FakeDevice()
    return CostSource(hollow_bench(fake_device), fake_device, heads)


def remembered(source: CostSource) -> Recordings:
    """The recordings that the surgeon of a hollow bench keeps."""
    assert isinstance(source.bench.surgeon, RowCountingSurgeon)
    return source.bench.surgeon.recordings


def flop(source: CostSource, request: Request) -> int:
    """What all of a request takes if nothing is remembered from before."""
    with source.fake_device:
        remembered(source).entries.clear()
        source.fake_device.ledger.reset()
        experiment_of(type(request)).run(source.bench, request)
    return source.fake_device.ledger.flop
