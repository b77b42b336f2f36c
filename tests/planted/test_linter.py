"""The linter refuses each of the bugs that a wiring can have; the mechanisms themselves pass it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rebinding.planted import MECHANISMS, WiringError
from rebinding.planted.language import Line, Softness, TemplateError, Wiring, check_tokenizer, expression
from rebinding.planted.linter import check_distances, lint
from rebinding.planted.mechanisms import pointer
from rebinding.planted.projections import lay_out, seat
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.planted.variants import VARIANTS

GRADED = Softness.of(0.75)


def changed(name: str, change: Callable[[Line], Line]) -> Wiring:
    """The pointer with one line changed."""
    plain = pointer(3)
    assert name in {line.name for line in plain.lines}
    return replace(plain, lines=tuple(change(line) if line.name == name else line for line in plain.lines))


@pytest.mark.parametrize("softness", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("boxes", [3, 7])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_mechanisms_pass(mechanism: str, boxes: int, softness: float) -> None:
    lint(MECHANISMS[mechanism](boxes), Softness.of(softness))


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_pass(name: str) -> None:
    for mechanism in VARIANTS[name].mechanisms:
        lint(VARIANTS[name].change(MECHANISMS[mechanism](3)), GRADED)


FAULTS: list[tuple[str, Callable[[Line], Line], str]] = [
    ("match", lambda line: replace(line, at="constant"), "at has to name kinds"),
    ("match", lambda line: replace(line, at=""), "at has to name kinds"),
    ("match", lambda line: replace(line, look="slot"), "look has to name kinds"),
    ("match", lambda line: replace(line, unit=0.5), "under the threshold"),
    ("copy", lambda line: replace(line, right=1.0), "under the threshold"),
    ("own", lambda line: replace(line, right=0.5), "without the right match"),
    ("match", lambda line: replace(line, layer=4), "no head below layer 4"),
    ("echo", lambda line: replace(line, write="object <- found"), "nobody reads 'echo'"),
    ("echo", lambda line: replace(line, write="object <- ecco"), "no space 'ecco'"),
    ("echo", lambda line: replace(line, name="copy"), "two heads"),
    ("echo", lambda line: replace(line, role=None), "has a group and a role"),
    ("echo", lambda line: replace(line, role="question_box"), "acts at readout"),
    ("other", lambda line: replace(line, back=(("first", 3),)), "not in at="),
    ("other", lambda line: replace(line, where="label"), "query side = key side"),
]
"""A line, what is done to it, and what the linter says then."""


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_faults_are_named(fault: int) -> None:
    name, change, word = FAULTS[fault]
    with pytest.raises(WiringError, match=word):
        lint(changed(name, change), GRADED)


def test_aliases_of_a_distance_are_refused() -> None:
    """With a base of 2e5 a distance of 37 looks almost like none; 5e5 is Llama 3's own."""
    pairs = torch.arange(32) / 32
    check_distances(5e5**-pairs, 0)
    with pytest.raises(WiringError, match="looks like another"):
        check_distances(2e5**-pairs, 0)


def test_collisions_in_a_kv_group_are_refused() -> None:
    """Two label matchers with different keys do not fit into the slow dimensions of one KV head."""
    lines = tuple(
        Line(f"head {space}", 2, "question", "context", "goal <- slot", where=f"label = {space}")
        for space in ("label", "other")
    )
    layout = lay_out({"slot": 3, "other": 26, "goal": 3}, 64)
    frequencies = 5e5 ** -(torch.arange(32) / 32)
    assert {place.head // 2 for place in seat(lines, layout, frequencies, 4, 2, 0)} == {0, 1}
    with pytest.raises(WiringError, match="no room"):
        seat(lines, layout, frequencies, 2, 1, 0)


def test_other_tokenizers_are_refused() -> None:
    """A tokenizer that gives blanks their own tokens moves every distance."""
    from tokenizers import Regex, pre_tokenizers

    tokenizer = build_tokenizer()
    check_tokenizer(tokenizer)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n\n|\n|[.,:?]| "), behavior="isolated")
    with pytest.raises(TemplateError, match="tokens after"):
        check_tokenizer(tokenizer)


def test_expressions() -> None:
    assert expression("pair + 2 slot - found[1]") == ((1.0, "pair"), (2.0, "slot"), (-1.0, "found[1]"))
    assert expression("-0.5 mate[0][1]") == ((-0.5, "mate[0][1]"),)
    for bad in ("", "2", "slot *", "Slot"):
        with pytest.raises(WiringError, match="expression"):
            expression(bad)
