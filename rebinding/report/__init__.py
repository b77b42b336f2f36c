"""What a person reads: figures and the page they stand on."""
