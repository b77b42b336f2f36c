"""The experiments of a pack recomputed naively: whole forward passes with hooks, without our surgery or experiments."""
