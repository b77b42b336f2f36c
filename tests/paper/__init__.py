"""The record of what the paper prints."""
