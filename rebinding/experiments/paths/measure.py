"""Section 4.1: path patching. Which heads send what the next group reads?

A stage scores every head as a sender, in two runs of the clean prompt:

1. *sender run*: the sender's z at its role is replaced by its value in the noise prompt; the receivers' component
   (their q, k, v, or k and v) is read at the receiver role. With `frozen="all"` every other head's z is held at its
   clean value, MLPs and norms are recomputed (the textbook form); with `frozen="none"` everything is recomputed (the
   published helpers).
2. *receiver run*: a clean run into which those components are written, nothing frozen.

The evidence has the answer's logit, probability and lead over the other objects at the readout, before and after;
`summary.py` computes scores from it. A first stage has no receivers: its readout is that of the sender run itself.

Senders and receivers may also be MLPs (`rebinding.experiments.path_patching`); the paper's stages have none.

Both runs skip exactly what cannot change the result. A sender run computes the tokens up to the receiver role, from the
sender's layer to the last receiver's; frozen, it computes one token and only MLPs. A receiver run starts at the first
receiver whose component changed, at the receiver role. Senders above every receiver score exactly zero.

A circuit is found by selecting the heads of each stage by their scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.metrics import Score
from rebinding.experiments.path_patching import (
    SITES,
    Component,
    Frozen,
    ReceiverInput,
    RecordedPrompts,
    Senders,
    inputs_above,
    receiver_inputs,
    senders_at,
)
from rebinding.experiments.paths.request import (
    OF_ANSWER,
    PAPER,
    PATHS,
    Paths,
    PathSettings,
    Stage,
    write_stratum,
)
from rebinding.experiments.paths.summary import Discovery, Scale, Selection, discover_by
from rebinding.experiments.prompts import EncodedPrompts
from rebinding.experiments.tokens import answer_of, blocks, positions, relative_change, token_batch
from rebinding.paper.circuit import MLP, Head, depth, forward_order
from rebinding.surgery import Edit, Read, Surgeon, in_layer
from rebinding.surgery.anatomy import LayerParts
from rebinding.surgery.memory import to_cpu_together
from rebinding.surgery.sites import Scope
from rebinding.task.prompts import Encoder, TokenizedPrompt

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


@dataclass(frozen=True, eq=False)
class Block(RecordedPrompts):
    """Prompts of one stage, with the noise prompts' z at the sender role, and the positions of roles.

    `sender_at`, `receiver_at` and `readout` are (prompt,). The score is logit, probability and lead of the answer; a
    metric of one's own takes the place of the lead.
    """

    labels: Tensor
    rivals: Tensor
    sender_at: Tensor
    receiver_at: Tensor | None
    readout: Tensor
    score: Score | None = None

    def read(self, source: Tensor) -> Read:
        take = answer_of(self.labels[source], self.rivals[source])
        take = take if self.score is None else self.score.in_place_of_lead(take, source)
        return Read("logits", at=self.readout[source][:, None], reduce=take)

    def relative_change(self, senders: Sequence[Head]) -> Tensor:
        """The relative change from each sender's clean z to its noise z: (sender, prompt)."""
        layers, parts = sorted({layer for layer, head in senders if head != MLP}), self.anatomy.parts
        mlps, at = sorted(layer for layer, head in senders if head == MLP), self.sender_at[:, None]
        reads = [Read("z", at=at, head=in_layer(layer, range(parts[layer].n_heads))) for layer in layers]
        reads += [Read("mlp_out", at=at, layer=layer) for layer in mlps]
        clean = self.surgeon.run(self.recording, [], reads)  # (prompt, head, 1, head_dim) or (prompt, 1, width) each
        noise = [*(self.noise_z[layer] for layer in layers), *(self.noise_mlp[layer] for layer in mlps)]
        changes = [relative_change(other, own)[..., 0] for other, own in zip(noise, clean, strict=True)]
        device = changes[0].device  # layers may be on several devices
        by_node = {(layer, MLP): change for layer, change in zip(mlps, changes[len(layers) :], strict=True)}
        for layer, change in zip(layers, changes, strict=False):
            by_node |= {(layer, head): change[:, head] for head in range(parts[layer].n_heads)}
        return torch.stack([by_node[node].to(device) for node in senders])


def sender_run(block: Block, heads: Sequence[Head], *, frozen: Frozen) -> Tensor:
    """The score after each sender's output is replaced: (sender, prompt, 3)."""
    after = block.send_to_logits(senders_at(heads, block.sender_at), frozen=frozen)
    return after.reshape(len(heads), block.n, -1)


def receiver_run(
    block: Block,
    heads: Sequence[Head],
    component: Component,
    receivers: Sequence[Head],
    *,
    frozen: Frozen,
    scope: Scope,
) -> Tensor:
    """The score (sender, prompt, 3) after each sender's effect on the receivers' inputs is written into a clean run.

    Only senders below the last receiver (`heads` are in the order of depth) can send, and only rows in which the input
    of some receiver changed are run.
    """
    last = max(map(depth, receivers))
    after = block.before.expand(len(heads), -1, -1).clone()  # (sender, prompt, 3)
    inputs = receiver_inputs(block.anatomy, receivers, SITES[component])
    for part in block.batches(sum(depth(head) < last for head in heads), inputs, rows=block.n):
        senders = senders_at(heads[part], block.sender_at)
        edits = _receiver_edits(block, inputs_above(inputs, depth(heads[part][0])), senders, frozen=frozen, scope=scope)
        after[part] = block.receive(edits, senders.prompt).view(after[part].shape)
    return after


def _receiver_edits(
    block: Block, inputs: Sequence[ReceiverInput], senders: Senders, *, frozen: Frozen, scope: Scope
) -> list[Edit]:
    """For every sender, the edits that write its effect on the receivers' inputs, if it changed them."""
    assert block.receiver_at is not None, "a stage with receivers says where they read"
    clean_reads = [entry.read(block.receiver_at) for entry in inputs]
    at, recording = block.receiver_at[senders.prompt], block.surgeon.with_reads(block.recording, clean_reads)
    clean = block.surgeon.run(recording, [], clean_reads)
    patched = replace(block, recording=recording).send(senders, [entry.read(at) for entry in inputs], frozen=frozen)
    flags = [
        (after != before[senders.prompt.to(before.device)]).flatten(1).any(dim=1)
        for before, after in zip(clean, patched, strict=True)
    ]
    edits = []
    for entry, after, flag in zip(inputs, patched, to_cpu_together(flags), strict=True):
        rows = torch.nonzero(flag & (senders.depth < entry.depth)).reshape(-1)  # an MLP does not read its own output
        if rows.numel():
            values = after[rows.to(after.device)]
            edits.append(_write(entry, values, rows, at[rows][:, None], block.anatomy.parts[entry.layer], scope))
    return edits


def _write(entry: ReceiverInput, values: Tensor, rows: Tensor, at: Tensor, parts: LayerParts, scope: Scope) -> Edit:
    """Write `values` (row, [head,] 1, width) into an input at positions `at`. Of keys and values only the receivers
    see what is written, or, with `scope="group"`, their whole KV groups."""
    if entry.site == "mlp_out":
        return Edit("mlp_out", values, at=at, layer=entry.layer, rows=rows)
    if entry.site == "q":
        return Edit("q", values, at=at, head=in_layer(entry.layer, entry.heads), rows=rows)
    heads = entry.heads
    if scope == "head":
        heads = entry.receivers
        values = values[:, [entry.heads.index(parts.kv_head(head)) for head in heads]]
    return Edit(entry.site, values, at=at, head=in_layer(entry.layer, heads), rows=rows, scope=scope)


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
    noise_outputs: dict[tuple[int, int, str, bool], tuple[dict[int, Tensor], dict[int, Tensor]]] = field(
        default_factory=dict, repr=False
    )
    """z, and outputs of MLPs if some may send, of noise prompts by layer."""
    score: Score | None = None
    """A metric in place of the lead."""

    def block(self, surgeon: Surgeon, stage: Stage, where: slice, *, mlps: bool = False) -> Block:
        """Record a block of prompts for one stage; with `mlps`, for MLPs as senders or frozen."""
        clean = self.clean[where]
        sender_key = (where.start, where.stop, stage.sender, mlps)
        if sender_key not in self.noise_outputs:
            self.noise_outputs[sender_key] = _outputs(surgeon, self.noise[where], stage.sender, mlps=mlps)
        return Block(
            surgeon,
            surgeon.record(token_batch(clean), keep={"z", "mlp_out"} if mlps else {"z"}),
            *self.noise_outputs[sender_key],
            self.labels[where],
            self.rivals[where],
            sender_at=positions(clean, stage.sender),
            receiver_at=None if stage.at is None else positions(clean, stage.at),
            readout=positions(clean, "readout"),
            score=None if self.score is None else self.score.part(where),
        )


def _outputs(
    surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], role: str, *, mlps: bool
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """z (prompt, head, 1, head_dim) and outputs of MLPs (prompt, 1, width) at a role, by layer."""
    at, having = positions(prompts, role)[:, None], [part for part in surgeon.anatomy.parts if part.n_heads]
    reads = [Read("z", at=at, head=in_layer(part.number, range(part.n_heads))) for part in having]
    reads += [Read("mlp_out", at=at, layer=layer) for layer in range(surgeon.anatomy.n_layers) if mlps]
    values = surgeon.run(surgeon.record(token_batch(prompts)), [], reads)
    of_heads = dict(zip((part.number for part in having), values, strict=False))
    return of_heads, dict(enumerate(values[len(having) :]))


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
        senders = sorted(set(senders), key=forward_order)
        about["senders"] = [list(head) for head in senders]
        size = max(size, surgeon.prompts_at_once(len(pairs.clean[0])))

    tables, frozen = [], settings.frozen
    has_mlps = frozen == "mlps" or any(head == MLP for _, head in senders)
    for where in blocks(len(pairs.ids), size):
        block = pairs.block(surgeon, stage, where, mlps=has_mlps)
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
