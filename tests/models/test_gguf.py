"""GGUF files: weights are dequantised exactly, the model says so, and unreadable files are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from rebinding.cli.commands import main
from rebinding.models import ALIASES, Origin, errors, load, origin
from rebinding.models.gguf import ALIGNED, header
from rebinding.task.designs import design
from tests.models.gguf_files import HEAD, KV_HEADS, write

Q4_1, Q8_0, F16 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16


@pytest.mark.parametrize(
    ("kind", "description"),
    [(Q4_1, "dequantised from Q4_1"), (Q8_0, "dequantised from Q8_0"), (F16, "as stored in F16 and F32")],
)
def test_weights_are_those_that_the_bits_stand_for(
    kind: GGMLQuantizationType, description: str, tmp_path: Path
) -> None:
    model = write(tmp_path / "tiny.gguf", kind)
    loaded_model = load(str(tmp_path / "tiny.gguf"), dtype="float32", device="cpu")
    assert loaded_model.weights == description
    tensors = {name: weight.numpy() for name, weight in loaded_model.model.named_parameters()}
    for name, stored_name in {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }.items():
        assert np.array_equal(tensors[name], model[stored_name])
    halves = model["blk.0.attn_k.weight"].reshape(KV_HEADS, HEAD // 2, 2, -1)  # rows of a head are kept in pairs
    k = halves.swapaxes(1, 2).reshape(KV_HEADS * HEAD, -1)
    assert np.array_equal(tensors["model.layers.0.self_attn.k_proj.weight"], k)


def test_a_file_is_the_subject_that_its_folder_is(tmp_path: Path) -> None:
    """Nothing is left of the quantised model but its weights, so both have one fingerprint, and encode alike."""
    write(tmp_path / "tiny.gguf", Q8_0)
    loaded_model = load(str(tmp_path / "tiny.gguf"), dtype="float32")
    loaded_model.model.save_pretrained(tmp_path / "folder")
    loaded_model.tokenizer.save_pretrained(tmp_path / "folder")
    second = load(str(tmp_path / "folder"), dtype="float32")
    assert second.fingerprint == loaded_model.fingerprint
    assert second.weights is None
    weights = loaded_model.model.state_dict().values()
    assert not [weight for weight in weights if weight.data_ptr() % ALIGNED], "kernels sum there as in any process"
    prompts = [design("counterbalanced").prompt(number) for number in range(9)]
    encoded = loaded_model.encoder().encode(prompts)
    assert [prompt.ids for prompt in encoded] == [prompt.ids for prompt in second.encoder().encode(prompts)]
    assert len({len(prompt) for prompt in encoded}) == 1
    assert loaded_model.encoder().answer_tokens(prompts[0].story.objects)


def test_other_precisions_are_rounded_once(tmp_path: Path) -> None:
    path = str(tmp_path / "tiny.gguf")
    write(Path(path), Q4_1)
    exact, short = load(path, dtype="float32").model, load(path, dtype="bfloat16").model
    for long_weight, short_weight in zip(exact.parameters(), short.parameters(), strict=True):
        assert torch.equal(long_weight.to(torch.bfloat16), short_weight)


def test_names(tmp_path: Path) -> None:
    path = tmp_path / "a=b.gguf"
    path.touch()
    assert origin(str(path)) == Origin("gguf", str(path))
    assert origin(f"gemma2-9b={path}") == Origin("gguf", str(path), ALIASES["gemma2-9b"])
    with pytest.raises(errors.UnknownName, match=r"there is no file 'nowhere\.gguf'"):
        origin("nowhere.gguf")
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    assert origin(str(folder)) == Origin("folder", str(folder))


def test_the_header_is_what_was_written(tmp_path: Path) -> None:
    stored = write(tmp_path / "tiny.gguf", Q4_1)
    parsed = header(tmp_path / "tiny.gguf")
    assert parsed.facts["general.architecture"] == "llama"
    assert parsed.facts["llama.block_count"] == 2
    assert parsed.facts["llama.rope.freq_base"] == 10_000.0
    assert parsed.facts["tokenizer.ggml.bos_token_id"] == 0
    assert parsed.facts["tokenizer.ggml.tokens"] == parsed.facts["llama.vocab_size"]
    sizes = [(2 if values.ndim == 1 else 1, values.size) for values in stored.values()]
    assert parsed.weights == {
        int(Q4_1): sum(size for kind, size in sizes if kind == 1),
        int(GGMLQuantizationType.F32): sum(size for kind, size in sizes if kind == 2),
    }


def write_numbers(*numbers: tuple[str, int]) -> Callable[[Path], None]:
    """A file that begins like a GGUF, and goes on with these little-endian numbers (the letters of `struct`)."""
    content = b"GGUF" + b"".join(struct.pack(f"<{code}", number) for code, number in numbers)

    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


VERSION, NO_TENSORS, A_FACT, NO_NAME = ("I", 3), ("Q", 0), ("Q", 1), ("Q", 0)
ARRAY = ("I", 9)
NESTED = [ARRAY, *[ARRAY, ("Q", 1)] * 5000]
"""An array of arrays of arrays ..."""


def cut(bytes_left: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        write(path, Q8_0)
        content = path.read_bytes()
        path.write_bytes(content[: bytes_left(len(content))])

    return damage


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "begins with b'vers'"),
        (cut(lambda size: 200), "cut short"),
        (write_numbers(("I", 1)), "version 1; versions 2 and 3 are read"),
        (write_numbers(VERSION, ("Q", 1 << 60)), f"a count of {1 << 60}"),
        (write_numbers(VERSION, NO_TENSORS, ("Q", 1 << 61)), f"a count of {1 << 61}"),
        (write_numbers(VERSION, NO_TENSORS, A_FACT, ("Q", 1 << 62)), f"a count of {1 << 62}"),
        (write_numbers(VERSION, NO_TENSORS, A_FACT, NO_NAME, ("I", 13)), "a value of the unknown type 13"),
        (
            write_numbers(VERSION, NO_TENSORS, A_FACT, NO_NAME, ARRAY, ("I", 0), ("Q", 1 << 59)),
            f"a count of {1 << 59}",
        ),
        (write_numbers(VERSION, NO_TENSORS, A_FACT, NO_NAME, *NESTED), "recursion"),
        (lambda path: write(path, Q8_0, parts=2), "one of 2 parts"),
    ],
)
def test_damaged_files_are_refused(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    make(tmp_path / "tiny.gguf")
    with pytest.raises(errors.DamagedModel, match=message):
        load(str(tmp_path / "tiny.gguf"), dtype="float32")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (cut(lambda size: size - 5000), "transformers cannot load"),
        (lambda path: write(path, Q8_0, architecture="starling"), "starling"),
    ],
)
def test_files_that_the_library_cannot_load_are_refused(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "tiny.gguf")
    with pytest.raises(errors.UnsupportedArchitecture, match=message):
        load(str(tmp_path / "tiny.gguf"), dtype="float32")


def test_missing_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tiny.gguf", Q8_0)
    monkeypatch.setattr("rebinding.models.gguf.find_spec", lambda name: None)
    with pytest.raises(errors.UnsupportedFormat, match=r"'\.\[gguf\]'"):
        load(str(tmp_path / "tiny.gguf"))


def test_prompts_are_shown_and_models_loaded_without_other_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "tiny.gguf", Q8_0)
    load(str(tmp_path / "tiny.gguf"))
    assert capsys.readouterr() == ("", "")
    assert main(["prompt", "--model", str(tmp_path / "tiny.gguf")]) == 0
    assert "form template" in capsys.readouterr().out
