"""Suites of claims outside this repository's `claims`: the door, the plugin that pytest finds, and an example."""
