"""Procedures are data: complete, each convention one of its choices, and a third one can be written."""

from pathlib import Path

import pytest

from rebinding.experiments.circuit.paths import PAPER_LITERAL
from rebinding.paper.procedure import differences, given, read


def test_the_two_differ_in_every_section() -> None:
    sections = {name.partition(".")[0] for name in differences(given("published"), given("controlled"))}
    assert sections == set(given("published").plain) == {"tracing", "circuit", "roles", "binding"}


def test_the_five_stages_look_where_the_paper_says_and_keep_as_many_as_its_code() -> None:
    told = [(one.group, one.sender, one.receivers, one.component, one.at, one.keep) for one in PAPER_LITERAL]
    assert told == [
        ("A", "readout", None, None, None, 50),
        ("B", "readout", "A", "q", "readout", 50),
        ("C", "question_box", "B", "v", "question_box", 25),
        ("D", "swap_partner", "C", "q", "question_box", 10),
        ("E", "context_partner", "D", "v", "context_partner", 10),
    ]


def test_one_convention_changed(tmp_path: Path) -> None:
    file = tmp_path / "heads.toml"
    file.write_text('like = "published"\n[binding]\nscope = "head"\n')
    mine = read(file)
    assert (mine.name, mine.like, mine.path) == ("heads", "published", file)
    assert differences(given("published"), mine) == {"binding.scope": ("group", "head")}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[binding]\nscope = "head"\n', "begin it with like"),
        ('like = "mine"\n', "begin it with like"),
        ('like = "published"\n[binding]\nscope = "heads"\n', "choose among group, head"),
        ('like = "published"\n[binding]\nbatches = 0\n', "whole number above 0"),
        ('like = "published"\n[bindings]\n', "sections of a procedure are"),
        ('like = "published"\n[binding]\nscoop = 1\n', "it has to say"),
        ("like = ", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        read(file)
    assert str(file) in str(error.value)


def test_every_discovery_that_it_may_have_been() -> None:
    """Frozen heads carry nothing to C's query from another token: that D is asked for where nothing is frozen."""
    found = given("published").circuit.candidates
    told = {(way.noise, way.frozen, way.d_heard_by) for way in found.values()}
    kv, query = ("keys_values",), ("query",)
    heard = {(("none",), kv), (("none",), query), (("all",), kv)}
    assert told == {((noise,), *one) for noise in ("rotation", "fresh") for one in heard}
    assert len(found) == len(told)
    assert list(given("controlled").circuit.candidates) == ["independent"]


def test_a_candidate_that_is_all_there_is_stays(tmp_path: Path) -> None:
    file = tmp_path / "literal.toml"
    file.write_text('like = "controlled"\n[circuit]\nd_heard_by = ["query"]\n')
    assert list(read(file).circuit.candidates.values()) == [read(file).circuit]


def test_a_file_may_not_take_the_name_of_a_given_one(tmp_path: Path) -> None:
    file = tmp_path / "published.toml"
    file.write_text('like = "published"\n')
    with pytest.raises(ValueError, match="rename the file"):
        read(file)
