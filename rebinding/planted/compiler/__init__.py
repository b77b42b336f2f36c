"""From a wiring to the weights of a Llama or Gemma, and what is wrong with a wiring."""
