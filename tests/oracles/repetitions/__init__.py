"""Headline rows on planted models, again and again on other prompts: how often a verdict is not the planted one."""
