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

from tests.docs.examples import NUMBER, same_words
from tests.docs.notebooks import TUTORIALS, Output, code, read, run, run_cell

SHARE, LAST_DIGIT = 1e-2, 1.5e-2
"""Most numbers are printed with two decimals: what rounds otherwise moves the last of them, another mechanism more."""
TILE, SEEN, OTHERWISE = 8, 0.2, 0.01
"""A tile of so many pixels is another if its colour differs by a fifth of the scale, and a picture if one tile in a
hundred is."""
APART = 2
"""Pixels by which a tile may stand elsewhere: another version of matplotlib measures letters otherwise, and axes are as
much wider or higher as their labels leave room. No cell or bar is as small."""
STATED = ("find-the-circuit", "key-dominance", "patch-one-head")


def words(output: Output) -> str:
    """The text of an output; of a table the text and not the page."""
    return "".join(output.get("text") or output["data"].get("text/plain", ""))


def picture(output: Output) -> npt.NDArray[np.float64] | None:
    """What a figure looks like: (height, width, colour)."""
    told = output.get("data", {}).get("image/png")
    return None if told is None else np.asarray(matplotlib.image.imread(io.BytesIO(base64.b64decode(told))), float)


def tiles(one: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean colours of tiles: (row, column, colour)."""
    rows, columns = one.shape[0] // TILE, one.shape[1] // TILE
    whole = one[: rows * TILE, : columns * TILE]
    return whole.reshape(rows, TILE, columns, TILE, -1).mean(axis=(1, 3))


def changed(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """The share of tiles that are others wherever they may stand; all, if it has another size."""
    if one.shape != other.shape:
        return 1.0
    moved = (np.roll(one, by, axis=(0, 1)) for by in product(range(-APART, APART + 1), repeat=2))
    apart = [np.abs(tiles(there) - tiles(other)).max(axis=2) for there in moved]  # a shift: (row, column)
    return float((np.min(apart, axis=0) > SEEN).mean())


def test_all_of_them_are_there() -> None:
    assert tuple(path.stem for path in TUTORIALS) == STATED


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_gives_what_is_stored(path: Path) -> None:
    notebook = read(path)
    found, stored = run(notebook), [cell["outputs"] for cell in code(notebook)]
    assert [len(outputs) for outputs in found] == [len(outputs) for outputs in stored]
    for ours, theirs in zip(chain(*found), chain(*stored), strict=True):
        same_words(words(ours), words(theirs), SHARE, LAST_DIGIT)
        drawn, was = picture(ours), picture(theirs)
        assert (drawn is None) == (was is None)
        if drawn is not None and was is not None:
            assert changed(drawn, was) < OTHERWISE


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_every_tutorial_prints_numbers_and_shows_a_picture(path: Path) -> None:
    stored = [output for cell in code(read(path)) for output in cell["outputs"]]
    assert sum(len(NUMBER.findall(words(output))) for output in stored) > 20
    assert sum(picture(output) is not None for output in stored) == 1


def test_another_number_and_another_picture_are_noticed() -> None:
    same_words("dR 4.04\n", "dR 4.05\n", SHARE, LAST_DIGIT)
    for other in ("dR 4.14\n", "dR -4.04\n", "dL 4.04\n", "dR 4.04 1\n"):
        with pytest.raises(AssertionError):
            same_words("dR 4.04\n", other, SHARE, LAST_DIGIT)
    pictures = [picture(output) for path in TUTORIALS for cell in code(read(path)) for output in cell["outputs"]]
    drawn = [one for one in pictures if one is not None]
    assert all(changed(one, other) > OTHERWISE for one, other in pairwise(drawn))
    for otherwise in (lambda one: one[:, ::-1], lambda one: np.roll(one, TILE, axis=1)):
        assert all(changed(one, otherwise(one)) > OTHERWISE for one in drawn)


def test_a_cell_prints_shows_and_keeps_names() -> None:
    names: dict[str, object] = {}
    assert run_cell("a = 1\nprint(a)", names) == [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    (shown,) = run_cell("a + 1", names)
    assert (shown["output_type"], shown["data"]) == ("execute_result", {"text/plain": ["2"]})
    assert run_cell("None", names) == []
    with pytest.raises(ZeroDivisionError):
        run_cell("a / 0", names)
