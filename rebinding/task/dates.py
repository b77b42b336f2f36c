"""The date in a prompt: always the same one, so a prompt does not depend on the day of the run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DATE = "26 Jul 2024"
"""The date in Llama 3's system turn. Without one, Llama 3.1 writes this date and Llama 3.2 the day of the run."""

DAY: Mapping[str, str] = MappingProxyType(
    {"%a": "Fri", "%A": "Friday", "%d": "26", "%-d": "26", "%e": "26", "%b": "Jul", "%B": "July", "%m": "07"}
    | {"%y": "24", "%Y": "2024", "%F": "2024-07-26", "%H": "00", "%M": "00", "%S": "00", "%T": "00:00:00"}
)
"""The same day at midnight, by the codes of a date format."""

PINNED_DAY = (
    "{% macro strftime_now(format) -%}{% set day = format"
    + "".join(f" | replace({code!r}, {text!r})" for code, text in DAY.items())
    + " %}{{ raise_exception('it asks for a date as ' ~ format) if '%' in day else day }}{%- endmacro %}"
)
"""A macro before a template, so that a request for the day of the run returns the pinned date in the wanted format."""
