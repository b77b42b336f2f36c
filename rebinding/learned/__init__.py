"""Real language models that learned the task: adapters, how they are trained, and what their cards say."""
