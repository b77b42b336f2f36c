"""The pictures: from evidence to figures."""
