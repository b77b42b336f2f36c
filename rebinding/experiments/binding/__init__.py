"""Section 5: queries and keys of group B shifted along the directions of slots."""
