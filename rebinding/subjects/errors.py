"""Why a subject cannot be loaded: one class a reason, every message with what to do next."""

from __future__ import annotations


class SubjectError(ValueError):
    """A subject that cannot be studied."""


class UnknownName(SubjectError):
    """A name that stands for no subject."""


class NoSuchFolder(SubjectError):
    """A path that leads nowhere, or to something that is not a model folder."""


class OfflineModel(SubjectError):
    """A Hub model that is not on this machine, and no way to the Hub."""


class GatedModel(SubjectError):
    """A Hub model whose licence has to be accepted first."""


class AbsentModel(SubjectError):
    """A Hub model or revision that does not exist, or is private."""


class CustomCode(SubjectError):
    """A model that brings its own Python code."""


class AdapterBeside(SubjectError):
    """A model with an adapter that some installations would add to it and others would not."""


class QuantisedModel(SubjectError):
    """A model whose weights are stored in fewer bits than it computes with."""


class MissingPackage(SubjectError):
    """A kind of file that needs a package which is not installed."""


class UnfitAdapter(SubjectError):
    """An adapter that cannot be read, or is for another model."""


class NoBase(SubjectError):
    """An adapter whose base model is not on this machine."""


class MissingWeights(SubjectError):
    """A model folder without all of its weights."""


class PickledWeights(SubjectError):
    """Weights that are stored as pickles only."""


class DamagedWeights(SubjectError):
    """Weight files that are truncated, or do not fit the model."""


class MissingTokenizer(SubjectError):
    """A model folder without a tokenizer."""


class SlowTokenizer(SubjectError):
    """A tokenizer that does not know which characters its tokens stand for."""


class OtherTokenizer(SubjectError):
    """A tokenizer whose tokens the model has no rows for."""


class NoChatForm(SubjectError):
    """A tokenizer from which no chat form follows."""


class UnknownDtype(SubjectError):
    """A dtype that subjects are not computed in."""


class UnknownDevice(SubjectError):
    """A device that is none."""


class NoCuda(SubjectError):
    """A GPU that is not there."""


class DoesNotFit(SubjectError):
    """A model larger than the memory of the devices."""


class UnsupportedArchitecture(SubjectError):
    """A model whose parts are not what its anatomy says, or cannot be told apart."""


class FixedAttention(SubjectError):
    """A model whose attention function cannot be replaced."""


class UnknownAttentionInput(SubjectError):
    """A model that hands its attention something we do not compute with."""


class NotCausal(SubjectError):
    """A model that looks at the future."""


class AttentionDiffers(SubjectError):
    """A model on which our attention does not give the numbers of its own."""


class ReplayDiffers(SubjectError):
    """A model whose layers, run again with nothing changed, do not give its own numbers."""


class MixesTokens(UnsupportedArchitecture):
    """A model whose layers pass something from token to token besides attention, or from call to call."""


class NotFinite(SubjectError):
    """A model that computes infinities or NaN."""


class InertSite(SubjectError):
    """A model on which edits of some site change nothing."""


class ChangedSubject(SubjectError):
    """A subject that is not what the store has on record under its name."""


class NotServed(SubjectError):
    """A subject that no server can hold."""


class NoKey(SubjectError):
    """A server that wants to know who asks."""
