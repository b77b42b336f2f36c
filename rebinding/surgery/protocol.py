"""The interface of a surgeon; experiments use it and run on either implementation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.recording import Recording
from rebinding.surgery.sites import Attention, Edit, Read, Site


class Surgeon(Protocol):
    """Records unedited runs, and runs batches of edited ones that continue them."""

    anatomy: Anatomy

    def prompts_at_once(self, length: int) -> int:
        """How many prompts of `length` tokens to record and edit together."""

    def record(self, tokens: Tensor, *, keep: Collection[Site] = ()) -> Recording:
        """Run prompts (prompt, token) unedited; record what later runs start from, and the sites to `keep`.

        Runs with attention frozen need `keep={"z"}`.
        """

    def with_reads(self, recording: Recording, reads: Sequence[Read]) -> Recording:
        """The recording with unedited reads added; a surgeon that gains nothing from them may return it as it is."""

    def run(
        self,
        recording: Recording,
        edits: Sequence[Edit],
        reads: Sequence[Read],
        *,
        source: Tensor | None = None,
        attention: Attention = "live",
        allow_noop: bool = False,
    ) -> list[Tensor]:
        """Run a batch whose row `r` is the recorded prompt `source[r]` with the edits that name row `r`.

        Returns one tensor per read, rows first. Rows whose edits together change nothing that is read raise
        `NothingEdited`, at every site and whatever was recorded, unless `allow_noop`. With `attention="frozen"` every
        head's z is held at its recorded value, except where an edit writes z; MLPs and norms are recomputed.
        """
