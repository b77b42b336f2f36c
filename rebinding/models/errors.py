"""Why a subject cannot be loaded: one class a reason, every message with what to do next."""

from __future__ import annotations


class ModelError(ValueError):
    """A subject that cannot be studied."""


class UnknownName(ModelError):
    """A name that stands for no subject."""


class NoSuchFolder(ModelError):
    """A path that leads nowhere, or to something that is not a model folder."""


class OfflineModel(ModelError):
    """A Hub model that is not on this machine, and no way to the Hub."""


class GatedModel(ModelError):
    """A Hub model whose licence has to be accepted first."""


class AbsentModel(ModelError):
    """A Hub model or revision that does not exist, or is private."""


class CustomCode(ModelError):
    """A model that brings its own Python code."""


class AdapterBeside(ModelError):
    """A model with an adapter that some installations would add to it and others would not."""


class QuantisedModel(ModelError):
    """A model whose weights are stored in fewer bits than it computes with."""


class MissingPackage(ModelError):
    """A kind of file that needs a package which is not installed."""


class UnfitAdapter(ModelError):
    """An adapter that cannot be read, or is for another model."""


class NoBase(ModelError):
    """An adapter whose base model is not on this machine."""


class MissingWeights(ModelError):
    """A model folder without all of its weights."""


class PickledWeights(ModelError):
    """Weights that are stored as pickles only."""


class DamagedWeights(ModelError):
    """Weight files that are truncated, or do not fit the model."""


class MissingTokenizer(ModelError):
    """A model folder without a tokenizer."""


class SlowTokenizer(ModelError):
    """A tokenizer that does not know which characters its tokens stand for."""


class OtherTokenizer(ModelError):
    """A tokenizer whose tokens the model has no rows for."""


class NoChatForm(ModelError):
    """A tokenizer from which no chat form follows."""


class UnknownDtype(ModelError):
    """A dtype that subjects are not computed in."""


class UnknownDevice(ModelError):
    """A device that is none."""


class NoCuda(ModelError):
    """A GPU that is not there."""


class DoesNotFit(ModelError):
    """A model larger than the memory of the devices."""


class UnsupportedArchitecture(ModelError):
    """A model whose parts are not what its anatomy says, or cannot be told apart."""


class FixedAttention(ModelError):
    """A model whose attention function cannot be replaced."""


class UnknownAttentionInput(ModelError):
    """A model that hands its attention something we do not compute with."""


class NotCausal(ModelError):
    """A model that looks at the future."""


class AttentionDiffers(ModelError):
    """A model on which our attention does not give the numbers of its own."""


class ReplayDiffers(ModelError):
    """A model whose layers, run again with nothing changed, do not give its own numbers."""


class MixesTokens(UnsupportedArchitecture):
    """A model whose layers pass something from token to token besides attention, or from call to call."""


class NotFinite(ModelError):
    """A model that computes infinities or NaN."""


class InertSite(ModelError):
    """A model on which edits of some site change nothing."""


class ChangedSubject(ModelError):
    """A subject that is not what the store has on record under its name."""


class NotServed(ModelError):
    """A subject that no server can hold."""


class NoKey(ModelError):
    """A server that wants to know who asks."""
