"""Stories as tokens with roles: boxes, words, text, chat, answers, prompts, and the designs that draw them."""
