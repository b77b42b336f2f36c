"""The report's page in a real browser: tox -e browser."""
