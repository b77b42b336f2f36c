"""What the first-order screen of position-free discovery leaves out: `python -m benchmarks.screened [PLANT ...]`.

Every step of a search is run with and without the screen. A row that the screen skips is an effect in one prompt, and
should be below `NEGLIGIBLE` of the threshold for nodes. Printed is how many are not, and the largest. Then the graph is
compared with that of the exact search (`screen="none"`, `min_attention=0`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.search.graph import Node
from rebinding.experiments.search.request import SearchSettings
from rebinding.experiments.search.search import NEGLIGIBLE, MeasuredSteps, Search
from rebinding.planted import build, parse
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.prompts import Encoder
from tests.experiments.setup import noise_pairs

PLANTS = ("pointer@llama", "lexical@llama", "global@llama", "recency@llama")
PROMPTS, SHARES = 36, (0.02, 0.002)
ROW = ["component", "prompt", "layer", "head", "token"]


@dataclass(eq=False)
class ComparedSteps(MeasuredSteps):
    """Screened steps; `skipped` has the effects of the rows that the screen skips, step by step."""

    n_run: int = 0
    skipped: list[pd.Series] = field(default_factory=list)

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: SearchSettings
    ) -> Evidence:
        evidence = super().step(block, receivers, allowed, settings)
        if receivers and settings.screen == "first-order":
            full = super().step(block, receivers, allowed, replace(settings, screen="none")).rows.set_index(ROW)
            self.n_run += len(evidence.rows)
            rows = full.loc[full.index.difference(evidence.rows.set_index(ROW).index)]
            self.skipped.append((rows["after"] - rows["before"]).abs())
        return evidence


def compare(name: str, share: float) -> str:
    """One plant at one threshold."""
    plant = build(parse(name))
    pairs, surgeon = (
        noise_pairs(Encoder(plant.tokenizer), range(PROMPTS)),
        TorchSurgeon(plant.model, derive(plant.model)),
    )
    settings = SearchSettings(share)
    steps = ComparedSteps(surgeon, pairs, settings.block)
    screened = Search(pairs, settings, steps)
    exact = Search(pairs, replace(settings, screen="none", min_attention=0.0), steps)
    graph, full = screened.graph(), exact.graph()
    effects = pd.concat(steps.skipped) / (share * abs(screened.total_loss))
    edges, all_edges = ({edge[:3] for edge in each.edges} for each in (graph, full))
    return (
        f"{name}, share {share}: {steps.n_run} rows run, {len(effects)} skipped, of these"
        f" {(effects >= NEGLIGIBLE).sum()} of at least {NEGLIGIBLE} of the threshold (largest {effects.max():.2f});"
        f" nodes lost {len({*full.nodes} - {*graph.nodes})}, gained {len({*graph.nodes} - {*full.nodes})},"
        f" of {len(full.nodes)}; edges lost {len(all_edges - edges)}, gained {len(edges - all_edges)},"
        f" of {len(all_edges)}"
    )


if __name__ == "__main__":
    for plant in sys.argv[1:] or PLANTS:
        for least in SHARES:
            print(compare(plant, least), flush=True)
