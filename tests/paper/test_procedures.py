"""Procedures are data: complete, each convention one of its choices, and a third one can be written."""

from pathlib import Path

import pytest

from rebinding.experiments.paths.request import PAPER_LITERAL
from rebinding.paper.procedure import builtin_procedure, differences, read_procedure


def test_the_two_differ_in_every_section() -> None:
    sections = {
        name.partition(".")[0] for name in differences(builtin_procedure("published"), builtin_procedure("controlled"))
    }
    assert sections == set(builtin_procedure("published").plain) == {"tracing", "circuit", "roles", "binding"}


def test_the_five_stages_are_the_papers() -> None:
    stages = [(s.group, s.sender, s.receivers, s.component, s.at, s.top_k) for s in PAPER_LITERAL]
    assert stages == [
        ("A", "readout", None, None, None, 50),
        ("B", "readout", "A", "q", "readout", 50),
        ("C", "question_box", "B", "v", "question_box", 25),
        ("D", "swap_partner", "C", "q", "question_box", 10),
        ("E", "context_partner", "D", "v", "context_partner", 10),
    ]


def test_candidate_changes_a_single_convention(tmp_path: Path) -> None:
    file = tmp_path / "heads.toml"
    file.write_text('like = "published"\n[binding]\nscope = "head"\n')
    procedure = read_procedure(file)
    assert (procedure.name, procedure.like, procedure.path) == ("heads", "published", file)
    assert differences(builtin_procedure("published"), procedure) == {"binding.scope": ("group", "head")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[binding]\nscope = "head"\n', "begin it with like"),
        ('like = "mine"\n', "begin it with like"),
        ('like = "published"\n[binding]\nscope = "heads"\n', "choose among group, head"),
        ('like = "published"\n[binding]\nbatches = 0\n', "whole number above 0"),
        ('like = "published"\n[bindings]\n', "sections of a procedure are"),
        ('like = "published"\n[binding]\nscoop = 1\n', "it must have"),
        ("like = ", "cannot be read"),
    ],
)
def test_an_error_names_the_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_procedure(file)
    assert str(file) in str(error.value)


def test_candidates_of_the_published_discovery() -> None:
    """One convention at a time differs from the released ones: three kinds of noise, what is frozen, and what of C
    receives D."""
    candidates = builtin_procedure("published").circuit.candidates
    varied_conventions = [
        (conventions.noise, conventions.frozen, conventions.d_received_by) for conventions in candidates.values()
    ]
    released = (("rotation",), ("none",), ("keys_values",))
    assert varied_conventions[0] == released
    varied = {
        tuple(value for value, default in zip(conventions, released, strict=True) if value != default)
        for conventions in varied_conventions[1:]
    }
    assert varied == {(("fresh",),), (("objects",),), (("all",),), (("query",),)}
    assert len(candidates) == len(varied_conventions) == 5
    assert list(builtin_procedure("controlled").circuit.candidates) == ["independent"]


def test_frozen_heads_exclude_d_by_the_query_of_c(tmp_path: Path) -> None:
    file = tmp_path / "frozen.toml"
    file.write_text('like = "published"\n[circuit]\nfrozen = ["all"]\n')
    choices = {
        (conventions.frozen, conventions.d_received_by)
        for conventions in read_procedure(file).circuit.candidates.values()
    }
    assert choices == {(("all",), ("keys_values",))}


def test_the_only_candidate_stays(tmp_path: Path) -> None:
    file = tmp_path / "literal.toml"
    file.write_text('like = "controlled"\n[circuit]\nd_received_by = ["query"]\n')
    assert list(read_procedure(file).circuit.candidates.values()) == [read_procedure(file).circuit]


def test_a_file_may_not_have_the_name_of_a_builtin_procedure(tmp_path: Path) -> None:
    file = tmp_path / "published.toml"
    file.write_text('like = "published"\n')
    with pytest.raises(ValueError, match="rename the file"):
        read_procedure(file)
