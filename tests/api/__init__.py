"""Tests of the public interface."""
