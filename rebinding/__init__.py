"""An executable paper: how language models rebind entities, every claim a test.

The names below are the public interface. They are imported on first use, so `import rebinding` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebinding.api.discovery import discover as discover
    from rebinding.api.evaluation import Evaluation as Evaluation
    from rebinding.api.evaluation import Faithfulness as Faithfulness
    from rebinding.api.evaluation import evaluate as evaluate
    from rebinding.api.evaluation import faithfulness as faithfulness
    from rebinding.api.hypotheses import Hypotheses as Hypotheses
    from rebinding.api.hypotheses import check_circuit as check_circuit
    from rebinding.api.judging import JudgeError as JudgeError
    from rebinding.api.judging import Verdicts as Verdicts
    from rebinding.api.judging import judge as judge
    from rebinding.api.model import Model as Model
    from rebinding.api.model import design as design
    from rebinding.api.model import load as load
    from rebinding.api.model import wrap as wrap
    from rebinding.api.patching import patch_paths as patch_paths
    from rebinding.api.patching import trace as trace
    from rebinding.api.plots import plot_attention as plot_attention
    from rebinding.api.plots import plot_faithfulness as plot_faithfulness
    from rebinding.api.plots import plot_graph as plot_graph
    from rebinding.api.plots import plot_heads as plot_heads
    from rebinding.api.plots import plot_sensitivity as plot_sensitivity
    from rebinding.api.plots import plot_trace as plot_trace
    from rebinding.api.prompts import Pairs as Pairs
    from rebinding.api.prompts import Prompts as Prompts
    from rebinding.api.recording import Recording as Recording
    from rebinding.api.sensitivity import Sensitivity as Sensitivity
    from rebinding.api.sensitivity import sensitivity as sensitivity
    from rebinding.experiments.metrics import CleanRun as CleanRun
    from rebinding.experiments.metrics import accuracy as accuracy
    from rebinding.experiments.metrics import kl_divergence as kl_divergence
    from rebinding.experiments.metrics import logit_difference as logit_difference
    from rebinding.experiments.metrics import probability as probability
    from rebinding.experiments.search.graph import Graph as Graph
    from rebinding.models.errors import ModelError as ModelError
    from rebinding.paper.circuit import MLP as MLP
    from rebinding.paper.circuit import Circuit as Circuit
    from rebinding.paper.circuit import CircuitError as CircuitError
    from rebinding.surgery.sites import Edit as Edit
    from rebinding.surgery.sites import NothingEdited as NothingEdited
    from rebinding.surgery.sites import Read as Read
    from rebinding.surgery.sites import SurgeryError as SurgeryError
    from rebinding.task.chat import PromptError as PromptError

__version__ = "0.2.0.dev0"

_MODULES = {
    "MLP": "paper.circuit",
    "Circuit": "paper.circuit",
    "CircuitError": "paper.circuit",
    "CleanRun": "experiments.metrics",
    "Edit": "surgery.sites",
    "Evaluation": "api.evaluation",
    "Faithfulness": "api.evaluation",
    "Graph": "experiments.search.graph",
    "Hypotheses": "api.hypotheses",
    "JudgeError": "api.judging",
    "Model": "api.model",
    "ModelError": "models.errors",
    "NothingEdited": "surgery.sites",
    "Pairs": "api.prompts",
    "PromptError": "task.chat",
    "Prompts": "api.prompts",
    "Read": "surgery.sites",
    "Recording": "api.recording",
    "Sensitivity": "api.sensitivity",
    "SurgeryError": "surgery.sites",
    "Verdicts": "api.judging",
    "accuracy": "experiments.metrics",
    "check_circuit": "api.hypotheses",
    "design": "api.model",
    "discover": "api.discovery",
    "evaluate": "api.evaluation",
    "faithfulness": "api.evaluation",
    "judge": "api.judging",
    "kl_divergence": "experiments.metrics",
    "load": "api.model",
    "logit_difference": "experiments.metrics",
    "patch_paths": "api.patching",
    "plot_attention": "api.plots",
    "plot_faithfulness": "api.plots",
    "plot_graph": "api.plots",
    "plot_heads": "api.plots",
    "plot_sensitivity": "api.plots",
    "plot_trace": "api.plots",
    "probability": "experiments.metrics",
    "sensitivity": "api.sensitivity",
    "trace": "api.patching",
    "wrap": "api.model",
}
__all__ = [
    "MLP",
    "Circuit",
    "CircuitError",
    "CleanRun",
    "Edit",
    "Evaluation",
    "Faithfulness",
    "Graph",
    "Hypotheses",
    "JudgeError",
    "Model",
    "ModelError",
    "NothingEdited",
    "Pairs",
    "PromptError",
    "Prompts",
    "Read",
    "Recording",
    "Sensitivity",
    "SurgeryError",
    "Verdicts",
    "accuracy",
    "check_circuit",
    "design",
    "discover",
    "evaluate",
    "faithfulness",
    "judge",
    "kl_divergence",
    "load",
    "logit_difference",
    "patch_paths",
    "plot_attention",
    "plot_faithfulness",
    "plot_graph",
    "plot_heads",
    "plot_sensitivity",
    "plot_trace",
    "probability",
    "sensitivity",
    "trace",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rebinding' has no attribute {name!r}; its names are {', '.join(__all__)}")
    value = getattr(import_module(f"rebinding.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
