"""Compile a wiring into the weights of a Llama or Gemma, and check wirings."""
