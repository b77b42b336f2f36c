"""Procedures are data: complete, each convention one of its choices, and a third one can be written."""

from pathlib import Path

import pytest

from rebinding.experiments.paths.request import PAPER_LITERAL
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
    """One convention at a time differs from the released ones: three kinds of noise, what is frozen, and what of C
    receives D."""
    found = given("published").circuit.candidates
    varied_conventions = [
        (conventions.noise, conventions.frozen, conventions.d_heard_by) for conventions in found.values()
    ]
    released = (("rotation",), ("none",), ("keys_values",))
    assert varied_conventions[0] == released
    varied = {
        tuple(one for one, usual in zip(conventions, released, strict=True) if one != usual)
        for conventions in varied_conventions[1:]
    }
    assert varied == {(("fresh",),), (("objects",),), (("all",),), (("query",),)}
    assert len(found) == len(varied_conventions) == 5
    assert list(given("controlled").circuit.candidates) == ["independent"]


def test_frozen_heads_leave_no_candidate_in_which_c_hears_d_by_its_query(tmp_path: Path) -> None:
    file = tmp_path / "frozen.toml"
    file.write_text('like = "published"\n[circuit]\nfrozen = ["all"]\n')
    heard = {(conventions.frozen, conventions.d_heard_by) for conventions in read(file).circuit.candidates.values()}
    assert heard == {(("all",), ("keys_values",))}


def test_a_candidate_that_is_all_there_is_stays(tmp_path: Path) -> None:
    file = tmp_path / "literal.toml"
    file.write_text('like = "controlled"\n[circuit]\nd_heard_by = ["query"]\n')
    assert list(read(file).circuit.candidates.values()) == [read(file).circuit]


def test_a_file_may_not_take_the_name_of_a_given_one(tmp_path: Path) -> None:
    file = tmp_path / "published.toml"
    file.write_text('like = "published"\n')
    with pytest.raises(ValueError, match="rename the file"):
        read(file)
