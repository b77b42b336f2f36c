"""One model under study, composed of its prompts, its circuit, its gates and its evidence source."""
