"""A pytest plugin that breaks one thing, named by the variable `FAULT`: `-p tests.study.faulty`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rebinding.evidence import Evidence, PromptSet
from rebinding.experiments import prompts
from rebinding.experiments.paths import summary as path_summary
from rebinding.experiments.roles import measure as roles_measure
from rebinding.experiments.unedited import Ability
from rebinding.experiments.workbench import Workbench
from rebinding.study.model_spec import ModelSpec
from rebinding.surgery import Anatomy, recorder
from tests.models.unusual_models import ByKeyword, GainedLayer

PATCH = pytest.MonkeyPatch()


def overflow(evidence: Evidence) -> Evidence:
    """One number of one row is not finite."""
    rows = evidence.rows.copy()
    rows.loc[rows.index[0], "after"] = np.inf
    return replace(evidence, rows=rows)


def drop_prompt(evidence: Evidence) -> Evidence:
    """A prompt has no rows."""
    rows = evidence.rows
    return replace(evidence, rows=rows[rows["prompt"] != rows["prompt"].iloc[0]])


def patch_evidence(change: Callable[[Evidence], Evidence]) -> None:
    """Change the evidence of the roles."""
    get_evidence = Workbench.get

    def changed(self: Workbench, request: Any) -> Evidence:
        evidence = get_evidence(self, request)
        return change(evidence) if evidence.experiment == "roles" else evidence

    PATCH.setattr(Workbench, "get", changed)


def patch_with_itself() -> None:
    """Every prompt is patched with what it has already."""
    read = roles_measure._read
    surgeons: list[Any] = []

    def changed(surgeon: Any, recording: Any, prompts: Any, heads: Any, place: Any) -> Any:
        if len(surgeons) % 2:  # the second reading of a group is that of the prompts themselves
            surgeons.append(None)
            return surgeons[-2]
        surgeons.append(read(surgeon, recording, prompts, heads, place))
        return surgeons[-1]

    PATCH.setattr(roles_measure, "_read", changed)


def longer() -> None:
    """Counterfactuals have a token more than their originals."""
    encode = prompts.Stories.encode

    def changed(self: prompts.Stories, prompt_set: PromptSet) -> prompts.EncodedPrompts:
        encoded = encode(self, prompt_set)
        return replace(
            encoded, counterfactuals=tuple(replace(prompt, ids=(*prompt.ids, 0)) for prompt in encoded.counterfactuals)
        )

    PATCH.setattr(prompts.Stories, "encode", changed)


def guessing() -> None:
    """The model always names the object of slot 1: right on every published prompt, on a third of the crossed ones."""
    get_evidence = Workbench.get

    def changed(self: Workbench, request: Any) -> Evidence:
        evidence = get_evidence(self, request)
        if not isinstance(request, Ability):
            return evidence
        asked_prompts = [prompt.prompt for prompt in self.prompts.encode(request.prompts).prompts]
        hits = [float(prompt.story.objects[1] == prompt.answer) for prompt in asked_prompts]
        return replace(evidence, rows=evidence.rows.assign(hit=hits))

    PATCH.setattr(Workbench, "get", changed)


def drop_keyword() -> None:
    """After its self-check the decoder gives its layers a keyword that is no tensor, and a recorded call loses it."""
    get_evidence, call = Workbench.get, vars(recorder)["layer_call"]

    def changed(self: Workbench, request: Any) -> Evidence:
        decoder: Any = self.loaded_model.model.model
        decoder.__class__ = ByKeyword
        for layer in decoder.layers:
            layer.__class__ = GainedLayer
        return get_evidence(self, request)

    def drop_keyword_from(name: str, kwargs: dict[str, Any], anatomy: Anatomy) -> dict[str, Any]:
        return {key: value for key, value in call(name, kwargs, anatomy).items() if not isinstance(value, float)}

    PATCH.setattr(Workbench, "get", changed)
    PATCH.setattr(recorder, "layer_call", drop_keyword_from)


def round_to_16_bits() -> None:
    """A plant is computed in bfloat16, whose steps are an eighth of a logit where its answers stand."""
    PATCH.setattr(ModelSpec, "dtype", "bfloat16")


def select_nothing() -> None:
    """Path patching keeps no head at any stage."""
    PATCH.setattr(path_summary, "select", lambda *_args, **_options: [])


FAULTS: dict[str, Callable[[], None]] = {
    "finite": lambda: patch_evidence(overflow),
    "declared_n": lambda: patch_evidence(drop_prompt),
    "edits_change_values": patch_with_itself,
    "equal_lengths": longer,
    "above_guessing": guessing,
    "replay_equals_forward": drop_keyword,
    "noise_floor": round_to_16_bits,
    "circuit_found": select_nothing,
}
if "FAULT" in os.environ:
    FAULTS[os.environ["FAULT"]]()
