"""No matrix product takes a copy of the weights for each row.

torch folds the rows and tokens of a layer's input into one product where it can. Of a view that cannot be folded, such
as one token of each row, it makes a product for every row, each with the weights as an operand.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.cost.fake_device import FakeDevice
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import tensor_requests
from tests.cost.small import make_source
from tests.cost.test_source import requests

BMM = torch.ops.aten.bmm.default


def test_weights_are_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source()
    bench, dispatch, products = source.bench, FakeDevice.__torch_dispatch__, []

    def note_products(device: Any, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation == BMM:
            products.append((tuple(args[0].shape), args[1].stride(0)))
        return dispatch(device, operation, types, args, kwargs)

    for request in requests(bench.prompts):
        for needed in tensor_requests(request):
            source._add_tensors(needed)
        with monkeypatch.context() as patch, source.fake_device:
            patch.setattr(FakeDevice, "__torch_dispatch__", note_products)
            products.clear()
            experiment_of(type(request)).run(bench, request)
        assert [shape for shape, stride in products if stride == 0 and shape[0] > 1] == [], request.label
        assert products, "scores and mixtures of attention are such products"
