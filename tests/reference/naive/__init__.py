"""One naive version of each experiment, for packs, rows of evidence and steps of the search: whole forward passes with
hooks, without our surgery or experiments."""
