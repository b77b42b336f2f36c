"""Real tokenizers, real weights and models that learned: tox -e real, tox -e learned."""
