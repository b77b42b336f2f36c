"""Options that contradict each other or the model stop the run with a message of their own; nothing is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.options import settings_of
from rebinding.learned.shelf import ADAPTERS, learned_models
from rebinding.models import ALIASES
from rebinding.planted import MECHANISMS, VARIANTS
from rebinding.planted.truth import truth_of
from rebinding.study.options import Options


def settings(numprocesses: Any = None, **values: Any) -> Any:
    """The settings of a command line; `no_store=True` stands for `--no-store`."""
    return settings_of(Options(**values), marks="not gpu and not slow", processes=numprocesses)


def test_default_models_are_three_planted_and_the_papers_four() -> None:
    models = settings().models
    plants = ["planted:pointer@llama", "planted:recency@llama", "planted:global@llama"]
    assert [model.name for model in models if not model.by_default] == plants
    assert [model.name for model in models if model.by_default] == list(ALIASES)


def test_a_model_that_is_named_stands_alone_and_once() -> None:
    models = settings(model=["planted:pointer", "planted:pointer@llama", "gemma2-9b"]).models
    assert [(model.name, model.by_default) for model in models] == [
        ("planted:pointer@llama", False),
        ("gemma2-9b", False),
    ]


def test_planted_all_has_every_mechanism_architecture_and_variant() -> None:
    names = {model.name for model in settings(planted="all").models}
    assert {"planted:lexical@gemma3", "planted:recency@gemma2", "planted:pointer+missing@llama"} <= names
    stated = [
        (mechanism, name)
        for name, variant in VARIANTS.items()
        for mechanism in variant.mechanisms
        if truth_of(mechanism, name)
    ]
    assert len(names) == 3 * (len(MECHANISMS) + len(stated))


def test_learned_all_has_every_adapter() -> None:
    """A folder that was put there is a model that is judged; it is loaded, and its base looked for, later."""
    folders = {path.name for path in ADAPTERS.iterdir() if path.is_dir()}
    models = settings(learned="all", circuit="discovered-all-positions").models
    assert {model.name for model in models} == {model.name for model in learned_models()}
    assert {model.folder.name for model in learned_models()} == folders
    assert len(settings(learned="all", planted="all").models) == len(folders) + len(settings(planted="all").models)


def test_a_variant_is_judged_on_the_claims_it_was_made_for() -> None:
    plain, missing = settings(model=["planted:pointer", "planted:pointer+missing"]).models
    assert plain.judged_on("binding.q_redirects")
    assert missing.judged_on("circuit.recovers_accuracy")
    assert not missing.judged_on("binding.q_redirects")


def test_a_procedure_of_ones_own_stands_for_that_which_it_is_like(tmp_path: Path) -> None:
    file = tmp_path / "heads.toml"
    file.write_text('like = "controlled"\n[binding]\nscope = "group"\n')
    assert [procedure.name for procedure in settings().procedures] == ["published", "controlled"]
    assert [procedure.name for procedure in settings(procedure="published").procedures] == ["published"]
    (own_procedure,) = settings(procedure=str(file)).procedures
    assert (own_procedure.name, own_procedure.like, own_procedure.binding.scope) == ("heads", "controlled", "group")
    file.write_text('like = "controlled"\n[binding]\nscope = "all"\n')
    with pytest.raises(pytest.UsageError, match=r"--procedure.*choose among"):
        settings(procedure=str(file))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "--samples 0: give 1 to"),
        ({"samples": 100_000}, "--samples 100000"),
        ({"skip_prompts": -1}, "--skip-prompts -1: give 0 to 8100"),
        ({"skip_prompts": 9_697, "samples": 1}, "--skip-prompts 9697: give 0 to 9696"),
        (
            {"wording": "holds"},
            "--wording holds: planted:pointer@llama is a planted model and knows the published words",
        ),
        ({"no_store": True, "store": "x"}, "contradict each other"),
        ({"model": ["gemma2-9"]}, "did you mean gemma2-9b"),
        ({"model": ["gpt2"]}, "--model: unknown model 'gpt2' .did you mean openai-community/gpt2"),
        ({"model": ["planted:pionter"]}, "did you mean planted:pointer.*no mechanism"),
        ({"model": ["learned:smolm2"]}, "did you mean learned:smollm2"),
        ({"model": ["learned:smollm2?seed=9"]}, "has no recipe in the project"),
        ({"model": ["planted:global+missing"]}, "global has no variant"),
        ({"device": "cuda:99"}, "CUDA"),
        ({"procedure": "printed"}, "--procedure printed: give published, controlled, both or a file"),
        ({"circuit": "published", "model": ["."]}, "prints no heads"),
        ({"model": ["shape:gemma2-9b"]}, "--model shape:gemma2-9b: random weights.* --model gemma2-9b, or"),
        ({"model": ["planted:pointer", "shape:llama3.2-3b"]}, "no claim is judged on them"),
        ({"dtype": "float32", "model": ["gemma2-9b"]}, "gemma2-9b is on record in bfloat16"),
        ({"dtype": "bfloat16", "model": ["planted:pointer"]}, "planted models are made in float32"),
        ({"remote": True}, "name a Hub model with --model"),
        ({"remote": True, "model": ["gemma2-9b", "planted:pointer"]}, "planted:pointer@llama is on this machine alone"),
        ({"remote": True, "model": ["."]}, "is on this machine alone"),
        ({"remote": True, "planted": "all"}, "is on this machine alone"),
        ({"remote": True, "model": ["gemma2-9b"], "dtype": "bfloat16"}, "--dtype bfloat16 and --remote contradict"),
        ({"remote": True, "model": ["gemma2-9b"], "device": "cpu"}, "--device cpu and --remote contradict"),
        (
            {"circuit": "nowhere.json", "model": ["planted:pointer"]},
            "--circuit nowhere.json: give .* no such file",
        ),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        settings(**options)


@pytest.mark.parametrize("option", ["circuit", "procedure", "device", "address", "store", "report"])
@pytest.mark.parametrize("name", ["\x1b[31mred", "a\rb", "a\u202eb", "a\u200bb"])
def test_names_that_steer_a_terminal(option: str, name: str, tmp_path: Path) -> None:
    """Whether there is such a file or not; the message shows what cannot be seen."""
    (tmp_path / name).touch()
    for value in (name, str(tmp_path / name)):
        with pytest.raises(pytest.UsageError, match=f"^--{option} .*cannot be seen and could steer") as excinfo:
            settings(**{option: value}, model=["planted:pointer"])
        assert str(excinfo.value).isascii()
        assert str(excinfo.value).isprintable()


def test_a_circuit_file_belongs_to_one_model(tmp_path: Path) -> None:
    file = tmp_path / "circuit.json"
    file.write_text("{}")
    with pytest.raises(pytest.UsageError, match="belongs to one model"):
        settings(circuit=str(file), model=["planted:pointer", "planted:global"])


@pytest.mark.parametrize("option", ["store", "report"])
def test_report_and_store_must_be_folders(option: str, tmp_path: Path) -> None:
    file = tmp_path / "name"
    file.touch()
    for path in (file, file / "inner"):
        with pytest.raises(pytest.UsageError, match=f"--{option} {path}: {file} is a file"):
            settings(**{option: str(path)}, model=["planted:pointer"])


def test_dtype_of_a_stand_in_depends_on_its_shape(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"num_hidden_layers": 7, "num_attention_heads": 8, "dtype": "float32"}')
    (model,) = settings(model=[f"gemma2-9b={tmp_path}"], dtype="float16").models
    assert model.dtype == "float32"
    config.write_text('{"num_hidden_layers": 42, "num_attention_heads": 16, "dtype": "float32"}')
    assert model.dtype == "bfloat16"
    with pytest.raises(pytest.UsageError, match="on record in bfloat16"):
        settings(model=[f"gemma2-9b={tmp_path}"], dtype="float32")


def test_published_heads_need_the_published_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 7, "num_attention_heads": 8}')
    with pytest.raises(pytest.UsageError, match="another number of layers or heads"):
        settings(circuit="published", model=[f"gemma2-9b={tmp_path}"])
