"""The same two stages of path patching by other libraries, side by side (`tox -e peers`)."""
