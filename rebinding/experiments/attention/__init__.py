"""The attention of heads in unedited prompts."""
