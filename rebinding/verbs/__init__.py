"""What can be done from a command line, one module a verb."""
