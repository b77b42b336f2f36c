"""Faults at random places of the code: another comparison, another sign, a constant off by one, a loop of no turns.

Left out are places that no run reads (annotations), replacements that can only be a type error (a minus between lists),
which would flatter the score, and the inside of f-strings, most of which are messages.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

PACKAGES = (
    "rebinding/verdicts", "claims", "rebinding/experiments", "rebinding/surgery", "rebinding/study",
    "rebinding/simulate", "rebinding/planted",
)  # fmt: skip
FEWEST = 25
"""Faults of a package, however small it is."""
BINARY = {
    ast.Add: "+ -", ast.Sub: "- +", ast.Mult: "* /", ast.Div: "/ *", ast.Pow: "** *", ast.FloorDiv: "// *",
    ast.Mod: "% +", ast.BitOr: "| &", ast.BitAnd: "& |",
}  # fmt: skip
"""An operator, then what takes its place."""
COMPARISONS = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<=", ">"), ast.LtE: ("<=", "<", ">="),
    ast.Gt: (">", ">=", "<"), ast.GtE: (">=", ">", "<="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip
SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.DictComp)
TYPES = {"int", "float", "str", "bool", "bytes", "list", "dict", "tuple", "set"}


@dataclass(frozen=True)
class Fault:
    """A change of one place. The first five fields say which, for as long as that line of code is not changed."""

    file: str
    function: str
    """Qualified; empty at the top of a module. A default or a decorator belongs to the function that has it."""
    operator: str
    line: str
    occurrence: int
    """Among the faults of this function with the same operator and text of line."""
    in_body: bool
    """Whether the place is run by calls of the function, and not when the file is imported."""
    start: int
    end: int
    replacement: bytes

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return self.file, self.function, self.operator, self.line, self.occurrence

    @property
    def identity(self) -> Mapping[str, str | int]:
        return dict(zip(("file", "function", "operator", "line", "occurrence"), self.key, strict=True))

    @property
    def package(self) -> str:
        return next(package for package in PACKAGES if self.file.startswith(f"{package}/"))

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement + source[self.end :]

    def diff(self, source: bytes) -> str:
        before, after = (text.decode().splitlines() for text in (source, self.apply(source)))
        return "\n".join([*difflib.unified_diff(before, after, self.file, self.file, n=1, lineterm="")][2:])


def key_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a fault that is on record."""
    return tuple(line[field] for field in ("file", "function", "operator", "line", "occurrence"))


def find_faults(root: Path, packages: Sequence[str] = PACKAGES) -> list[Fault]:
    """Every fault in the packages of a tree."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    return [fault for path in paths for fault in faults_of(path.read_bytes(), path.relative_to(root).as_posix())]


def draw_faults(faults: Iterable[Fault], n: int, seed: int) -> list[Fault]:
    """At least `n` faults, one for a place, from each package in proportion to its places.

    The order is that of hashes of seed and fault: a change of code elsewhere moves no fault in or out, but for those at
    the end of a package's share.
    """

    def ticket(fault: Fault) -> str:
        return hashlib.sha256(repr((seed, fault.key)).encode()).hexdigest()

    places: dict[str, dict[tuple[str, int], Fault]] = {}
    for fault in sorted(faults, key=ticket):
        places.setdefault(fault.package, {}).setdefault((fault.file, fault.start), fault)
    total = sum(len(of_package) for of_package in places.values())
    return [
        fault
        for _, of_package in sorted(places.items())
        for fault in list(of_package.values())[: max(FEWEST, round(n * len(of_package) / total))]
    ]


def faults_of(source: bytes, file: str) -> list[Fault]:
    """The faults of one file; each still parses."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    lines, seen, faults = source.splitlines(), Counter[tuple[str, str, str]](), []
    for function, operator, in_body, start, end, replacement in finder.places:
        line = lines[source[:start].count(b"\n")].decode().strip()
        seen[function, operator, line] += 1
        occurrence = seen[function, operator, line] - 1
        faults.append(Fault(file, function, operator, line, occurrence, in_body, start, end, replacement.encode()))
    return faults


class _Finder(ast.NodeVisitor):
    """Places as (function, operator, whether in its body, first byte, last byte, text)."""

    def __init__(self, source: bytes) -> None:
        self.places: list[tuple[str, str, bool, int, int, str]] = []
        self._source = source
        self._line_starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
        self._function, self._in_body = "", False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self._function, self._in_body
        self._enter(node.name)
        self._visit_all([*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)])
        self._in_body = True
        self._visit_all(node.body)
        self._function, self._in_body = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._function, self._in_body
        self._enter(node.name)
        self._in_body = False
        self._visit_all([*node.decorator_list, *node.body])
        self._function, self._in_body = outer

    def _enter(self, name: str) -> None:
        self._function += f"{'.<locals>.' if self._in_body else '.' if self._function else ''}{name}"

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all(filter(None, [node.value]))

    def visit_arg(self, node: ast.arg) -> None:
        """An annotation."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Positions inside are wrong before Python 3.12."""

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._visit_test(node)

    def _visit_test(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_Assert = _visit_test

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._replace(*self._span(node.iter), "loop of no turns", "[]")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(*self._span(node), "break to continue", "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(*self._span(node), "continue to break", "break")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(*self._span(node), f"{node.value} to {not node.value}", repr(not node.value))
        elif isinstance(node.value, int | float) and node.value + 1 != node.value:
            for value in (node.value + 1, node.value - 1):
                text = repr(value) if value >= 0 else f"({value!r})"
                self._replace(*self._span(node), f"{node.value} to {value}", text)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        word = {ast.Not: "not", ast.USub: "-"}.get(type(node.op))
        if word:
            start, _ = self._span(node)
            self._replace(start, start + len(word), f"no {word}", "")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            self._replace_between(left, right, word, other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        word, other = BINARY.get(type(node.op), " ").split(" ")
        if word and not any(_fits_no_other(operand, node.op) for operand in (node.left, node.right)):
            self._replace_between(node.left, node.right, word, other)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for (left, right), operator in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
            word, *others = COMPARISONS.get(type(operator), ("",))
            for other in others:
                self._replace_between(left, right, word, other)
        self.generic_visit(node)

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _negate(self, test: ast.expr) -> None:
        start, end = self._span(test)
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._replace(start, end, "condition to its opposite", f"not ({self._source[start:end].decode()})")

    def _replace_between(self, left: ast.expr, right: ast.expr, word: str, other: str) -> None:
        """Between two operands are the operator, parentheses and comments."""
        gap = slice(self._span(left)[1], self._span(right)[0])
        token = re.escape(word).replace(r"\ ", r"\s+").encode()
        for match in re.finditer(rb"#[^\n]*|(" + token + rb")", self._source[gap]):
            if match[1]:
                self._replace(gap.start + match.start(), gap.start + match.end(), f"{word} to {other}", other)
                return

    def _replace(self, start: int, end: int, operator: str, replacement: str) -> None:
        self.places.append((self._function, operator, self._in_body, start, end, replacement))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        starts = self._line_starts
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _fits_no_other(operand: ast.expr, operator: ast.operator) -> bool:
    """Whether another operator on this operand can only be a type error: a text or a list, or a type in a union."""
    if isinstance(operand, SEQUENCES):
        return True
    if isinstance(operand, ast.Constant):
        return isinstance(operand.value, str | bytes | None)
    name = operand.attr if isinstance(operand, ast.Attribute) else operand.id if isinstance(operand, ast.Name) else ""
    return isinstance(operator, ast.BitOr) and (name in TYPES or (name[:1].isupper() and not name.isupper()))
