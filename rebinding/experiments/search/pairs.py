"""Pairs of a search: clean and noise prompts token by token, their recordings, and the receivers of a step.

**Alignment.** A noise prompt is as long as its clean prompt, and its tokens replace those at the same positions, except
in the context: there a statement replaces the statement of the box with the same part in the swap (named first, named
second, or not named), whatever its slot. Otherwise a head whose output is only "slot 2" would have the same output in
both prompts, and patching could not show that it is needed.

**Score.** The answer's logit minus the mean logit of the story's other objects, or a metric of one's own.

**Recorded pairs** are shared by the steps of a search: clean and noise runs, the noise's outputs token by token, and
the senders whose outputs differ between the two.

**Receivers**: the change of z in each head, given its input at the senders' tokens, and of the output of each MLP.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import pandas as pd
import torch
from torch import Tensor, nn

from rebinding.evidence import Evidence
from rebinding.experiments.metrics import Score
from rebinding.experiments.path_patching import Frozen, ReceiverInput, ReceiverSite, RecordedPrompts, Senders
from rebinding.experiments.search.graph import Node
from rebinding.experiments.search.request import LOSSES, Screen, SearchSettings
from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.circuit import MLP
from rebinding.surgery import Edit, Read, RecordedRun, TorchSurgeon
from rebinding.surgery.receivers import ReceiverHead, receiver_head
from rebinding.surgery.sites import Site
from rebinding.surgery.slopes import Estimates, Receiver, edge_estimates, output_slopes
from rebinding.task.boxes import labels_of
from rebinding.task.prompts import Encoded, PromptError, Stratum, TokenizedPrompt, aligned, numbered, stratum
from rebinding.task.text import names_by_function, names_by_place, token_at


@dataclass(frozen=True, eq=False)
class SearchPairs:
    """Pairs of prompts with the same wording.

    `answers` is (prompt, object): tokens of the story's objects, the right one first. `match` is (prompt, token): the
    position in the noise prompt of the token that replaces it. `first` is the first token of each pair that differs, or
    whose match is at another position. `places` are the tokens' names by place, `functions` those by function, prompt
    by prompt.
    """

    ids: tuple[int, ...]
    clean: tuple[TokenizedPrompt, ...]
    noise: tuple[TokenizedPrompt, ...]
    answers: Tensor
    match: Tensor
    first: Tensor
    places: tuple[str, ...]
    functions: tuple[tuple[str | None, ...], ...]
    stratum_of: tuple[Stratum, ...] = ()
    """The stratum of each pair; empty if all are in one."""
    score: Score | None = None

    @property
    def strata(self) -> dict[int, int]:
        """Each id with the number of its stratum."""
        return dict(zip(self.ids, numbered(self.stratum_of or [()] * len(self.ids)), strict=True))

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return len(self.places)

    def of(self, where: slice) -> SearchPairs:
        """Some of the pairs."""
        return SearchPairs(
            self.ids[where], self.clean[where], self.noise[where], self.answers[where], self.match[where],
            self.first[where], self.places, self.functions[where], self.stratum_of[where],
            None if self.score is None else self.score.part(where),
        )  # fmt: skip

    def at(self, name: str) -> Tensor:
        """The position of a named token in each clean prompt (prompt,); -1 if there is none."""
        places = [token_at(name, encoded.roles) for encoded in self.clean]
        return torch.tensor([-1 if place is None else place for place in places])  # (prompt,)


def pairs_of(
    ids: Sequence[int], clean: Sequence[Encoded], noise: Sequence[Encoded], answers: Sequence[Sequence[int]]
) -> SearchPairs:
    """Pairs from encoded prompts; `answers` are the tokens of each story's objects, the right one first."""
    places = names_by_place(clean[0].roles, clean[0].pieces)
    for encoded in (*clean, *noise):
        moved = [name for name, at in clean[0].roles.items() if name in places and encoded.roles.get(name) != at]
        if moved or len(encoded) != len(clean[0]):
            raise PromptError(
                f"a search needs prompts that are written alike; {moved[0] if moved else 'the end'} stands"
                f" elsewhere in one of {len(encoded)} tokens than in the first, of {len(clean[0])}. Use words that are"
                " single tokens, and one design"
            )
    match = [_match(own, other) for own, other in zip(clean, noise, strict=True)]
    return SearchPairs(
        tuple(ids), tuple(clean), tuple(noise), torch.tensor(answers), torch.tensor(match),
        first_changes(clean, noise, match), tuple(places),
        tuple(tuple(names_by_function(prompt.roles, places)) for prompt in clean),
        tuple(stratum(encoded.prompt) for encoded in clean),
    )  # fmt: skip


def first_changes(
    clean: Sequence[TokenizedPrompt], noise: Sequence[TokenizedPrompt], match: Sequence[Sequence[int]]
) -> Tensor:
    """The first token of each pair that differs, or whose match is at another position (pair,)."""
    return torch.tensor([_first(own, other, line) for own, other, line in zip(clean, noise, match, strict=True)])


def _match(clean: Encoded, noise: Encoded) -> list[int]:
    """The position of the noise token for every clean one: statements by the part of their box, else the same
    position."""
    match = list(range(len(clean)))
    noise_parts = _parts(noise)
    for slot, part in enumerate(_parts(clean)):
        noise_slot = noise_parts.index(part)
        for at in _statement(clean, slot):
            match[at] = at + noise.roles[f"context_box[{noise_slot}]"] - clean.roles[f"context_box[{slot}]"]
    return match


def _first(clean: TokenizedPrompt, noise: TokenizedPrompt, match: Sequence[int]) -> int:
    """The first token that differs, or whose match is at another position: before it the two runs are the same."""
    moved = [at for at, other in enumerate(match) if at != other]
    return min((*aligned(clean, noise), *moved), default=len(clean))


def _parts(encoded: Encoded) -> list[str]:
    """The part in the swap of each statement's box: its place among the labels that the operation names, or a count."""
    prompt = encoded.prompt
    named = labels_of(prompt.operation) if prompt.operation is not None else ()
    parts, count = [], 0
    for label in prompt.story.boxes:
        if label in named:
            parts.append(f"named {named.index(label)}")
        else:
            parts.append("asked" if label == prompt.question else f"other {count}")
            count += label != prompt.question
    return parts


def _statement(encoded: Encoded, slot: int) -> range:
    """The tokens of a statement: from the word before the label to the full stop after the object."""
    return range(encoded.roles[f"context_box[{slot}]"] - 1, encoded.roles[f"context_object[{slot}]"] + 2)


POINTS = 5
"""Runs between noise and clean prompts in integrated edge attribution."""
ROUNDING = 1e-6
"""Share of the largest z of a layer in a prompt: a smaller difference is rounding (units in the last place of a
sum)."""


@dataclass(frozen=True, eq=False)
class RecordedPairs(RecordedPrompts):
    """Recorded pairs."""

    surgeon: TorchSurgeon
    pairs: SearchPairs
    noise: RecordedRun

    @cached_property
    def readout(self) -> Tensor:
        return positions(self.pairs.clean, "readout")

    @cached_property
    def noise_score(self) -> Tensor:
        """The score of the noise prompts (prompt,)."""
        return self.surgeon.run(self.noise, [], [self.read(torch.arange(self.n))])[0][:, 0]

    @cached_property
    def total(self) -> float:
        """The mean loss of score from clean to noise prompts."""
        return float((self.before - self.noise_score).mean())

    def losses(self) -> Evidence:
        """Both scores, prompt by prompt."""
        scores = {"clean": self.before.cpu().numpy(), "noise": self.noise_score.cpu().numpy()}
        return LOSSES.evidence(pd.DataFrame({"prompt": self.pairs.ids, **scores}), {})

    def read(self, source: Tensor) -> Read:
        return Read(
            "resid",
            at=self.readout[source][:, None],
            layer=self.surgeon.anatomy.n_layers,
            reduce=lambda resid, rows: self._score(resid, source[rows]),
        )

    def _score(self, resid: Tensor, prompts: Tensor) -> Tensor:
        """The score (row, position) from the input of the final norm (row, position, hidden), of one position. The lead
        needs only the logits of the story's objects; the whole vocabulary costs as much as eight layers of a small
        model."""
        if self.pairs.score is not None:
            logits = self.surgeon.anatomy.logits(self.surgeon.model, resid)  # (row, 1, vocabulary)
            return self.pairs.score.of(logits[:, 0], prompts)[:, None]
        logits = self.surgeon.anatomy.logits(self.surgeon.model, resid, self.pairs.answers[prompts]).float()
        return logits[..., 0] - logits[..., 1:].mean(-1)  # of (row, position, object)

    @property
    def frozen(self) -> Frozen:
        """What keeps its output in sender runs: MLPs too, if they are nodes."""
        return "mlps" if self.noise_mlp else "all"

    @cached_property
    def slopes(self) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients of the score in the clean prompts by z and by outputs of MLPs, by layer: (prompt, head, token,
        head_dim) and (prompt, token, width)."""
        model, anatomy = self.surgeon.model, self.surgeon.anatomy
        return output_slopes(model, anatomy, token_batch(self.pairs.clean), self._score_of, mlps=bool(self.noise_mlp))

    def _score_of(self, resid: Tensor, prompts: Tensor) -> Tensor:
        """The score (row,) from the output of the last layer (row, token, hidden)."""
        rows = torch.arange(len(prompts), device=resid.device)
        return self._score(resid[rows, self.readout[prompts].to(resid.device)][:, None], prompts)[:, 0]

    def attribute(self, receivers: Sequence[RecordedReceiver], screen: Screen) -> Estimates:
        """The estimated effect of every sender via each reading of the receivers, by edge attribution."""
        kept = self.recording.sites
        heads = {layer: noise - kept["z"][layer] for layer, noise in self.noise_z.items()}
        mlps = {layer: noise - kept["mlp_out"][layer] for layer, noise in self.noise_mlp.items()}
        starts: list[Tensor | None] = [None]
        if screen == "integrated-edge-attribution":
            rows = torch.arange(self.n)[:, None]
            clean, noise = kept["resid"][0], self.noise.sites["resid"][0][rows, self.pairs.match]
            starts = [noise + (clean - noise) * (point + 0.5) / POINTS for point in range(POINTS)]
        own = [Receiver(*receiver.node[:2], receiver.at) for receiver in receivers]
        return edge_estimates(
            self.surgeon.model, self.anatomy, self.recording.tokens, self._score_of, own, heads, mlps, starts
        )

    def senders(self, layer: int, where: Tensor, *, mlp: bool = False) -> Senders:
        """The heads of a layer whose z differs in the noise prompt, at some tokens (prompt, head or 1, token), or its
        MLP."""
        if mlp:
            clean, noise = self.recording.sites["mlp_out"][layer][:, None], self.noise_mlp[layer][:, None]
        else:
            clean, noise = self.recording.sites["z"][layer], self.noise_z[layer]  # (prompt, head, token, head_dim)
        size = clean.abs().amax(dim=(1, 2, 3))[:, None, None]  # (prompt, 1, 1)
        is_different = (clean - noise).abs().amax(dim=-1) > ROUNDING * size  # (prompt, head, token)
        prompt, head, token = torch.nonzero(is_different.cpu() & where[:, : clean.shape[1]], as_tuple=True)
        return Senders(torch.full_like(head, layer), torch.full_like(head, MLP) if mlp else head, token, prompt)


def record_pairs(surgeon: TorchSurgeon, pairs: SearchPairs, *, mlps: bool = False) -> RecordedPairs:
    """Record the clean and noise prompts of pairs, for a search of heads, or of heads and MLPs."""
    keep: set[Site] = {"z", "mlp_out"} if mlps else {"z"}
    recording, noise = (surgeon.record(token_batch(side), keep=keep) for side in (pairs.clean, pairs.noise))
    prompts = torch.arange(len(pairs.ids))[:, None]
    noise_z = {
        layer: z[prompts, :, pairs.match].transpose(1, 2)
        for layer, z in enumerate(noise.sites["z"])
        if z.numel()  # the layer has heads
    }
    noise_mlp = {layer: out[prompts, pairs.match] for layer, out in enumerate(noise.sites.get("mlp_out", ()))}
    return RecordedPairs(surgeon, recording, noise_z, noise_mlp, pairs, noise)


ROUNDED_AWAY = 0.1
"""Of a unit in the last place of the residual."""


@dataclass(frozen=True, eq=False)
class RecordedReceiver(ABC):
    """A receiver at a token as recorded in the clean prompts: `at` is -1 in prompts without the token, `size` is the
    norm of the residual stream there, divided by what a norm after the branch makes of its output."""

    node: Node
    at: Tensor
    size: Tensor

    sites: ClassVar[tuple[ReceiverSite, ...]]

    @abstractmethod
    def change(self, entry: ReceiverInput, values: Tensor, source: Tensor, token: Tensor) -> Tensor:
        """The change of its output (row, width) by inputs `values` (row, [head,] 1, width) at tokens (row,)."""

    @abstractmethod
    def to_residual(self, change: Tensor) -> Tensor:
        """What a change (row, width) writes into the residual stream, before that norm."""

    def relative_change(self, change: Tensor, source: Tensor) -> Tensor:
        """The share of the residual stream that a change (row, width) rewrites: (row,)."""
        share: Tensor = self.to_residual(change).norm(dim=-1) / self.size[source]
        return share

    @abstractmethod
    def edit(self, value: Tensor, at: Tensor, rows: Tensor) -> Edit:
        """Add a change (row, width) of its output at a token a row (row, 1)."""


@dataclass(frozen=True, eq=False)
class RecordedMlp(RecordedReceiver):
    """An MLP, with its output (prompt, width)."""

    output: Tensor
    sites: ClassVar[tuple[ReceiverSite, ...]] = ("mlp_out",)

    def change(self, entry: ReceiverInput, values: Tensor, source: Tensor, token: Tensor) -> Tensor:
        return values[:, 0] - self.output[source.to(self.output.device)]

    def to_residual(self, change: Tensor) -> Tensor:
        return change

    def edit(self, value: Tensor, at: Tensor, rows: Tensor) -> Edit:
        return Edit("mlp_out", value[:, None], at=at, layer=self.node.layer, rows=rows, mode="add")


@dataclass(frozen=True, eq=False)
class RecordedHead(RecordedReceiver):
    """A head; `write` maps z to the residual stream."""

    head: ReceiverHead
    write: Tensor
    sites: ClassVar[tuple[ReceiverSite, ...]] = ("q", "k", "v")

    def change(self, entry: ReceiverInput, values: Tensor, source: Tensor, token: Tensor) -> Tensor:
        head = self.node.head if entry.site == "q" else self.head.parts.kv_head(self.node.head)
        assert entry.site != "mlp_out"
        z = self.head.changed_z(entry.site, values[:, entry.heads.index(head), 0], source, token)
        return z - self.head.z[source]

    def to_residual(self, change: Tensor) -> Tensor:
        return change @ self.write.T

    def edit(self, value: Tensor, at: Tensor, rows: Tensor) -> Edit:
        return Edit("z", value[:, None, None], at=at, head=[self.node[:2]], rows=rows, mode="add")


@dataclass(frozen=True, eq=False)
class ReceiverChange:
    """The effect of senders on one receiver: the rows that it can attend to, and the change of its output there.

    `relative_change` is the share of the residual stream that is rewritten.
    """

    receiver: RecordedReceiver
    rows: Tensor
    change: Tensor
    relative_change: Tensor

    def edits(self, place: Tensor, source: Tensor) -> list[Edit]:
        """Add the change, if any, in a batch that continues the prompts `source`; it has row r at `place[r]`, or not at
        all (-1)."""
        own = torch.nonzero(place[self.rows] >= 0).reshape(-1)
        if not own.numel():
            return []
        rows = place[self.rows[own]]
        return [self.receiver.edit(self.change[own], self.receiver.at[source[rows]][:, None], rows)]


def join_changes(parts: Sequence[ReceiverChange]) -> ReceiverChange:
    """The change of one receiver in the rows of several batches."""
    columns = zip(*((part.rows, part.change, part.relative_change) for part in parts), strict=True)
    return ReceiverChange(parts[0].receiver, *map(torch.cat, columns))


def recorded_receiver(recorded_pairs: RecordedPairs, node: Node) -> RecordedReceiver:
    """A node as recorded in the clean prompts."""
    anatomy, recording, at = recorded_pairs.anatomy, recorded_pairs.recording, recorded_pairs.pairs.at(node.token)
    prompts, place = torch.arange(recorded_pairs.n), at.clamp(min=0)
    layer = anatomy.layer_modules(recorded_pairs.surgeon.model)[node.layer]
    parts = anatomy.parts[node.layer]
    resid = recording.sites["resid"][node.layer][prompts, place]  # (prompt, hidden)
    if node.head == MLP:
        output = recording.sites["mlp_out"][node.layer][prompts, place]  # (prompt, hidden)
        shrink = anatomy.mlp_write(layer, output).norm(dim=-1) / output.norm(dim=-1)  # (prompt,)
        return RecordedMlp(node, at, resid.norm(dim=-1) / shrink, output)
    span = slice(node.head * parts.head_dim, (node.head + 1) * parts.head_dim)
    output = recording.sites["attention_output"][node.layer][prompts, place]  # (prompt, hidden)
    shrink = anatomy.attention_write(layer, output).norm(dim=-1) / output.norm(dim=-1)  # (prompt,)
    projection = cast(nn.Linear, layer.get_submodule(parts.output))
    weight = projection.weight[:, span].detach()  # (hidden, head_dim)
    head = receiver_head(recorded_pairs.surgeon, recording, node.layer, node.head, place)
    return RecordedHead(node, at, resid.norm(dim=-1) / shrink, head, weight)


def sender_tokens(
    recorded_pairs: RecordedPairs, receivers: Sequence[RecordedReceiver], settings: SearchSettings
) -> Tensor:
    """Where senders may be: up to the receivers, from the first token that differs; (prompt, token)."""
    token = torch.arange(recorded_pairs.pairs.length)
    last = torch.stack([receiver.at for receiver in receivers]).amax(0)  # (prompt,)
    allowed = (token[None] >= recorded_pairs.pairs.first[:, None]) & (token[None] <= last[:, None])
    if settings.min_attention:
        is_own = [token[None] == receiver.at[:, None] for receiver in receivers]  # (prompt, token) each
        is_attended = [
            (receiver.head.pattern.cpu() >= settings.min_attention) & (receiver.at >= 0)[:, None]
            for receiver in receivers
            if isinstance(receiver, RecordedHead)
        ]
        allowed &= torch.stack(is_own + is_attended).flatten(0, 1).any(0)  # by place: in any prompt
    return allowed


def receiver_change(
    receiver: RecordedReceiver, entry: ReceiverInput, values: Tensor, senders: Senders, first: int
) -> ReceiverChange:
    """The change of one receiver's output, without rows whose change is rounded away when it is added to the residual.

    `values` (row, [head,] 1, width) are the receivers' input at each sender's token; `first` is the number of the first
    row.
    """
    at = receiver.at[senders.prompt]  # (row,)
    can_attend = senders.token == at if entry.site in ("q", "mlp_out") else senders.token <= at
    rows = torch.nonzero(can_attend & (at >= 0)).reshape(-1)
    source = senders.prompt[rows]
    change = receiver.change(entry, values[rows.to(values.device)], source, senders.token[rows])
    relative_change = receiver.relative_change(change, source)  # (row,)
    changed = torch.nonzero(relative_change > ROUNDED_AWAY * torch.finfo(change.dtype).eps).reshape(-1).cpu()
    return ReceiverChange(receiver, rows[changed] + first, change[changed], relative_change[changed])


def estimate_effects(recorded_pairs: RecordedPairs, senders: Senders, changes: Sequence[ReceiverChange]) -> Tensor:
    """The first-order estimate of each sender's effect on the score (row,): the receivers' changes times the slopes."""
    estimate, (of_heads, of_mlps) = torch.zeros(senders.n), recorded_pairs.slopes
    for part in changes:
        source, node = senders.prompt[part.rows], part.receiver.node
        at = part.receiver.at[source]
        is_mlp = node.head == MLP
        slope = of_mlps[node.layer][source, at] if is_mlp else of_heads[node.layer][source, node.head, at]
        estimate[part.rows] += (part.change * slope.to(part.change)).sum(-1).float().cpu()
    return estimate
