"""Section 4.1: path patching. Which heads send what the next group reads?

A stage scores every head as a sender, in two runs of the clean prompt:

1. *sender run*: the sender's z at its role is replaced by its value in the noise prompt; the receivers' component
   (their q, k, v, or k and v) is read at the receiver role. With `frozen="all"` every other head's z is held at its
   clean value, MLPs and norms are recomputed (the textbook form); with `frozen="none"` everything is recomputed (the
   published helpers).
2. *receiver run*: a clean run into which those components are written, nothing frozen.

The evidence has the answer's logit, probability and lead over the other objects at the readout, before and after;
`summary.py` computes scores from it. A first stage has no receivers: its readout is that of the sender run itself.

Both runs skip exactly what cannot change the result. A sender run computes the tokens up to the receiver role, from the
sender's layer to the last receiver's; frozen, it computes one token and only MLPs. A receiver run starts at the first
receiver whose component changed, at the receiver role. Senders above every receiver score exactly zero.

A circuit is found by selecting the heads of each stage by their scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, PromptSet
from rebinding.experiments.paths.patching import Block, receiver_run, sender_run
from rebinding.experiments.paths.request import (
    OF_ANSWER,
    PAPER,
    PATHS,
    STAGES_BY,
    Paths,
    PathSettings,
    Stage,
    request_paths,
    write_stratum,
)
from rebinding.experiments.paths.summary import MIN_EFFECT, Scale, Selection, _selected, scores
from rebinding.experiments.prompts import EncodedPrompts
from rebinding.experiments.tokens import blocks, positions, token_batch
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.procedure import CircuitConventions
from rebinding.surgery import Read, Surgeon
from rebinding.task.prompts import Encoder, TokenizedPrompt

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


ONE_STRATUM = ("0",)


@dataclass(eq=False)
class NoisePairs:
    """The prompts of a discovery: clean and noise, aligned, with the answer tokens of the clean prompts.

    All stages share each noise prompt's z at the sender roles. The recordings of the clean prompts are a gigabyte a
    block on a large model, so they stay with the surgeon, which drops them when it has too many.
    """

    ids: tuple[int, ...]
    clean: tuple[TokenizedPrompt, ...]
    noise: tuple[TokenizedPrompt, ...]
    labels: Tensor
    rivals: Tensor
    """Tokens of the other objects (prompt, object); no columns if the lead is the answer's own logit."""
    strata: tuple[str, ...] = ()
    """The stratum of each clean prompt (`write_stratum`); empty if all are in one."""
    noise_z: dict[tuple[int, int, str], dict[int, Tensor]] = field(default_factory=dict, repr=False)

    def block(self, surgeon: Surgeon, stage: Stage, where: slice) -> Block:
        """Record a block of prompts for one stage."""
        clean, noise = self.clean[where], self.noise[where]
        sender_key = (where.start, where.stop, stage.sender)
        if sender_key not in self.noise_z:
            at, having = positions(noise, stage.sender)[:, None], [p for p in surgeon.anatomy.parts if p.n_heads]
            reads = [Read("z", parts.number, positions=at, heads=range(parts.n_heads)) for parts in having]
            values = surgeon.run(surgeon.record(token_batch(noise)), [], reads)
            by_layer = dict(zip((parts.number for parts in having), values, strict=True))
            self.noise_z[sender_key] = by_layer  # layer -> (prompt, head, 1, head_dim)
        return Block(
            surgeon,
            surgeon.record(token_batch(clean), keep={"z"}),
            self.noise_z[sender_key],
            self.labels[where],
            self.rivals[where],
            sender_at=positions(clean, stage.sender),
            receiver_at=None if stage.at is None else positions(clean, stage.at),
            readout=positions(clean, "readout"),
        )


def score_stage(
    surgeon: Surgeon,
    pairs: NoisePairs,
    stage: Stage,
    receivers: Sequence[Head] = (),
    *,
    senders: Sequence[Head] | None = None,
    settings: PathSettings | None = None,
) -> Evidence:
    """Score every head (or some) as a sender of one stage: a row per prompt and head, the answer before and after.

    `settings.block` prompts are run together; with few senders, as many as the surgeon takes.
    """
    if stage.receivers is not None and not receivers:
        raise ValueError(f"stage {stage.group} sends to group {stage.receivers}, which is empty: nothing to score")
    settings = settings or PathSettings()
    receivers = sorted(receivers)
    about = {"stage": asdict(stage), "receivers": [list(head) for head in receivers], **asdict(settings)}
    size = settings.block
    if senders is None:
        senders = list(surgeon.anatomy.heads)
    else:
        senders = sorted(set(senders))
        about["senders"] = [list(head) for head in senders]
        size = max(size, surgeon.prompts_at_once(len(pairs.clean[0])))

    tables = []
    for where in blocks(len(pairs.ids), size):
        block, frozen = pairs.block(surgeon, stage, where), settings.frozen == "all"
        if stage.component is None:
            after = sender_run(block, senders, frozen=frozen)
        else:
            after = receiver_run(block, senders, stage.component, receivers, frozen=frozen, scope=settings.scope)
        tables.append(
            _rows(
                pairs.ids[where],
                (pairs.strata or ONE_STRATUM * len(pairs.ids))[where],
                senders,
                block.before,
                after,
                block.relative_change(senders),
            )
        )
    return PATHS.evidence(pd.concat(tables, ignore_index=True), about)


def _rows(
    ids: Sequence[int], strata: Sequence[str], senders: Sequence[Head], before: Tensor, after: Tensor, change: Tensor
) -> pd.DataFrame:
    """A table of the answer's measures `before` (prompt, 3) and `after` (sender, prompt, 3), and of the relative
    `change` of each sender's z (sender, prompt)."""
    n = len(ids)
    heads = torch.tensor(senders).repeat_interleave(n, 0)  # (row, 2)
    repeated = before.repeat(len(senders), 1)  # (row, 3)
    measured = torch.cat([repeated, after.reshape(-1, 3), change.reshape(-1, 1).to(after.device)], dim=1).cpu()
    names = [*(f"{name}_orig" for name in OF_ANSWER), *(f"{name}_patch" for name in OF_ANSWER), "relative_change"]
    columns = dict(zip(names, measured.unbind(1), strict=True))
    return pd.DataFrame(
        {
            "prompt": [*ids] * len(senders),
            "stratum": [*strata] * len(senders),
            "layer": heads[:, 0].numpy(),
            "head": heads[:, 1].numpy(),
            **{name: values.numpy() for name, values in columns.items()},
        }
    )


def measure_paths(bench: Workbench, request: Paths) -> Evidence:
    """Measure one stage; all stages on the same prompts share their recordings."""
    pairs = bench.get_or_compute(
        (NoisePairs, request.prompts),
        lambda: to_noise_pairs(bench.prompts.encoder, bench.prompts.encode(request.prompts)),
    )
    return score_stage(
        bench.surgeon, pairs, request.stage, request.receivers, senders=request.senders, settings=request.settings
    )


def to_noise_pairs(encoder: Encoder, pairs: EncodedPrompts) -> NoisePairs:
    """Encoded clean and noise prompts, with the answers of the clean ones and the other objects of their stories."""
    prompts = [encoded.prompt for encoded in pairs.prompts]
    labels = torch.tensor([encoder.answer_token(prompt.answer) for prompt in prompts])
    objects = [[word for word in prompt.story.state().values() if word is not None] for prompt in prompts]
    others = [[word for word in words if word != prompt.answer] for words, prompt in zip(objects, prompts, strict=True)]
    rivals = torch.tensor([[encoder.answer_token(word) for word in words] for words in others])
    strata = tuple(map(write_stratum, prompts))
    return NoisePairs(pairs.request.ids, pairs.prompts, pairs.counterfactuals, labels, rivals, strata)


Ask: TypeAlias = Callable[[Paths], Evidence]


@dataclass(frozen=True)
class Discovery:
    """The circuit, and the evidence of every stage that had receivers."""

    circuit: Circuit
    evidence: dict[str, Evidence]


def discover(
    surgeon: Surgeon,
    pairs: NoisePairs,
    stages: Sequence[Stage] = PAPER,
    *,
    settings: PathSettings | None = None,
    scale: Scale = "logit",
    rule: Selection = "sure",
    min_effect: float | None = None,
    distinct: bool = False,
    extra_settings: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order on clean and noise prompts."""
    settings = settings or PathSettings()
    about = {**asdict(settings), "prompts": len(pairs.ids), **(extra_settings or {})}
    return discover_by(
        lambda stage, receivers: score_stage(surgeon, pairs, stage, receivers, settings=settings),
        stages,
        scale=scale,
        rule=rule,
        min_effect=min_effect,
        distinct=distinct,
        extra_settings=about,
    )


def discover_by(
    score: Callable[[Stage, Sequence[Head]], Evidence],
    stages: Sequence[Stage] = PAPER,
    *,
    scale: Scale = "logit",
    rule: Selection = "sure",
    min_effect: float | None = None,
    distinct: bool = False,
    extra_settings: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order; a stage without receivers gives an empty group.

    With `distinct`, no stage selects a head of an earlier one. As published, a head found in both A and B belongs to B
    (the two act at the same token); other heads may act in several groups, each at its role.
    """
    min_effect = MIN_EFFECT[scale] if min_effect is None else min_effect
    groups: dict[str, list[Head]] = {}
    evidence: dict[str, Evidence] = {}
    for stage in stages:
        receivers = groups[stage.receivers] if stage.receivers else []
        if stage.receivers and not receivers:
            groups[stage.group] = []
            continue
        evidence[stage.group] = score(stage, receivers)
        earlier = tuple(head for heads in groups.values() for head in heads) if distinct else ()
        groups[stage.group] = list(_selected(evidence[stage.group], scale, stage.top_k, rule, min_effect, earlier))
    heads = tuple(
        CircuitHead(stage.group, layer, head, stage.sender)
        for number, stage in enumerate(stages)
        for layer, head in groups[stage.group]
        if not _is_in_later_group(stages[number + 1 :], groups, stage, (layer, head))
    )
    settings = {
        "stages": [asdict(stage) for stage in stages],
        "scale": scale,
        "rule": rule,
        "min_effect": min_effect,
        "distinct": distinct,
    }
    return Discovery(Circuit(heads, {**settings, **(extra_settings or {})}), evidence)


def _is_in_later_group(stages: Sequence[Stage], groups: dict[str, list[Head]], stage: Stage, head: Head) -> bool:
    """Whether one of the later `stages` with the same sender role has the head too; the head then belongs to it."""
    return any(later.sender == stage.sender and head in groups[later.group] for later in stages)


def discover_circuit(pairs: PromptSet, conventions: CircuitConventions, ask: Ask) -> Discovery:
    """The circuit that path patching finds; each stage is a request of its own."""
    about = {"design": pairs.design, "noise": pairs.pairing[-1], "prompts": len(pairs.ids)}
    return discover_by(
        lambda stage, heads: ask(request_paths(pairs, stage, heads, conventions)),
        STAGES_BY[conventions.d_received_by[0]],
        scale=conventions.score,
        rule=conventions.select,
        extra_settings=about,
    )


def smallest_fall(discovery: Discovery) -> float | None:
    """The smallest drop of the answer's lead, in logits, among the selected heads; None if there are none."""
    falls = []
    for group, evidence in discovery.evidence.items():
        table = scores(evidence, "logit").set_index(["layer", "head"])["score"]
        falls += [-float(table.loc[head]) for head in discovery.circuit.group(group)]
    return min(falls, default=None)
