"""Pairs of a search: clean and noise prompts token by token, their recordings, and the receivers of a step.

**Alignment.** A noise prompt is as long as its clean prompt, and its tokens replace those at the same positions, except
in the context: there a statement replaces the statement of the box with the same part in the swap (named first, named
second, or not named), whatever its slot. Otherwise a head whose output is only "slot 2" would have the same output in
both prompts, and patching could not show that it is needed.

**Score.** The answer's logit minus the mean logit of the story's other objects.

**Recorded pairs** are shared by the steps of a search: clean and noise runs, the noise's z token by token, and the
senders whose z differs between the two.

**Receivers**: the outputs of senders at their tokens, and the change of z in each receiver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast

import pandas as pd
import torch
from torch import Tensor, nn

from rebinding.evidence import Evidence
from rebinding.experiments.search.request import LOSSES, Settings
from rebinding.experiments.tokens import positions, token_batch
from rebinding.paper.graph import Node
from rebinding.surgery import Edit, Read, Recording, TorchSurgeon
from rebinding.surgery.receivers import Component, ReceiverHead, receiver_head
from rebinding.surgery.slopes import z_slopes
from rebinding.task.boxes import labels_of
from rebinding.task.prompts import Encoded, PromptError, Stratum, TokenizedPrompt, aligned, numbered, stratum
from rebinding.task.text import names_by_function, names_by_place, token_at


@dataclass(frozen=True, eq=False)
class Pairs:
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

    @property
    def strata(self) -> dict[int, int]:
        """Each id with the number of its stratum."""
        return dict(zip(self.ids, numbered(self.stratum_of or [()] * len(self.ids)), strict=True))

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return len(self.places)

    def of(self, where: slice) -> Pairs:
        """Some of the pairs."""
        return Pairs(
            self.ids[where], self.clean[where], self.noise[where], self.answers[where], self.match[where],
            self.first[where], self.places, self.functions[where], self.stratum_of[where],
        )  # fmt: skip

    def at(self, name: str) -> Tensor:
        """The position of a named token in each clean prompt (prompt,); -1 if there is none."""
        places = [token_at(name, encoded.roles) for encoded in self.clean]
        return torch.tensor([-1 if place is None else place for place in places])  # (prompt,)


def pairs_of(
    ids: Sequence[int], clean: Sequence[Encoded], noise: Sequence[Encoded], answers: Sequence[Sequence[int]]
) -> Pairs:
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
    return Pairs(
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


ROUNDING = 1e-6
"""Share of the largest z of a layer in a prompt: a smaller difference is rounding (units in the last place of a
sum)."""


@dataclass(frozen=True, eq=False)
class Senders:
    """Heads of one layer at tokens of prompts, as three tensors of equal length."""

    layer: int
    head: Tensor
    token: Tensor
    prompt: Tensor

    @property
    def n(self) -> int:
        return int(self.head.numel())

    def take(self, rows: Tensor) -> Senders:
        """The senders of some rows."""
        return Senders(self.layer, self.head[rows], self.token[rows], self.prompt[rows])

    def noise_edit(self, noise_z: Sequence[Tensor]) -> Edit:
        """The edit that gives row `r` the r-th sender's z from the noise prompt."""
        value = noise_z[self.layer][self.prompt, self.head, self.token][:, None, None]  # (row, 1, 1, head_dim)
        return Edit("z", self.layer, value, positions=self.token[:, None], heads=self.head[:, None])


@dataclass(frozen=True, eq=False)
class RecordedPairs:
    """Recorded pairs. `noise_z[layer]` is (prompt, head, token, head_dim), at the tokens of the clean prompt."""

    surgeon: TorchSurgeon
    pairs: Pairs
    recording: Recording
    noise_z: list[Tensor]
    noise: Recording

    @property
    def n(self) -> int:
        return len(self.pairs.ids)

    @cached_property
    def readout(self) -> Tensor:
        return positions(self.pairs.clean, "readout")

    @cached_property
    def before(self) -> Tensor:
        """The score of the clean prompts (prompt,)."""
        return self.surgeon.run(self.recording, [], [self.read(torch.arange(self.n))])[0][:, 0]

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
        """The score of rows that continue these prompts."""
        return Read(
            "resid",
            self.surgeon.anatomy.n_layers,
            positions=self.readout[source][:, None],
            reduce=lambda resid, rows: self._score(resid, source[rows]),
        )

    def _score(self, resid: Tensor, prompts: Tensor) -> Tensor:
        """The score (row, position) from the input of the final norm (row, position, hidden). Computes only the logits
        of the story's objects, because the whole vocabulary costs as much as eight layers of a small model."""
        logits = self.surgeon.anatomy.logits(self.surgeon.model, resid, self.pairs.answers[prompts]).float()
        return logits[..., 0] - logits[..., 1:].mean(-1)  # of (row, position, object)

    @cached_property
    def slopes(self) -> list[Tensor]:
        """The gradient of the score with respect to z in the clean prompts, by layer: (prompt, head, token,
        head_dim)."""

        def score(resid: Tensor, prompts: Tensor) -> Tensor:
            rows = torch.arange(len(prompts), device=resid.device)
            return self._score(resid[rows, self.readout[prompts].to(resid.device)][:, None], prompts)[:, 0]

        return z_slopes(self.surgeon.model, self.surgeon.anatomy, token_batch(self.pairs.clean), score)

    def senders(self, layer: int, tokens: Tensor) -> Senders:
        """All heads of a layer at some tokens (prompt, token) whose z differs in the noise prompt."""
        clean, noise = self.recording.sites["z"][layer], self.noise_z[layer]  # (prompt, head, token, head_dim)
        if not clean.numel():
            return Senders(layer, *(torch.empty(0, dtype=torch.long) for _ in range(3)))  # no heads
        size = clean.abs().amax(dim=(1, 2, 3))[:, None, None]  # (prompt, 1, 1)
        is_different = (clean - noise).abs().amax(dim=-1) > ROUNDING * size  # (prompt, head, token)
        prompt, head, token = torch.nonzero(is_different.cpu() & tokens[:, None], as_tuple=True)
        return Senders(layer, head, token, prompt)


def record_pairs(surgeon: TorchSurgeon, pairs: Pairs) -> RecordedPairs:
    """Record the clean and noise prompts of pairs."""
    recording = surgeon.record(token_batch(pairs.clean), keep={"z"})
    noise = surgeon.record(token_batch(pairs.noise), keep={"z"})
    prompts = torch.arange(len(pairs.ids))
    noise_z = [z[prompts[:, None], :, pairs.match].transpose(1, 2) if z.numel() else z for z in noise.sites["z"]]
    return RecordedPairs(surgeon, pairs, recording, noise_z, noise)


COMPONENTS: tuple[Component, ...] = ("q", "k", "v")
MESSAGES = 1 << 27
"""The most bytes of sender outputs in memory at once."""
ROUNDED_AWAY = 0.1
"""Of a unit in the last place of the residual."""
SenderOutput: TypeAlias = dict[tuple[Component, int], Tensor]
"""The projections above the senders, at each sender's token: by component and layer (row, head, head_dim)."""


@dataclass(frozen=True, eq=False)
class RecordedReceiver:
    """A head at a token as recorded in the clean prompts: `at` is -1 in prompts without the token, `write` maps z to
    the residual stream, `size` is the norm of the residual stream there."""

    node: Node
    at: Tensor
    head: ReceiverHead
    write: Tensor
    size: Tensor

    def relative_change(self, change: Tensor, source: Tensor) -> Tensor:
        """The share of the residual stream that a change of z (row, head_dim) rewrites: (row,)."""
        written: Tensor = (change @ self.write.T).norm(dim=-1)
        return written / self.size[source]


@dataclass(frozen=True, eq=False)
class ReceiverChange:
    """The effect of senders on one receiver: the rows that it can attend to, and the change of its z there.

    `relative_change` is the share of the residual stream that is rewritten, `estimate` the effect on the score by its
    slope.
    """

    receiver: RecordedReceiver
    rows: Tensor
    change: Tensor
    relative_change: Tensor
    estimate: Tensor


def recorded_receiver(recorded_pairs: RecordedPairs, node: Node) -> RecordedReceiver:
    """A node as recorded in the clean prompts."""
    anatomy, recording, prompts = (
        recorded_pairs.surgeon.anatomy,
        recorded_pairs.recording,
        torch.arange(recorded_pairs.n),
    )
    at = recorded_pairs.pairs.at(node.token)
    place = at.clamp(min=0)
    layer = anatomy.layer_modules(recorded_pairs.surgeon.model)[node.layer]
    parts = anatomy.parts[node.layer]
    span = slice(node.head * parts.head_dim, (node.head + 1) * parts.head_dim)
    output = recording.sites["attention_output"][node.layer][prompts, place]  # (prompt, hidden)
    resid = recording.sites["resid"][node.layer][prompts, place]  # (prompt, hidden)
    shrink = anatomy.attention_write(layer, output).norm(dim=-1) / output.norm(dim=-1)  # (prompt,)
    projection = cast(nn.Linear, layer.get_submodule(parts.output))
    weight = projection.weight[:, span].detach()  # (hidden, head_dim)
    return RecordedReceiver(
        node,
        at,
        receiver_head(recorded_pairs.surgeon, recording, node.layer, node.head, place),
        weight,
        resid.norm(dim=-1) / shrink,
    )


def sender_tokens(recorded_pairs: RecordedPairs, receivers: Sequence[RecordedReceiver], settings: Settings) -> Tensor:
    """Where senders may be: up to the receivers, from the first token that differs; (prompt, token)."""
    token = torch.arange(recorded_pairs.pairs.length)
    last = torch.stack([receiver.at for receiver in receivers]).amax(0)  # (prompt,)
    allowed = (token[None] >= recorded_pairs.pairs.first[:, None]) & (token[None] <= last[:, None])
    if settings.min_attention:
        is_attended = torch.stack(  # (receiver, prompt, token)
            [
                (receiver.head.pattern.cpu() >= settings.min_attention) & (receiver.at >= 0)[:, None]
                for receiver in receivers
            ]
        )
        is_own = torch.stack([token[None] == receiver.at[:, None] for receiver in receivers])  # as above
        allowed &= (is_attended | is_own).flatten(0, 1).any(0)  # by place: in any prompt
    return allowed


def sender_batches(
    recorded_pairs: RecordedPairs, senders: Senders, receivers: Sequence[RecordedReceiver]
) -> Iterator[Senders]:
    """Batches of senders whose outputs fit into `MESSAGES` bytes."""
    anatomy = recorded_pairs.surgeon.anatomy
    layers = {receiver.node.layer for receiver in receivers}
    widths = (anatomy.parts[layer].n_heads * anatomy.parts[layer].head_dim for layer in layers)
    row = 3 * sum(widths) * recorded_pairs.recording.sites["resid"][0].element_size()
    size = max(1, MESSAGES // row)
    for start in range(0, senders.n, size):
        yield senders.take(torch.arange(start, min(start + size, senders.n)))


def sender_output(
    recorded_pairs: RecordedPairs, senders: Senders, receivers: Sequence[RecordedReceiver]
) -> SenderOutput:
    """Run the senders with the z and attention of every other head frozen, and read the projections above.

    Returns them at each sender's token, by component and layer: (row, head, head_dim).
    """
    anatomy = recorded_pairs.surgeon.anatomy
    keys, reads = [], []
    for layer in sorted({receiver.node.layer for receiver in receivers}):
        heads = sorted({receiver.node.head for receiver in receivers if receiver.node.layer == layer})
        for site in COMPONENTS:
            parts = anatomy.parts[layer]
            read_heads = heads if site == "q" else sorted({parts.kv_head(head) for head in heads})
            reads.append(Read(site, layer, positions=senders.token[:, None], heads=read_heads))
            keys.append((site, layer))
    edits = [senders.noise_edit(recorded_pairs.noise_z)]
    values = recorded_pairs.surgeon.run(
        recorded_pairs.recording, edits, reads, source=senders.prompt, attention="frozen", allow_noop=True
    )
    n_heads = anatomy.n_heads
    output: SenderOutput = {}
    for (site, layer), read, value in zip(keys, reads, values, strict=True):
        assert read.heads is not None
        all_heads = value.new_zeros(senders.n, n_heads, value.shape[-1])  # (row, head, head_dim)
        all_heads[:, read.heads[0]] = value[:, :, 0]
        output[site, layer] = all_heads
    return output


def receiver_change(
    recorded_pairs: RecordedPairs,
    receiver: RecordedReceiver,
    component: Component,
    senders: Senders,
    output: SenderOutput,
) -> ReceiverChange:
    """The change of one receiver's z, without rows whose change is rounded away when it is added to the residual."""
    at = receiver.at[senders.prompt]  # (row,)
    can_attend = senders.token == at if component == "q" else senders.token <= at
    rows = torch.nonzero(can_attend & (at >= 0)).reshape(-1)
    head = receiver.node.head if component == "q" else receiver.head.parts.kv_head(receiver.node.head)
    source = senders.prompt[rows]
    projection = output[component, receiver.node.layer][rows, head]  # (row, head_dim)
    z = receiver.head.changed_z(component, projection, source, senders.token[rows])
    change = z - receiver.head.z[source]  # (row, head_dim)
    relative_change = receiver.relative_change(change, source)  # (row,)
    changed = torch.nonzero(relative_change > ROUNDED_AWAY * torch.finfo(change.dtype).eps).reshape(-1).cpu()
    slope = recorded_pairs.slopes[receiver.node.layer][source, receiver.node.head, at[rows]].to(
        change
    )  # (row, head_dim)
    estimate = (change * slope).sum(-1)  # (row,)
    return ReceiverChange(receiver, rows[changed], change[changed], relative_change[changed], estimate[changed])
