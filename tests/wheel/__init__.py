"""The built wheel, in an environment of its own: `tox -e wheel`."""
