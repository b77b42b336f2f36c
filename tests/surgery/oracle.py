"""A forward pass written out by hand, straight from the weights: what both surgeons must agree with.

Nothing of the library's model code, of either surgeon or of the anatomy is used. Every layer, head and cell is computed
and edited in a plain loop, over all tokens of all rows; it is slow, and short enough to be checked by reading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu
from transformers import PreTrainedModel

from rebinding.surgery.sites import Edit, Read, in_layer
from tests.surgery.models import Family
from tests.surgery.tables import heads_of, layer_of, positions_of

HEADS, GROUP, HEAD_DIM, EPSILON = 6, 3, 10, 1e-6
MASKED = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Facts:
    """What tells one family from another."""

    windows: tuple[int | None, ...] = (None,) * 4
    rotation: tuple[float, ...] = (10_000.0,) * 4
    slowdown: tuple[float, ...] = (1.0,) * 4
    gemma: bool = False
    """Norms add one to their weight and follow each branch too; scaled embeddings; gelu; its own factor of scores."""
    head_norms: bool = False
    score_cap: float | None = None
    logit_cap: float | None = None
    prefix: str = "model."
    tied: bool = False


GEMMA3 = Facts(
    windows=(5, 5, None, 5),
    rotation=(30.0, 30.0, 500.0, 30.0),
    slowdown=(1.0, 1.0, 2.0, 1.0),
    gemma=True,
    head_norms=True,
    tied=True,
)
FACTS: dict[Family, Facts] = {
    "llama": Facts(),
    "mistral": Facts(windows=(4,) * 4),
    "gemma2": Facts(windows=(5, None, 5, None), gemma=True, score_cap=1.5, logit_cap=3.0, tied=True),
    "gemma3": Facts(**{**vars(GEMMA3), "logit_cap": 3.0}),
    "gemma3_multimodal": Facts(**{**vars(GEMMA3), "prefix": "model.language_model."}),
    "qwen3": Facts(windows=(6, None, 6, None), head_norms=True),
}


@dataclass(eq=False)
class Oracle:
    """One batch of rows through the model, with its edits, noting what is read."""

    weights: dict[str, Tensor]
    facts: Facts
    edits: Sequence[Edit]
    reads: Sequence[Read]
    frozen: Sequence[Tensor] | None
    answers: dict[int, Tensor]

    def at(self, site: str, layer: int, value: Tensor, *, is_own: bool = False) -> Tensor:
        """Edit a site (row, [head,] position, width) cell by cell in the order of the edits, then note the reads."""
        for edit in self.edits:
            if edit.site == site and (layer_of(edit) == layer or site == "logits") and (edit.scope == "head") == is_own:
                value = edit_cells(value, edit)
        for number, read in enumerate(self.reads):
            if read.site == site and (layer_of(read) == layer or site == "logits") and not is_own:
                self.answers[number] = read_cells(value, read)
        return value

    def norm(self, name: str, value: Tensor) -> Tensor:
        """Divide by the root mean square, multiply by the weight."""
        scale = self.weights[f"{name}.weight"] + (1.0 if self.facts.gemma else 0.0)
        return value * torch.rsqrt(value.square().mean(-1, keepdim=True) + EPSILON) * scale

    def project(self, name: str, value: Tensor) -> Tensor:
        """A matrix, with its bias if it has one."""
        return linear(value, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def heads(self, name: str, value: Tensor) -> Tensor:
        """A projection split into heads: (row, head, position, head_dim)."""
        out = self.project(name, value)
        return torch.stack(out.split(HEAD_DIM, dim=-1), dim=1)

    def rotate(self, layer: int, value: Tensor) -> Tensor:
        """RoPE: turn dimensions i and i + d/2 of the token at position p by p * base^(-2i/d), slowed if it says so."""
        half = HEAD_DIM // 2
        speed = 1.0 / self.facts.rotation[layer] ** (torch.arange(half) / half) / self.facts.slowdown[layer]
        angle = torch.arange(value.shape[2])[:, None] * speed  # (position, half)
        first, second = value[..., :half], value[..., half:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def attention(self, layer: int, name: str, value: Tensor) -> Tensor:
        """z of every head: (row, head, position, head_dim)."""
        q = self.at("q", layer, self.heads(f"{name}.q_proj", value))
        k = self.at("k", layer, self.heads(f"{name}.k_proj", value))
        v = self.at("v", layer, self.heads(f"{name}.v_proj", value))
        k = self.at("k", layer, torch.stack([k[:, head // GROUP] for head in range(HEADS)], dim=1), is_own=True)
        v = self.at("v", layer, torch.stack([v[:, head // GROUP] for head in range(HEADS)], dim=1), is_own=True)
        if self.facts.head_norms:
            q, k = self.norm(f"{name}.q_norm", q), self.norm(f"{name}.k_norm", k)
        q = self.at("q_rot", layer, self.rotate(layer, q))
        k = self.at("k_rot", layer, self.rotate(layer, k))
        v = self.at("v_seen", layer, v)
        scores = q @ k.transpose(2, 3) * (7 if self.facts.gemma else HEAD_DIM) ** -0.5  # (row, head, query, key)
        if self.facts.score_cap is not None:
            scores = self.facts.score_cap * torch.tanh(scores / self.facts.score_cap)
        scores = self.at("scores", layer, scores + self.mask(layer, value.shape[1]))
        pattern = self.at("pattern", layer, torch.softmax(scores, dim=-1))
        return pattern @ v

    def mask(self, layer: int, length: int) -> Tensor:
        """Zero where a query sees a key: not after it, and closer than the window."""
        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]  # (query, key)
        window = self.facts.windows[layer] or length
        return torch.where((distance >= 0) & (distance < window), 0.0, MASKED)

    def layer(self, layer: int, resid: Tensor) -> Tensor:
        """One layer: attention branch, MLP branch."""
        name = f"layers.{layer}"
        resid = self.at("resid", layer, resid)
        z = self.attention(layer, f"{name}.self_attn", self.norm(f"{name}.input_layernorm", resid))
        z = self.at("z", layer, z if self.frozen is None else self.frozen[layer])
        branch = self.project(f"{name}.self_attn.o_proj", torch.cat(z.unbind(dim=1), dim=-1))
        if self.facts.gemma:
            branch = self.norm(f"{name}.post_attention_layernorm", branch)
        resid = resid + branch
        before = "pre_feedforward_layernorm" if self.facts.gemma else "post_attention_layernorm"
        branch = self.at("mlp_out", layer, self.mlp(f"{name}.mlp", self.norm(f"{name}.{before}", resid)))
        if self.facts.gemma:
            branch = self.norm(f"{name}.post_feedforward_layernorm", branch)
        return resid + branch

    def mlp(self, name: str, value: Tensor) -> Tensor:
        """A gated MLP."""
        gate = self.project(f"{name}.gate_proj", value)
        gate = gelu(gate, approximate="tanh") if self.facts.gemma else silu(gate)
        return self.project(f"{name}.down_proj", gate * self.project(f"{name}.up_proj", value))

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """All rows through all layers; the values read, one tensor a read."""
        embedding = self.weights["embed_tokens.weight"]
        resid = embedding[tokens] * (math.sqrt(embedding.shape[1]) if self.facts.gemma else 1.0)
        for layer in range(4):
            resid = self.layer(layer, resid)
        resid = self.at("resid", 4, resid)
        head = embedding if self.facts.tied else self.weights["lm_head.weight"]
        logits = linear(self.norm("norm", resid), head)
        if self.facts.logit_cap is not None:
            logits = self.facts.logit_cap * torch.tanh(logits / self.facts.logit_cap)
        self.at("logits", 4, logits)
        return [self.answers[number] for number in range(len(self.reads))]


def edit_cells(value: Tensor, edit: Edit) -> Tensor:
    """A copy of a site with the cells of an edit rewritten, one by one."""
    value = value.clone()
    rows = list(range(value.shape[0])) if edit.rows is None else torch.as_tensor(edit.rows).tolist()
    table = heads_of(edit)
    heads = None if table is None else table.expand(len(rows), -1).tolist()
    positions = positions_of(edit).expand(len(rows), -1).tolist()
    inner = (len(positions[0]),) if heads is None else (len(heads[0]), len(positions[0]))
    new = edit.value.expand(len(rows), *inner, value.shape[-1])
    mask = torch.ones(inner, dtype=torch.bool) if edit.where is None else edit.where
    mask = mask.expand(len(rows), *inner)
    for i, row in enumerate(rows):
        for j, position in enumerate(positions[i]):
            for h, head in enumerate(heads[i] if heads else [None]):
                cell = (row, position) if head is None else (row, head, position)
                line = (i, j) if head is None else (i, h, j)
                if mask[line]:
                    value[cell] = value[cell] + new[line] if edit.mode == "add" else new[line]
    return value


def read_cells(value: Tensor, read: Read) -> Tensor:
    """The cells of a read: (row, [head,] position, width)."""
    n = value.shape[0]
    positions, heads = positions_of(read).expand(n, -1), heads_of(read)
    if heads is None:
        return torch.stack([value[row, positions[row]] for row in range(n)])
    heads = heads.expand(n, -1)
    return torch.stack([value[row][heads[row]][:, positions[row]] for row in range(n)])


@torch.no_grad()
def oracle(
    model: PreTrainedModel,
    family: Family,
    tokens: Tensor,
    edits: Sequence[Edit],
    reads: Sequence[Read],
    *,
    frozen: bool = False,
) -> list[Tensor]:
    """What the reads return when `tokens` (row, token) run with the edits; `frozen`: with z held at the clean run."""
    facts = FACTS[family]
    weights = {name.removeprefix(facts.prefix): weight for name, weight in model.state_dict().items()}
    clean = None
    if frozen:
        z_reads = [Read("z", at=range(tokens.shape[1]), head=in_layer(layer, range(HEADS))) for layer in range(4)]
        clean = Oracle(weights, facts, [], z_reads, None, {}).forward(tokens)
    return Oracle(weights, facts, edits, reads, clean, {}).forward(tokens)
