"""Section 4.1: does a circuit do the task while every other head is ablated to its mean?

**Mean ablation.** The mean of z is taken per layer, absolute token and head over a stated set of prompts. In an ablated
run every head at every token is set to its mean, except that a head of the circuit keeps the value that it computes at
the token of its group's role. MLPs and norms are recomputed; everything happens in one forward pass.

A mean over prompts of fixed slots carries "go to slot 1" into the ablated model, and with it part of what the circuit
is supposed to do. Prompts that counterbalance the slots cannot carry it. Which set was used is part of the evidence.

Many circuits are evaluated as one batch of held runs (`rebinding.surgery.held`), which compute five tokens of a prompt
rather than all of it; `method="edits"` runs the same as ordinary edits on any surgeon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.circuit.kinds import CIRCUITS, MEASURES
from rebinding.experiments.readout import BLOCK, blocks
from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.circuit import Circuit
from rebinding.surgery import Edit, Live, Read, Surgeon, TorchSurgeon
from rebinding.surgery.sites import Take
from rebinding.world.prompts import Encoded

Method = Literal["held", "edits"]


@dataclass(frozen=True, eq=False)
class Answers:
    """The candidates of each prompt: `tokens` (prompt, candidate, alias), the right one at `right` (prompt,).

    A candidate with fewer aliases than the widest repeats one; its logit is the largest of its aliases'. `lowest` says
    who answers where logits are equal: as published the lowest token, else nobody. In 16 bits logits often are.
    """

    tokens: Tensor
    right: Tensor
    lowest: bool = False

    def of(self, prompts: slice) -> Answers:
        """Those of some prompts."""
        return replace(self, tokens=self.tokens[prompts], right=self.right[prompts])

    def take(self, source: Tensor) -> Take:
        """Keep (row, measure): the answer's logit, its margin over the best other candidate, hit, and probability.

        A hit is a logit above that of every other candidate, or, with `lowest`, the answer's token being the lowest of
        those with the largest logit. The probability sums over the answer's distinct aliases.
        """

        def measures(logits: Tensor, rows: Tensor) -> Tensor:
            prompts = source[rows]
            tokens, right = self.tokens[prompts].to(logits.device), self.right[prompts].to(logits.device)
            flat = logits[:, 0].float()  # (row, vocabulary)
            found = flat.gather(1, tokens.flatten(1)).view(tokens.shape)  # (row, candidate, alias)
            best = found.amax(dim=2)  # (row, candidate)
            label = best.gather(1, right[:, None])  # (row, 1)
            others = best.scatter(1, right[:, None], -torch.inf).amax(dim=1, keepdim=True)  # (row, 1)
            own = found[torch.arange(len(right)), right]  # (row, alias)
            named = tokens[torch.arange(len(right)), right].sort(dim=1)
            again = torch.zeros_like(named.values, dtype=torch.bool)
            again[:, 1:] = named.values[:, 1:] == named.values[:, :-1]
            own = own.gather(1, named.indices).masked_fill(again, -torch.inf)
            probability = torch.exp(own.logsumexp(1) - flat.logsumexp(1))[:, None]
            return torch.cat([label, label - others, self._hits(found, tokens, right), probability], dim=1)

        return measures

    def _hits(self, found: Tensor, tokens: Tensor, right: Tensor) -> Tensor:
        """Who answers, from logits and tokens (row, candidate, alias): 1 where it is the right one, (row, 1)."""
        rows, best = torch.arange(len(right)), found.amax(dim=2)  # (row,), (row, candidate)
        if not self.lowest:
            others = best.scatter(1, right[:, None], -torch.inf).amax(dim=1)  # (row,)
            return (best[rows, right] > others).float()[:, None]
        largest = found == best.amax(dim=1)[:, None, None]  # (row, candidate, alias)
        first = tokens.masked_fill(~largest, torch.iinfo(tokens.dtype).max).flatten(1).amin(dim=1)  # (row,)
        return (tokens[rows, right] == first[:, None]).any(dim=1, keepdim=True).float()


def mean_z(surgeon: Surgeon, prompts: Sequence[Encoded], *, block: int = BLOCK) -> list[Tensor]:
    """The mean of z over prompts, per layer: (head, token, head_dim); summed in float64."""
    total: list[Tensor] = []
    for where in blocks(len(prompts), block):
        z = surgeon.record(token_batch(prompts[where]), keep={"z"}).sites["z"]
        sums = [values.sum(dim=0, dtype=torch.float64) for values in z]
        total = sums if not total else [old + new for old, new in zip(total, sums, strict=True)]
    return [values / len(prompts) for values in total]


def full_model(surgeon: Surgeon, prompts: Sequence[Encoded], answers: Answers, ids: Sequence[int]) -> Evidence:
    """The unedited model, measured like a circuit."""
    parts = []
    for where in blocks(len(prompts), BLOCK):
        part = answers.of(where)
        take = part.take(torch.arange(len(prompts[where])))
        read = Read("logits", positions=positions(prompts[where], "readout")[:, None], take=take)
        parts += surgeon.run(surgeon.record(token_batch(prompts[where])), [], [read])
    return CIRCUITS.evidence(as_table(["full model"], ids, torch.cat(parts)[None]), {"ablation": None})


def evaluate(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    answers: Answers,
    ids: Sequence[int],
    circuits: Mapping[str, Circuit],
    means: Sequence[Tensor],
    *,
    mean_set: str,
    method: Method = "held",
    block: int = BLOCK,
) -> Evidence:
    """Every circuit on every prompt, all else ablated: a row per circuit and prompt."""
    settings: dict[str, Any] = {"ablation": "mean", "mean_set": mean_set}
    shards = []
    for where in blocks(len(prompts), block):
        part = answers.of(where)
        run = measurer(surgeon, prompts[where], part, means, method)
        values = run(list(circuits.values()))  # (circuit, prompt, measure)
        shards.append(CIRCUITS.evidence(as_table(list(circuits), ids[where], values), settings))
    return merge(shards)


def live_places(circuits: Sequence[Circuit], prompts: Sequence[Encoded]) -> Live:
    """Where heads stay alive, for rows ordered circuit, prompt."""
    n = len(prompts)
    roles = {head.role for circuit in circuits for head in circuit.heads}
    at = {role: positions(prompts, role) for role in roles}  # role -> (prompt,)
    kept = [
        (number, layer, head, role)
        for number, circuit in enumerate(circuits)
        for layer, head, role in dict.fromkeys((one.layer, one.head, one.role) for one in circuit.heads)
    ]
    table = torch.tensor([one[:3] for one in kept], dtype=torch.long).reshape(-1, 3)
    circuit, layers, heads = (column.repeat_interleave(n) for column in table.unbind(1))
    rows = circuit * n + torch.arange(n).repeat(len(kept))
    places = torch.cat([at[role] for *_, role in kept]) if kept else torch.empty(0, dtype=torch.long)
    return Live(rows, layers, heads, places)


def measurer(
    surgeon: Surgeon, prompts: Sequence[Encoded], answers: Answers, means: Sequence[Tensor], method: Method = "held"
) -> Callable[[Sequence[Circuit]], Tensor]:
    """Measures circuits on prompts that are recorded once, all else ablated: (circuit, prompt, measure).

    Held runs compute the tokens at which a head is alive, and are the torch surgeon's alone; edited ones serve any.
    """
    readout, tokens = positions(prompts, "readout"), token_batch(prompts)
    if method == "held" and isinstance(surgeon, TorchSurgeon):
        held = surgeon.record_held(tokens, means)

        def run(live: Live, source: Tensor, take: Take) -> Tensor:
            return surgeon.run_held(held, live, source=source, readout=readout[source], take=take)

    else:
        recording = surgeon.record(tokens)

        def run(live: Live, source: Tensor, take: Take) -> Tensor:
            read = Read("logits", positions=readout[source][:, None], take=take)
            return surgeon.run(recording, ablation_edits(means, live, source.numel()), [read], source=source)[0]

    def measure(circuits: Sequence[Circuit]) -> Tensor:
        source = torch.arange(len(prompts)).repeat(len(circuits))
        values = run(live_places(circuits, prompts), source, answers.take(source))
        return values.reshape(len(circuits), len(prompts), -1)

    return measure


def ablation_edits(means: Sequence[Tensor], live: Live, n_rows: int) -> list[Edit]:
    """Set z to its mean everywhere but at the live places."""
    edits = []
    for layer, mean in enumerate(means):
        n_heads, n_tokens, _ = mean.shape
        where = torch.ones(n_rows, n_heads, n_tokens, dtype=torch.bool)  # (row, head, token)
        here = live.layers == layer
        where[live.rows[here], live.heads[here], live.positions[here]] = False
        edits.append(Edit("z", layer, mean[None], positions=range(n_tokens), heads=range(n_heads), where=where))
    return edits


def as_table(names: Sequence[str], ids: Sequence[int], values: Tensor) -> pd.DataFrame:
    """(circuit, prompt, measure) as a table."""
    frame = pd.DataFrame(
        {"circuit": [name for name in names for _ in ids], "prompt": [number for _ in names for number in ids]}
    )
    flat = values.reshape(len(frame), len(MEASURES)).cpu()
    return frame.assign(**{name: flat[:, column].numpy() for column, name in enumerate(MEASURES)})
