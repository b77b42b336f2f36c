"""The code of published rows, on the prompts of a pack: what a row asks for by id is answered with the pack's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from rebinding.evidence import PromptSet
from rebinding.evidence.request import digest
from rebinding.experiments.prompts import EncodedPrompts, Item, Pairing, Stories
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.task.designs import Design, Pair
from rebinding.task.prompts import AnswerRule, Encoder
from rebinding.task.words import Vocabulary
from tests.reference.naive.patching import FORMS
from tests.reference.pack import Pack

Source: TypeAlias = tuple[tuple[str, ...], Sequence[int]]
"""The pack's designs of a prompt and, where there is one, of its counterfactual; and the ids."""


class PackPrompts(Stories):
    """The prompts of a pack. `sources` says which of them stand in for which pairing of a row."""

    def __init__(self, encoder: Encoder, pack: Pack, sources: Mapping[Pairing, Source]) -> None:
        super().__init__(encoder)
        self._pack = pack
        self._sources = sources

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All words: the designs of a row are only names here, so the pack's tokenizer need not know any of them."""
        return Vocabulary()

    def draw(self, stories: Design, ids: Sequence[int], pairing: Pairing = (), cut: int = 0) -> PromptSet:
        """The pack's prompts for a pairing, under their ids in the pack; a row has to ask for as many as there are."""
        designs, numbers = self._sources[pairing]
        assert len(ids) == len(numbers), f"the row asks for {len(ids)} prompts, and the pack has {len(numbers)}"
        assert cut == 0, "the row asks for prompts short of their end, and the pack has none"
        originals, *rest = [self._pack.prompts(design, list(numbers)) for design in designs]
        counterfactuals = rest[0] if rest else []
        sides = zip(*(side for side in (originals, counterfactuals) if side), strict=True)
        contents = tuple(
            digest([[prompt.ids, sorted(prompt.roles.items())] for prompt in prompts]) for prompts in sides
        )
        printed = PromptSet(
            stories.name,
            tuple(numbers),
            digest(contents),
            self.encoder.form,
            split=stories.split,
            pairing=pairing,
        )
        items: list[Item] = [prompt.prompt for prompt in originals]
        if counterfactuals:
            pairs = zip(numbers, originals, counterfactuals, strict=True)
            items = [
                Pair(number, original.prompt, counterfactual.prompt, pairing[0])
                for number, original, counterfactual in pairs
            ]
        return self.add(
            EncodedPrompts(
                printed, tuple(items), tuple(originals), tuple(counterfactuals), (1,) * len(numbers), contents
            )
        )


def make_bench(pack: Pack, sources: Mapping[Pairing, Source]) -> Workbench:
    """The pack's model as `rebinding.models.load` gives it. The chat form only matters for the tokens of answers, and
    every form ends with the same `Answer:`; the raw one needs nothing of the tokenizer."""
    loaded_model = load(str(pack.folder / "model"), dtype="float32", device="cpu", form="raw")
    return Workbench(loaded_model, prompts=PackPrompts(loaded_model.encoder(), pack, sources))


def choose_form(pack: Pack, bench: Workbench, design: str, rule: AnswerRule) -> str:
    """The pack's name of the answer tokens that a rule takes on its tokenizer."""
    records = pack.raw(design).values()
    words: list[dict[str, Any]] = [{form: record[field] for form, field in FORMS.items()} for record in records]
    names = [
        form
        for form in FORMS
        if all(
            bench.prompts.encoder.answer_token(word, rule) == token
            for word_pair in words
            for word, token in word_pair[form].items()
        )
    ]
    assert len(names) == 1, f"the rule {rule} takes the tokens of {names or 'none'} of the pack's forms: {list(FORMS)}"
    return names[0]
