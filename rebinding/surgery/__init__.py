"""Reading and editing a forward pass: knows a model and its anatomy, nothing of boxes or prompts."""

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.derivation import derive
from rebinding.surgery.mean_ablated import ActiveHeads
from rebinding.surgery.recording import RecordedRun
from rebinding.surgery.sites import Edit, LogitsOf, NothingEdited, Read, Site, SurgeryError, in_layer
from rebinding.surgery.surgeon import Surgeon
from rebinding.surgery.torch_surgeon import TorchSurgeon

__all__ = [
    "ActiveHeads",
    "Anatomy",
    "Edit",
    "LogitsOf",
    "NothingEdited",
    "Read",
    "RecordedRun",
    "Site",
    "Surgeon",
    "SurgeryError",
    "TorchSurgeon",
    "derive",
    "in_layer",
]
