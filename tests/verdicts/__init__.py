"""The rules that turn evidence into verdicts: known answers, properties, error rates."""
