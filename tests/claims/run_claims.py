"""Run the real claims in a separate process and read the results."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from transformers import Gemma2ForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from rebinding.planted import build
from tests.claims import forked_pytest
from tests.models.folders import change_config

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`pytest claims` with options, and with some environment variables set."""
    return forked_pytest.pytest(["claims", *arguments, "-q", "-p", "no:cacheprovider"], ROOT, os.environ | environment)


def verdicts(junit: Path) -> dict[str, str]:
    """The verdict of every claim in a JUnit file, with the gate of those that are INVALID."""
    outcomes = {}
    for case in ET.parse(junit).iter("testcase"):
        properties = {element.attrib["name"]: element.attrib["value"] for element in case.iter("property")}
        if "verdict" in properties:
            gate = f" ({properties['gate']})" if "gate" in properties else ""
            outcomes[properties["id"]] = properties["verdict"] + gate
    return outcomes


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Save a model as a user would have it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_random(folder: Path) -> Path:
    """A model that cannot do the task: a plant's shape, random weights, and flags that its library warns of."""
    plant = build("pointer", "gemma2")
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(plant.model.config)
    save_model(model, plant.tokenizer, folder)
    change_config(folder, "generation_config.json", do_sample=False, temperature=0.5)
    return folder


def assert_ok(process: subprocess.CompletedProcess[str], code: pytest.ExitCode = pytest.ExitCode.OK) -> None:
    """Fail with what the run said unless it ended as it should."""
    assert process.returncode == code, f"{process.stdout[-3000:]}\n{process.stderr[-2000:]}"
