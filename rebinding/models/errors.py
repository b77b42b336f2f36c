"""Errors of loading a model: one class a reason; every message says what to do next."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that cannot be studied."""


class UnknownName(ModelError):
    """A name that stands for no model."""


class OtherWeights(ModelError):
    """A model whose weights, dtype or tokenizer are not those that were announced."""


class NoSuchFolder(ModelError):
    """A path that does not exist or is no model folder."""


class OfflineModel(ModelError):
    """A Hub model that is not on this machine while the Hub cannot be reached."""


class GatedModel(ModelError):
    """A Hub model whose licence has to be accepted first."""


class AbsentModel(ModelError):
    """A Hub model or revision that does not exist, or is private."""


class CustomCode(ModelError):
    """A model that brings its own Python code."""


class AdapterNextToModel(ModelError):
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
    """A tokenizer without character offsets of its tokens."""


class OtherTokenizer(ModelError):
    """A tokenizer with tokens for which the model has no embedding."""


class NoChatForm(ModelError):
    """A tokenizer from which no chat form follows."""


class UnknownDtype(ModelError):
    """A dtype that is not supported."""


class UnknownDevice(ModelError):
    """A device that does not exist."""


class NoCuda(ModelError):
    """A GPU that is not available."""


class DoesNotFit(ModelError):
    """A model larger than the memory of the devices."""


class UnsupportedArchitecture(ModelError):
    """A model whose parts differ from its anatomy, or cannot be identified."""


class FixedAttention(ModelError):
    """A model whose attention function cannot be replaced."""


class UnknownAttentionInput(ModelError):
    """A model that passes its attention an argument we do not compute with."""


class NotCausal(ModelError):
    """A model whose earlier tokens depend on later ones."""


class AttentionDiffers(ModelError):
    """A model whose residual stream differs with our attention function."""


class ReplayDiffers(ModelError):
    """A model whose replay without a change differs from its own forward."""


class MixesTokens(UnsupportedArchitecture):
    """A model whose layers pass something from token to token besides attention, or from call to call."""


class NotFinite(ModelError):
    """A model that computes infinities or NaN."""


class InertSite(ModelError):
    """A model on which edits of some site change nothing."""


class ChangedModel(ModelError):
    """A model that differs from the one the store has on record under its name."""


class NotServed(ModelError):
    """A model that no server can hold."""


class NoKey(ModelError):
    """A server that needs an API key."""
