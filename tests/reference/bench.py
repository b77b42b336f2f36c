"""The code of published rows, on the prompts of a pack: what a row asks for by id is answered with the pack's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from rebinding.evidence import PromptSet
from rebinding.evidence.request import digest
from rebinding.study.bench import Bench
from rebinding.study.drawing import Drawn, Item, Pairing
from rebinding.subjects import load
from rebinding.world.answers import AnswerRule
from rebinding.world.designs import Design, Pair
from rebinding.world.words import Vocabulary
from tests.reference.pack import FORMS, Pack

Source: TypeAlias = tuple[tuple[str, ...], Sequence[int]]
"""The pack's designs of a prompt and, where there is one, of its counterfactual; and the ids."""


@dataclass(frozen=True, eq=False)
class PackBench(Bench):
    """A bench on the model of a pack. `sources` says which prompts of the pack stand in for which pairing of a row."""

    pack: Pack = field(kw_only=True)
    sources: Mapping[Pairing, Source] = field(kw_only=True)

    @property
    def vocabulary(self) -> Vocabulary:
        """All words: the designs of a row are only names here, so the pack's tokenizer need not know any of them."""
        return Vocabulary()

    def draw(
        self, drawn: Design, ids: Sequence[int], pairing: Pairing = (), encoded: int | None = None, cut: int = 0
    ) -> PromptSet:
        """The pack's prompts for a pairing, under their ids in the pack; a row has to ask for as many as there are."""
        designs, numbers = self.sources[pairing]
        assert len(ids) == len(numbers), f"the row asks for {len(ids)} prompts, and the pack has {len(numbers)}"
        assert (encoded, cut) == (None, 0), "the row asks for a part of a prompt or of a pool, and the pack has neither"
        sides = [self.pack.prompts(design, list(numbers)) for design in designs]
        content = digest([[prompt.ids, sorted(prompt.roles.items())] for side in sides for prompt in side])
        words = digest(asdict(self.vocabulary))
        prompts = PromptSet(
            drawn.name, tuple(numbers), content, words, len(numbers), self.subject.form, drawn.split, pairing=pairing
        )
        own, others = sides if len(sides) > 1 else (*sides, [])
        items: list[Item] = [prompt.prompt for prompt in own]
        if others:
            pairs = zip(numbers, own, others, strict=True)
            items = [Pair(number, mine.prompt, other.prompt, pairing[0]) for number, mine, other in pairs]
        self.sets[prompts] = Drawn(prompts, tuple(items), tuple(own), tuple(others))
        return prompts


def bench_of(pack: Pack, sources: Mapping[Pairing, Source]) -> PackBench:
    """The pack's model as `rebinding.subjects.load` gives it. The chat form only matters for the tokens of answers, and
    every form ends with the same `Answer:`; the raw one needs nothing of the tokenizer."""
    subject = load(str(pack.folder / "model"), dtype="float32", device="cpu", form="raw")
    return PackBench(subject, pack=pack, sources=sources)


def form_of_rule(pack: Pack, bench: Bench, design: str, rule: AnswerRule) -> str:
    """The pack's name of the answer tokens that a rule takes on its tokenizer."""
    records = pack.raw(design).values()
    words: list[dict[str, Any]] = [{form: record[field] for form, field in FORMS.items()} for record in records]
    names = [
        form
        for form in FORMS
        if all(bench.encoder.answer_token(word, rule) == token for both in words for word, token in both[form].items())
    ]
    assert len(names) == 1, f"the rule {rule} takes the tokens of {names or 'none'} of the pack's forms: {list(FORMS)}"
    return names[0]
