"""SQL92 message filters: `compile(text)` gives a test on a message's properties.

Properties are always strings or missing, so the language is less than SQL: a property is
compared with a number by reading its text as a number, and a text that is no number is an
error, which means no match. Everything else is three-valued: true, false, unknown. What
follows a complete expression is ignored, as every RocketMQ broker does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.errors import PenstockError
from penstock.limits import SQL92_CHARS, SQL92_DEPTH

Value = bool | int | float | str | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


class SqlError(PenstockError):
    """The text is not a filter expression."""


class EvaluationError(PenstockError):
    """The properties of one message cannot be compared as the expression asks."""


class Filter:
    """A compiled expression. Calling it answers what a broker asks: does this message pass?"""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def __call__(self, properties: Properties) -> bool:
        try:
            return self._evaluate(properties) is True
        except EvaluationError:
            return False

    def evaluate(self, properties: Properties) -> bool | None:
        """True, False or None for unknown; raises EvaluationError."""
        result = self._evaluate(properties)
        assert result is None or isinstance(result, bool)
        return result


def compile(text: str) -> Filter:  # noqa: A001 - `sql92.compile`, as `re.compile`
    """Raises SqlError when the text is no expression or does not yield a truth value."""
    if len(text) > SQL92_CHARS:
        raise SqlError(f"expression of {len(text)} characters; at most {SQL92_CHARS} are allowed")
    parser = _Parser(text)
    return Filter(text, _as_boolean(parser.parse()).evaluate)


# ---- nodes ------------------------------------------------------------------------------------------


class _Node(NamedTuple):
    """One part of the expression. `kind` decides where it may stand: constant, property, boolean, number."""

    kind: str
    evaluate: Evaluate
    height: int = 1
    constant: Value = None


def _constant(value: Value) -> _Node:
    return _Node("constant", lambda _: value, constant=value)


def _boolean(evaluate: Evaluate, *parts: _Node) -> _Node:
    return _Node("boolean", evaluate, _height(*parts))


def _height(*parts: _Node) -> int:
    """Bounds how deep evaluation recurses; the parser bounds how deep parsing does."""
    height = 1 + max(part.height for part in parts)
    if height > SQL92_DEPTH:
        raise SqlError(f"expression nests deeper than {SQL92_DEPTH}")
    return height


def _as_boolean(node: _Node) -> _Node:
    if node.kind == "boolean":
        return node
    if node.kind == "constant":
        if node.constant is None or isinstance(node.constant, bool):
            return node
        raise SqlError(f"{node.constant!r} is not a truth value")
    if node.kind == "property":
        read = node.evaluate

        def unknown_or_false(properties: Properties) -> Value:
            return None if read(properties) is None else False  # a text is never true

        return _boolean(unknown_or_false, node)
    raise SqlError("a number is not a truth value")


# ---- operators --------------------------------------------------------------------------------------


def _and(parts: list[_Node]) -> _Node:
    evaluates = [_as_boolean(part).evaluate for part in parts]

    def all_true(properties: Properties) -> Value:
        result: Value = True
        for evaluate in evaluates:
            value = evaluate(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return _boolean(all_true, *parts)


def _or(parts: list[_Node]) -> _Node:
    evaluates = [_as_boolean(part).evaluate for part in parts]

    def any_true(properties: Properties) -> Value:
        result: Value = False
        for evaluate in evaluates:
            value = evaluate(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return _boolean(any_true, *parts)


def _not(part: _Node) -> _Node:
    evaluate = _as_boolean(part).evaluate

    def negated(properties: Properties) -> Value:
        value = evaluate(properties)
        return None if value is None else not value

    return _boolean(negated, part)


def _minus(part: _Node) -> _Node:
    evaluate = part.evaluate

    def negative(properties: Properties) -> Value:
        value = evaluate(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None  # texts have no sign, whatever they spell
        return -value

    return _Node("number", negative, _height(part))


def _is_null(part: _Node) -> _Node:
    evaluate = part.evaluate
    return _boolean(lambda properties: evaluate(properties) is None, part)


def _equal(left: _Node, right: _Node) -> _Node:
    for side in (left, right):
        if side.kind == "constant" and side.constant is None:
            raise SqlError("NULL cannot be compared; write IS NULL")
    if (
        left.kind == right.kind == "constant"
        and isinstance(left.constant, bool)
        and not isinstance(right.constant, bool)
    ):
        raise SqlError(f"{left.constant} cannot be compared with {right.constant!r}")
    read_left, read_right = left.evaluate, right.evaluate

    def equal(properties: Properties) -> Value:
        a, b = read_left(properties), read_right(properties)
        if a is None or b is None:
            return True if a is b else (None if a is None else False)
        return _order(a, b, texts_as_numbers=False) == 0

    return _boolean(equal, left, right)


_ORDERINGS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def _compare(symbol: str, left: _Node, right: _Node) -> _Node:
    for side in (left, right):
        if side.kind == "boolean" or (side.kind == "constant" and not _is_number(side.constant)):
            raise SqlError(f"only numbers and properties can stand beside {symbol}")
    read_left, read_right, holds = left.evaluate, right.evaluate, _ORDERINGS[symbol]

    def compared(properties: Properties) -> Value:
        a = read_left(properties)
        if a is None:
            return None
        b = read_right(properties)
        if b is None:
            return None
        order = _order(a, b, texts_as_numbers=True)
        return False if order is None else holds(order)

    return _boolean(compared, left, right)


def _between(value: _Node, low: _Node, high: _Node, *, negate: bool) -> _Node:
    inside = _and([_compare(">=", value, low), _compare("<=", value, high)])
    if negate:
        return _not(inside)
    if low.kind == high.kind == "constant" and _sign(low.constant, high.constant) > 0:
        raise SqlError("the bounds of BETWEEN must ascend")
    return inside


def _in(value: _Node, texts: frozenset[str]) -> _Node:
    if value.kind != "property":
        raise SqlError("only a property can stand before IN")
    read = value.evaluate

    def member(properties: Properties) -> Value:
        text = read(properties)
        return None if text is None else text in texts

    return _boolean(member, value)


_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": lambda text, part: text.startswith(part),
    "ENDSWITH": lambda text, part: text.endswith(part),
}


def _search(word: str, value: _Node, part: str, *, negate: bool) -> _Node:
    read, found = value.evaluate, _SEARCHES[word]

    def searched(properties: Properties) -> Value:
        text = read(properties) if part else None
        if not isinstance(text, str):
            return False  # also for the NOT forms
        return found(text, part) is not negate

    return _boolean(searched, value)


# ---- values -----------------------------------------------------------------------------------------


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(a: Value, b: Value, *, texts_as_numbers: bool) -> int | None:
    """Negative, zero or positive; None when the two kinds are never equal."""
    if isinstance(a, bool):
        if isinstance(b, str):
            raise EvaluationError("a truth value cannot be compared with a text")
        return int(a) - int(b) if isinstance(b, bool) else None
    if isinstance(a, str):
        if isinstance(b, str):
            if not texts_as_numbers:
                return 0 if a == b else 1
            return _sign(_double(a), _double(b))
        if isinstance(b, bool):
            return int(a.lower() == "true") - int(b)
        return _sign(_number_like(b, a), b)
    if isinstance(b, bool):
        return None
    return _sign(a, _number_like(a, b) if isinstance(b, str) else b)


def _number_like(number: Value, text: str) -> int | float:
    if isinstance(number, float):
        return _double(text)
    assert isinstance(number, int)
    return _integer(text, INT_MAX if abs(number) <= INT_MAX else LONG_MAX)


def _sign(a: Value, b: Value) -> int:
    assert isinstance(a, int | float)
    assert isinstance(b, int | float)
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
        if math.isnan(a) or math.isnan(b):  # Java's order: NaN equals itself and is above everything
            return int(math.isnan(a)) - int(math.isnan(b))
    return (a > b) - (a < b)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?P<suffix>[fFdD])?)", re.ASCII
)


def _integer(text: str, largest: int) -> int:
    """A text compared with a 32-bit literal must be one, too; otherwise 64 bits."""
    if _INTEGER.fullmatch(text):
        value = int(text)
        if -largest - 1 <= value <= largest:
            return value
    raise EvaluationError(f"not an integer in range: {text[:40]!r}")


def _double(text: str) -> float:
    match = _DOUBLE.fullmatch(text.strip())
    if match is None:
        raise EvaluationError(f"not a number: {text[:40]!r}")
    digits = match.group()
    return float(digits[:-1] if match["suffix"] else digits)


# ---- text to nodes ----------------------------------------------------------------------------------

_KEYWORDS: Final = frozenset(
    "NOT AND OR BETWEEN IN IS NULL TRUE FALSE CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905
)
_BLANK: Final = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*.*?\*/)*", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<integer>(?:[1-9][0-9]*|0)[lL]?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<symbol><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.ASCII,
)


_AFTER_NOT: Final = ("BETWEEN", "IN", *_SEARCHES)


class _Token(NamedTuple):
    kind: str  # float, integer, text, name, end; a keyword or symbol is its own kind
    text: str


class _Parser:
    """Recursive descent with one token of lookahead, so that only what is needed has to be readable."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._next = self._read()

    def parse(self) -> _Node:
        return self._or_expression()

    # -- tokens --

    def _take(self, *kinds: str) -> _Token:
        token = self._next
        if token.kind not in kinds:
            raise SqlError(f"expected {' or '.join(kinds)}, found {token.text or 'the end'!r}")
        self._next = self._read()
        return token

    def _accept(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._next = self._read()
        return True

    def _read(self) -> _Token:
        blank = _BLANK.match(self._text, self._position)
        start = blank.end() if blank else self._position
        if start == len(self._text):
            self._position = start
            return _Token("end", "")
        match = _TOKEN.match(self._text, start)
        if match is None:
            raise SqlError(f"unexpected {self._text[start]!r} at position {start}")
        self._position = match.end()
        kind, text = match.lastgroup or "", match.group()
        if kind == "symbol":
            return _Token(text, text)
        if kind == "name" and text.upper() in _KEYWORDS:
            return _Token(text.upper(), text)
        return _Token(kind, text)

    # -- grammar --

    def _or_expression(self) -> _Node:
        parts = [self._and_expression()]
        while self._accept("OR"):
            parts.append(self._and_expression())
        return parts[0] if len(parts) == 1 else _or(parts)

    def _and_expression(self) -> _Node:
        parts = [self._equality()]
        while self._accept("AND"):
            parts.append(self._equality())
        return parts[0] if len(parts) == 1 else _and(parts)

    def _equality(self) -> _Node:
        left = self._comparison()
        while True:
            if self._accept("="):
                left = _equal(left, self._comparison())
            elif self._accept("<>"):
                left = _not(_equal(left, self._comparison()))
            elif self._accept("IS"):
                negate = self._accept("NOT")
                self._take("NULL")
                left = _is_null(left)
                left = _not(left) if negate else left
            else:
                return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            kind = self._next.kind
            if kind in _ORDERINGS:
                self._take(kind)
                left = _compare(kind, left, self._unary())
                continue
            negate = self._accept("NOT")
            if not negate and kind not in _AFTER_NOT:
                return left
            word = self._take(*_AFTER_NOT).kind
            if word in _SEARCHES:
                left = _search(word, left, self._literal_text(), negate=negate)
            elif word == "BETWEEN":
                low = self._unary()
                self._take("AND")
                left = _between(left, low, self._unary(), negate=negate)
            else:
                left = _in(left, self._text_list())
                left = _not(left) if negate else left

    def _text_list(self) -> frozenset[str]:
        self._take("(")
        texts = [self._literal_text()]
        while self._accept(","):
            texts.append(self._literal_text())
        self._take(")")
        return frozenset(texts)

    def _literal_text(self) -> str:
        return self._take("text").text[1:-1].replace("''", "'")

    def _unary(self) -> _Node:
        self._depth += 1
        if self._depth > SQL92_DEPTH:
            raise SqlError(f"expression nests deeper than {SQL92_DEPTH}")
        if self._accept("+"):
            node = self._unary()
        elif self._accept("-"):
            node = _minus(self._unary())
        elif self._accept("NOT"):
            node = _not(self._unary())
        else:
            node = self._primary()
        self._depth -= 1
        return node

    def _primary(self) -> _Node:
        kind = self._next.kind
        if kind == "text":
            return _constant(self._literal_text())
        token = self._take("integer", "float", "name", "TRUE", "FALSE", "NULL", "(")
        if kind == "name":
            name = token.text
            return _Node("property", lambda properties: properties.get(name))
        if kind == "(":
            node = self._or_expression()
            self._take(")")
            return node
        if kind == "integer":
            value = int(token.text.rstrip("lL")) if len(token.text) <= 20 else LONG_MAX + 1
            if value > LONG_MAX:
                raise SqlError(f"{token.text[:40]} is not a 64-bit integer")
            return _constant(value)
        if kind == "float":
            number = float(token.text)
            if not 0.0 < number < math.inf:
                raise SqlError(f"{token.text[:40]} is not a positive double")
            return _constant(number)
        return _constant({"TRUE": True, "FALSE": False, "NULL": None}[kind])
