"""Operations of the paper's experiments at the sizes of its models: the naive schedule, and the least that is exact.

    python -m benchmarks.counts gemma3-12b

Receivers are the paper's published groups (after pruning; those before it were not published).
"""

from __future__ import annotations

import sys

from benchmarks.costs import Shape, minimum_cost, naive
from rebinding.experiments.paths.request import PAPER
from rebinding.models.shapes import shape_config
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import circuit

WRAPPED = {
    "context_asked": 63,
    "context_partner": 69,
    "swap_partner": 85,
    "swap_asked": 88,
    "question_box": 96,
    "readout": 105,
}
"""Role positions of the wrapped Llama-3 prompt, 106 tokens; Gemma's prompts are about as long."""
PROMPTS = 100


def make_shape(alias: str, tokens: int = 106) -> Shape:
    """The sizes of one of the paper's models."""
    text = shape_config(alias).get_text_config()
    return Shape(
        text.num_hidden_layers,
        text.num_attention_heads,
        text.num_key_value_heads,
        text.head_dim,
        text.hidden_size,
        text.intermediate_size,
        text.vocab_size,
        tokens,
    )


def table(alias: str) -> list[str]:
    """PFLOP (two per multiply-add) per stage for 100 prompts, frozen and not, and the bytes of weights per pass."""
    shape, published = make_shape(alias), Circuit(circuit(alias))
    lines = [f"{alias}: {shape.layers} layers x {shape.heads} heads, {shape.tokens} tokens, {PROMPTS} prompts; PFLOP"]
    lines.append(f"{'stage':8} {'naive':>9} {'frozen':>9} {'ratio':>7} {'unfrozen':>9} {'ratio':>7}")
    sums = [0.0, 0.0, 0.0]
    for stage in PAPER:
        receivers = published.group(stage.receivers) if stage.receivers else ()
        costs = [pflop(naive(shape, stage))]
        costs += [pflop(minimum_cost(shape, stage, WRAPPED, receivers, frozen=frozen)) for frozen in (True, False)]
        sums = [total + cost for total, cost in zip(sums, costs, strict=True)]
        lines.append(line(stage.group, costs))
    lines.append(line("all", sums))
    weights = shape.layers * (shape.projections + shape.mlp) + shape.head
    lines.append(
        f"weights of the matrices: {weights / 1e9:.2f} G, {2 * weights / 1e9:.1f} GB in bf16 read once a batch"
    )
    return lines


def pflop(multiply_adds: int) -> float:
    """For all prompts."""
    return 2 * multiply_adds * PROMPTS / 1e15


def line(name: str, costs: list[float]) -> str:
    """A row of the table."""
    naive_, frozen, unfrozen = costs
    return f"{name:8} {naive_:9.1f} {frozen:9.2f} {naive_ / frozen:7.1f} {unfrozen:9.2f} {naive_ / unfrozen:7.1f}"


if __name__ == "__main__":
    print("\n".join(table(sys.argv[1] if len(sys.argv) > 1 else "gemma3-12b")))
