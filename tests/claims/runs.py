"""Runs of the real claims in a process of their own, and what came out."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from transformers import Gemma2ForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from rebinding.planted import build
from tests.claims import ready
from tests.models.folders import change_config

ROOT = Path(__file__).parents[2]


def run(*given: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`pytest claims` with options, and with some environment variables set."""
    return ready.pytest(["claims", *given, "-q", "-p", "no:cacheprovider"], ROOT, os.environ | environment)


def verdicts(junit: Path) -> dict[str, str]:
    """The verdict of every claim in a JUnit file, with the gate of those that are INVALID."""
    found = {}
    for case in ET.parse(junit).iter("testcase"):
        told = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        if "verdict" in told:
            gate = f" ({told['gate']})" if "gate" in told else ""
            found[told["id"]] = told["verdict"] + gate
    return found


def folder_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, there: Path) -> Path:
    """Save a model as a user would have it."""
    model.save_pretrained(there)
    tokenizer.save_pretrained(there)
    return there


def save_random(there: Path) -> Path:
    """A model that cannot do the task: a plant's shape, random weights, and flags that its library warns of."""
    plant = build("pointer", "gemma2")
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(plant.model.config)
    folder_of(model, plant.tokenizer, there)
    change_config(there, "generation_config.json", do_sample=False, temperature=0.5)
    return there


def ok(done: subprocess.CompletedProcess[str], code: pytest.ExitCode = pytest.ExitCode.OK) -> None:
    """Fail with what the run said unless it ended as it should."""
    assert done.returncode == code, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
