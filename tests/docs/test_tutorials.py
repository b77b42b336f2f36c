"""The tutorials run, in the order of their cells, and give what is stored in them: that is what the site shows."""

from __future__ import annotations

import base64
import io
from itertools import chain, pairwise, product
from pathlib import Path

import matplotlib.image
import numpy as np
import numpy.typing as npt
import pytest

from tests.docs.examples import NUMBER, check_words
from tests.docs.notebooks import TUTORIALS, Output, code, read, run, run_cell

SHARE, LAST_DIGIT = 1e-2, 1.5e-2
"""Most numbers are printed with two decimals: what rounds otherwise moves the last of them, another mechanism more."""
TILE, MIN_CHANGE, MIN_DIFFERENCE = 8, 0.2, 0.01
"""A tile of so many pixels is another if its colour differs by a fifth of the scale, and a picture if one tile in a
hundred is."""
MAX_SHIFT = 2
"""Pixels by which a tile may stand elsewhere: another version of matplotlib measures letters otherwise, and axes are as
much wider or higher as their labels leave room. No cell or bar is as small."""
STATED = ("find-the-circuit", "key-dominance", "patch-one-head")


def words(output: Output) -> str:
    """The text of an output; of a table the text and not the page."""
    return "".join(output.get("text") or output["data"].get("text/plain", ""))


def picture(output: Output) -> npt.NDArray[np.float64] | None:
    """What a figure looks like: (height, width, colour)."""
    image = output.get("data", {}).get("image/png")
    return None if image is None else np.asarray(matplotlib.image.imread(io.BytesIO(base64.b64decode(image))), float)


def tiles(image: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean colours of tiles: (row, column, colour)."""
    rows, columns = image.shape[0] // TILE, image.shape[1] // TILE
    cropped = image[: rows * TILE, : columns * TILE]
    return cropped.reshape(rows, TILE, columns, TILE, -1).mean(axis=(1, 3))


def changed(image: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> float:
    """The share of tiles that are others wherever they may stand; all, if it has another size."""
    if image.shape != expected.shape:
        return 1.0
    shifted_images = (
        np.roll(image, shift, axis=(0, 1)) for shift in product(range(-MAX_SHIFT, MAX_SHIFT + 1), repeat=2)
    )
    distances = [
        np.abs(tiles(shifted) - tiles(expected)).max(axis=2) for shifted in shifted_images
    ]  # a shift: (row, column)
    return float((np.min(distances, axis=0) > MIN_CHANGE).mean())


def test_all_tutorials_exist() -> None:
    assert tuple(path.stem for path in TUTORIALS) == STATED


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_gives_what_is_stored(path: Path) -> None:
    notebook = read(path)
    outputs, stored = run(notebook), [cell["outputs"] for cell in code(notebook)]
    assert [len(outputs) for outputs in outputs] == [len(outputs) for outputs in stored]
    for output, stored_output in zip(chain(*outputs), chain(*stored), strict=True):
        check_words(words(output), words(stored_output), SHARE, LAST_DIGIT)
        image, stored_image = picture(output), picture(stored_output)
        assert (image is None) == (stored_image is None)
        if image is not None and stored_image is not None:
            assert changed(image, stored_image) < MIN_DIFFERENCE


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_every_tutorial_prints_numbers_and_shows_a_picture(path: Path) -> None:
    stored = [output for cell in code(read(path)) for output in cell["outputs"]]
    assert sum(len(NUMBER.findall(words(output))) for output in stored) > 20
    assert sum(picture(output) is not None for output in stored) == 1


def test_changed_numbers_and_pictures_are_noticed() -> None:
    check_words("dR 4.04\n", "dR 4.05\n", SHARE, LAST_DIGIT)
    for text in ("dR 4.14\n", "dR -4.04\n", "dL 4.04\n", "dR 4.04 1\n"):
        with pytest.raises(AssertionError):
            check_words("dR 4.04\n", text, SHARE, LAST_DIGIT)
    pictures = [picture(output) for path in TUTORIALS for cell in code(read(path)) for output in cell["outputs"]]
    images = [picture for picture in pictures if picture is not None]
    assert all(changed(first, second) > MIN_DIFFERENCE for first, second in pairwise(images))
    for change in (lambda image: image[:, ::-1], lambda image: np.roll(image, TILE, axis=1)):
        assert all(changed(image, change(image)) > MIN_DIFFERENCE for image in images)


def test_a_cell_prints_shows_and_keeps_names() -> None:
    names: dict[str, object] = {}
    assert run_cell("a = 1\nprint(a)", names) == [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    (output,) = run_cell("a + 1", names)
    assert (output["output_type"], output["data"]) == ("execute_result", {"text/plain": ["2"]})
    assert run_cell("None", names) == []
    with pytest.raises(ZeroDivisionError):
        run_cell("a / 0", names)
