"""A test server: reads serialised traces, runs them on models from folders, returns the saved values.

It is started as a script in an interpreter of its own, in another folder, where this project cannot be imported. A
request is a line of JSON that names the model's folder, the file of the trace and the file for the answer.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback

import torch
from nnsight import TransformersModel
from nnsight.schema.request import RequestModel
from nnsight.tracing import tracer as tracing


@functools.cache
def model_from(folder: str) -> TransformersModel:
    """A model with weights, as on a server."""
    return TransformersModel(folder, task="text-generation", dispatch=True, attn_implementation="eager")


def answer(request: dict[str, str]) -> None:
    """Run one trace and write the values it saved, by name, or the error."""
    model = model_from(request["folder"])
    with open(request["trace"], "rb") as file:
        tracer = RequestModel.deserialize(file.read(), model._remoteable_persistent_objects(), compress=False)
    frame = tracer.info.frame
    tracing.inc()
    try:
        tracer.execute(tracer.info.code)
        saved = {name: value for name, value in frame.f_locals.items() if id(value) in tracing._saves()}
    finally:
        tracing.dec()
    torch.save(saved, request["answer"])


if __name__ == "__main__":
    sys.modules["rebinding"] = None  # type: ignore[assignment]  # whatever is installed here: importing it fails
    for line in sys.stdin:
        try:
            answer(json.loads(line))
            print("done", flush=True)
        except BaseException:
            print(json.dumps(traceback.format_exc()), flush=True)
