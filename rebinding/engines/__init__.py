"""Engines that compute evidence on workers, apart from the process that judges."""
