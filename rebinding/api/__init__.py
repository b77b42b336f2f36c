"""The public interface, exported from `rebinding`: load a model, patch it, find circuits, judge it."""
