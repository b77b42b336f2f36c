"""Words and draws: the published lists, splits and check vectors."""

from __future__ import annotations

import pytest

from rebinding.task.words import LABELS, OBJECTS, DesignError, Split, Vocabulary, draw

# Split, id, the first three entities and the two donors after them, as regenerated independently of this project.
CHECK_VECTORS: list[tuple[Split, int, str, str]] = [
    ("train", 0, "B chemical, K shell, J boot", "F wheel, L rock"),
    ("train", 1, "I bread, M rose, A tea", "L disk, F cross"),
    ("train", 299, "B leaf, K boat, G watch", "L glass, M tie"),
    ("train", 10000, "F machine, D bill, H wire", "M clock, G chemical"),
    ("test", 0, "O guitar, X bell, W key", "S stone, Y coat"),
    ("test", 1, "V train, Z cup, N book", "Y ice, S phone"),
    ("test", 2, "W pot, Q map, T key", "Z plane, X file"),
    ("none", 0, "O machine, A plane, X engine", "S dress, G bell"),
]


@pytest.mark.parametrize(("split", "prompt_id", "entities", "donors"), CHECK_VECTORS)
def test_an_id_draws_the_published_words(split: Split, prompt_id: int, entities: str, donors: str) -> None:
    words = draw(Vocabulary().split(split), prompt_id)
    pairs = [f"{words.label(index)} {words.object(index)}" for index in range(5)]
    assert pairs == [*entities.split(", "), *donors.split(", ")]


def test_the_lists_and_their_halves() -> None:
    assert (len(LABELS), len(OBJECTS), len(set(OBJECTS))) == (26, 82, 82)
    train, test = Vocabulary().split("train"), Vocabulary().split("test")
    assert ("".join(train.labels), "".join(test.labels)) == ("ABCDEFGHIJKLM", "NOPQRSTUVWXYZ")
    assert (len(train.objects), train.objects[-1], test.objects[0]) == (41, "boot", "medicine")


def test_lists_shorter_than_four_are_never_split() -> None:
    short = Vocabulary(("A", "B", "C"), OBJECTS[:4])
    assert short.split("test") == Vocabulary(("A", "B", "C"), OBJECTS[2:4])
    assert short.split("train") == Vocabulary(("A", "B", "C"), OBJECTS[:2])


def test_thirds_are_disjoint_and_leave_nothing_out() -> None:
    thirds = [Vocabulary().split(name) for name in ("discovery", "directions", "evaluation")]
    assert sorted(word for third in thirds for word in third.labels) == sorted(LABELS)
    assert sorted(word for third in thirds for word in third.objects) == sorted(OBJECTS)
    assert min(len(third.labels) for third in thirds) >= 8


def test_the_filter_comes_before_the_split() -> None:
    vocabulary = Vocabulary().keep(lambda word: word not in ("egg", "fan"))
    assert vocabulary.labels == LABELS
    assert vocabulary.split("train").objects == OBJECTS[2:42]


@pytest.mark.parametrize("bad", [-1, 1.0, "3", True])
def test_an_id_is_a_whole_number_from_0_on(bad: object) -> None:
    with pytest.raises(DesignError, match="a prompt id is a whole number from 0 on"):
        draw(Vocabulary(), bad)  # type: ignore[arg-type]  # what the test is about


def test_running_out_of_words_says_how_many_there_are() -> None:
    words = draw(Vocabulary().split("train"), 0)
    with pytest.raises(DesignError, match="needs 14 different labels and the vocabulary of the design has 13"):
        words.label(13)
