"""Mutants: faults known in this field, each with the cells of the truth table that must catch it."""

from __future__ import annotations

from dataclasses import dataclass

POINTER = "planted:pointer"


@dataclass(frozen=True)
class Mutant:
    """One place of the instrument, changed.

    `cells` are (claim, model); every one of them must turn red. `before` are claims that are judged first, on the same
    models, with a store in common.
    """

    name: str
    file: str
    right: str
    wrong: str
    cells: tuple[tuple[str, str], ...]
    before: tuple[str, ...] = ()


def make_cells(model: str, *claims: str) -> tuple[tuple[str, str], ...]:
    """Cells of one model."""
    return tuple((claim, model) for claim in claims)


EXPERIMENTS, STUDY = "rebinding/experiments", "rebinding/study"
MUTANTS = (
    Mutant(
        "flip a sign",
        f"{EXPERIMENTS}/binding/conditions.py",
        "q, at_j = directions.query_shift(i, j),",
        "q, at_j = -directions.query_shift(i, j),",
        make_cells(POINTER, "binding.q_redirects", "binding.qk_cancels"),
    ),
    Mutant(
        "swap i and j",
        f"{EXPERIMENTS}/binding/summary.py",
        "values[lines, j] - values[lines, i]",
        "values[lines, i] - values[lines, j]",
        make_cells(POINTER, "binding.k_redirects", "binding.table.q.dR"),
    ),
    Mutant(
        "skip an edit",
        f"{EXPERIMENTS}/binding/measure.py",
        "if shift.q is not None:",
        "if shift.q is not None and shift.at_i is not None:",
        make_cells(POINTER, "binding.q_redirects", "binding.table.q.switch"),
    ),
    Mutant(
        "give the clean run back",
        f"{EXPERIMENTS}/tracing/maps.py",
        "logits[:, patched, column] = values.cpu().transpose(0, 1)",
        "logits[:, patched, column] = base[:, None]",
        make_cells(POINTER, "tracing.boxes_emerge_after_swap.controlled", "tracing.object_direct.controlled"),
    ),
    Mutant(
        "patch a prompt with itself",
        f"{EXPERIMENTS}/roles/measure.py",
        "new = _read(block.surgeon, block.counterfactual, block.counterfactuals, heads, place)",
        "new = _read(block.surgeon, block.original, block.originals, heads, place)",
        make_cells(POINTER, "roles.b_moves_pointer", "roles.b_raises_pointer"),
    ),
    Mutant(
        "score the full model in place of the circuit",
        f"{EXPERIMENTS}/ablation.py",
        "        parts.append(CIRCUITS",
        "        from rebinding.experiments.tokens import full_model\n\n"
        "        whole = full_model(surgeon, prompts[where], answers.of(where), ids[where]).rows\n"
        '        values = torch.tensor(whole[["label_logit", "margin", "hit", "probability"]].to_numpy(float))\n'
        "        values = values[None].expand(len(circuits), -1, -1)\n"
        "        parts.append(CIRCUITS",
        (
            *make_cells(POINTER, "circuit.random_baseline"),
            *make_cells("planted:pointer+missing", "circuit.recovers_accuracy"),
        ),
    ),
    Mutant(
        "read the wrong position",
        f"{EXPERIMENTS}/binding/measure.py",
        "    readout = (readout if source is None else readout[source])[:, None]",
        "    readout = (readout if source is None else readout[source])[:, None] - 1",
        make_cells(POINTER, "binding.q_redirects", "binding.table.k_both.dR"),
    ),
    Mutant(
        "leak to the KV group",
        f"{EXPERIMENTS}/binding/request.py",
        'Variation(TABLE, scope="head")',
        "Variation(TABLE)",
        make_cells("planted:recency+leak", "robust.no_kv_leak"),
    ),
    Mutant(
        "drop the baseline",
        f"{EXPERIMENTS}/tracing/summary.py",
        'gain=(here["lead"] - here["base"]) / room(evidence, conventions)',
        'gain=here["lead"]',
        make_cells(POINTER, "tracing.object_not_through_labels"),
    ),
    Mutant(
        "count slots from one",
        f"{EXPERIMENTS}/binding/measure.py",
        'roles = [f"context_{kind}[{slot}]" for kind in KINDS for slot in range(slots)]',
        'roles = [f"context_{kind}[{(slot + 1) % slots}]" for kind in KINDS for slot in range(slots)]',
        make_cells(POINTER, "binding.q_redirects", "binding.table.q.dR"),
    ),
    Mutant(
        "find a stale shard",
        "rebinding/evidence/store.py",
        'return digest({**about, "code": code, "content": content})',
        'return digest({**about, "code": code, "content": None})',
        make_cells("planted:recency", "binding.key_dominance.controlled"),
        before=("binding.key_dominance",),
    ),
    Mutant(
        "take (head, layer) for (layer, head)",
        "rebinding/paper/circuit.py",
        "return tuple(dict.fromkeys((head.layer, head.head) for head in self.heads if head.group == name))",
        "return tuple(dict.fromkeys((head.head, head.layer) for head in self.heads if head.group == name))",
        make_cells(POINTER, "roles.b_moves_pointer", "circuit.chain.A_logits"),
    ),
    Mutant(
        "ablate to zero",
        f"{EXPERIMENTS}/ablation.py",
        "return {str(layer): mean for",
        "return {str(layer): 0 * mean for",
        make_cells(POINTER, "circuit.recovers_accuracy", "circuit.e_prime"),
    ),
    Mutant(
        "call the circuit random",
        f"{EXPERIMENTS}/ablation.py",
        'random = {CircuitVariant("random", draw=number): variant for',
        'random = {CircuitVariant("random", draw=number): circuit for',
        make_cells(POINTER, "circuit.beats_random", "circuit.random_baseline"),
    ),
    Mutant(
        "widen every margin tenfold",
        "rebinding/verdicts/values.py",
        "    return chosen\n",
        "    return 10 * chosen\n",
        make_cells("planted:pointer+misprint", "binding.table.q.dR", "circuit.random_baseline"),
    ),
    Mutant(
        "judge what a model cannot do",
        f"{STUDY}/gates.py",
        "return above_chance(evidence.rows",
        "return above_chance(1 + 0 * evidence.rows",
        make_cells(POINTER, "robust.more_operations"),
    ),
)
