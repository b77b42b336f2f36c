"""A loaded and checked model: makes prompts for it, and records them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rebinding.api.prompts import Pairs, Prompts
from rebinding.api.recording import Recording
from rebinding.api.tokenizing import fill, tokenize
from rebinding.experiments.prompts import Stories
from rebinding.experiments.search import graph as graphs
from rebinding.experiments.search.graph import Graph
from rebinding.experiments.search.measure import search_pairs, story_answers
from rebinding.experiments.search.request import NOISE
from rebinding.models.devices import Device
from rebinding.models.dtypes import default_dtype
from rebinding.models.errors import UnknownName
from rebinding.models.loaded_model import LoadedModel, owner_of
from rebinding.models.loaded_model import load as load_model
from rebinding.models.loaded_model import wrap as wrap_model
from rebinding.models.names import origin
from rebinding.paper import circuit as circuits
from rebinding.paper.circuit import MLP, Circuit
from rebinding.surgery import Anatomy, SurgeryError, TorchSurgeon
from rebinding.surgery.calling import Weights, hold
from rebinding.surgery.sites import Site
from rebinding.task.chat import Form
from rebinding.task.designs import Design, DesignName, pair_of
from rebinding.task.designs import design as make_design
from rebinding.task.prompts import Encoded, PromptError, stratum

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

KEPT_SITES: tuple[Site, ...] = ("z",)


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A causal language model that passed the self-check. Made by `load` or `wrap`."""

    loaded: LoadedModel

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.anatomy.n_layers} layers of {self.anatomy.n_heads} heads)"

    @property
    def name(self) -> str:
        """The name under which it was loaded."""
        return self.loaded.name

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Its tokenizer."""
        return self.loaded.tokenizer

    @property
    def anatomy(self) -> Anatomy:
        """Its layers and heads: `n_layers`, `n_heads`, and `parts[layer]` with the layer's `n_heads`, `n_kv_heads`,
        `head_dim` and the paths of its modules."""
        return self.loaded.anatomy

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Every query head as (layer, head)."""
        return list(self.anatomy.heads)

    @property
    def mlps(self) -> list[tuple[int, int]]:
        """Every MLP as (layer, `rebinding.MLP`)."""
        return [(layer, MLP) for layer in range(self.anatomy.n_layers)]

    @cached_property
    def surgeon(self) -> TorchSurgeon:
        """The surgeon that runs it."""
        surgeon = self.loaded.surgeon()
        if not isinstance(surgeon, TorchSurgeon):
            raise SurgeryError(f"{self.name} runs on a server; this needs a model on this machine")
        return surgeon

    def prompts(
        self,
        prompts: Iterable[str] | Iterable[Sequence[int]] | Tensor,
        *,
        positions: Mapping[str, int | Sequence[int]] | None = None,
        answers: Sequence[Sequence[str | int]] | None = None,
    ) -> Prompts:
        """Prompts from texts or token ids of equal length.

        `positions` names tokens by index: one for all prompts, or one for each. `answers` are the answer candidates of
        each prompt, the right one first, as tokens or as text of one token (`" Mary"`). Texts are tokenised as the
        tokenizer does by default, special tokens included, but for tokens that it appends: the readout is the last
        token of the text. Token ids that begin or end with padding, or end with an end token, are refused.
        """
        return tokenize(self.tokenizer, prompts, positions or {}, answers)

    def fill(
        self, template: str, rows: Sequence[Mapping[str, str]], *, answers: Sequence[str] | None = None
    ) -> Prompts:
        """Prompts from a template with fields, such as `"When {first} and {second} met, {giver} gave a book to"`.

        Each row has a word for every field. A field's name names the last token of its word. `answers` are templates
        too, the right answer first: `(" {first}", " {second}")`.
        """
        return fill(self.tokenizer, template, rows, answers)

    def stories(self, design: Design, n: int, *, first: int = 0) -> Prompts:
        """The prompts `first` to `first + n` of a design of the box task, in this model's chat form."""
        check_stories(design, n)
        encoder = self.loaded.encoder()
        return self._of_stories(encoder.encode(design.prompt(number) for number in range(first, first + n)))

    def story_pairs(self, design: Design, n: int, *, first: int = 0, kind: str = NOISE) -> Pairs:
        """Stories, each with a counterfactual of a kind.

        `independent` noise has other words in other slots; its statements replace those of the box with the same part
        in the swap. `rebinding prompt --pair KIND` shows the other kinds, such as `pointer` and `rotation`, which
        replace token by token.
        """
        check_stories(design, n)
        if kind != NOISE:
            encoder = self.loaded.encoder()
            pairs = [pair_of(design, number, kind) for number in range(first, first + n)]
            originals, counterfactuals = [pair.original for pair in pairs], [pair.counterfactual for pair in pairs]
            return Pairs(self._of_stories(encoder.encode(originals)), self._of_stories(encoder.encode(counterfactuals)))
        stories = Stories(self.loaded.encoder())
        encoded = stories.encode(stories.draw(design, range(first, first + n), ("noise", NOISE)))
        match = search_pairs(stories.encoder, encoded).match
        return Pairs(self._of_stories(encoded.prompts), self._of_stories(encoded.counterfactuals), match)

    def record(self, prompts: Prompts, *, keep: Collection[Site] = KEPT_SITES) -> Recording:
        """Run prompts unedited and record what edited runs start from. `keep` are sites whose values are kept as well;
        `attention="frozen"` needs `z`."""
        if not isinstance(prompts, Prompts):
            raise PromptError("record takes Prompts; make them with model.prompts(texts) or model.fill(template, rows)")
        model = self.loaded.model
        check_length(model, prompts.length)
        with hold(model):
            return Recording(self, prompts, self.surgeon.record(prompts.tokens, keep=keep), Weights.of(model))

    def save(self, circuit: Circuit | Graph, path: Path | str) -> None:
        """Write a circuit, or a graph, of this model as JSON (`rebinding/schemas`)."""
        owner = owner_of(self.loaded)
        text = circuits.to_json(circuit, owner) if isinstance(circuit, Circuit) else graphs.to_json(circuit, owner)
        Path(path).write_text(text, "utf-8")

    def load_circuit(self, path: Path | str) -> Circuit:
        """Read a circuit of this model from a file; that of another model is refused."""
        return circuits.load(Path(path), owner_of(self.loaded))

    def _of_stories(self, encoded: Sequence[Encoded]) -> Prompts:
        encoder = self.loaded.encoder()
        answers = torch.tensor([story_answers(encoder, prompt) for prompt in encoded])
        return Prompts(tuple(encoded), answers, tuple(stratum(prompt.prompt) for prompt in encoded))


POSITION_TABLES = ("wpe", "embed_positions")
"""What families call their table of learned positions."""


def check_length(model: PreTrainedModel, length: int) -> None:
    """Refuse prompts that are longer than a model's table of learned positions."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in POSITION_TABLES and isinstance(module, nn.Embedding):
            most = module.num_embeddings - int(getattr(module, "offset", 0))
            if length > most:
                raise PromptError(f"prompts of {length} tokens: this model has positions for {most}; shorten them")


def load(
    name: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    device: Device | torch.device = "auto",
    form: Form | None = None,
    revision: str | None = None,
) -> Model:
    """Load a model by name and check it: `planted:pointer`, a folder, a Hub id, or one of the paper's models.

    Without `dtype` it is loaded as commands and claims load it: as published for the paper's models, in bfloat16 for
    others on the Hub, as saved for folders, else in float32. `device="auto"` uses the GPUs that are there. `form` is
    how stories are put into a chat. A model that cannot be loaded, or that the surgeon would not run exactly, raises a
    `ModelError` that says what to do.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise UnknownName(
            f"load takes a name, a folder or a Hub id; got a {type(name).__name__}. For a model in memory call"
            " rebinding.wrap(model, tokenizer)"
        )
    name = os.fspath(name)
    precision = default_dtype(origin(name, revision=revision)) if dtype is None else str(dtype).removeprefix("torch.")
    place = str(device) if isinstance(device, torch.device) else device
    return Model(load_model(name, dtype=precision, device=place, form=form, revision=revision))


def wrap(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    name: str | None = None,
    form: Form | None = None,
) -> Model:
    """Check a Hugging Face model that is in memory, on its device and in its dtype; the same self-check as `load`.

    The model is left as it was found: its attention, training flags and hooks are the same afterwards, and after every
    run. It is not copied: a run that continues a recording refuses if weights or hooks have changed since, and runs
    refuse a model in training mode. `name` is how messages and files name it; `judge` loads a model by that name.
    """
    return Model(wrap_model(model, tokenizer, name=name, form=form))


def check_stories(design: Design, n: int) -> None:
    """Refuse what is no design, and an empty set of stories."""
    if not isinstance(design, Design):
        raise PromptError(f"give a design, such as rebinding.design('published', model); got {design!r:.60}")
    if n < 1:
        raise PromptError(f"{n} stories: give 1 or more")


def design(name: DesignName, model: Model, *, boxes: int = 3, operations: int = 1) -> Design:
    """A design of stories of the box task, in words that are single tokens for the model.

    `published` is the paper's; in `counterbalanced` every slot and order of naming occurs equally often.
    """
    return make_design(name, boxes=boxes, operations=operations, tokenizer=model.tokenizer)
