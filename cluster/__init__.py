"""Tests that begin a Ray cluster on this machine: run with `tox -e ray`."""
