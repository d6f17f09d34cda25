"""Reader of a selector's text: lark's LALR parser calls a Reader, which builds the nodes.

Nothing here recurses into the selector, and the time is linear in the length of the text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from sluicemq.broker.selectors import values
from sluicemq.broker.selectors.nodes import (
    All,
    Any,
    Arithmetic,
    Comparison,
    Identifier,
    Like,
    Literal,
    Minus,
    Node,
    Not,
    Null,
    Within,
    pattern_weight,
    split_pattern,
)
from sluicemq.model.errors import SelectorError
from sluicemq.model.identifiers import JAVA_LETTERS

MAX_DEPTH: Final = 200
"""Largest nesting of parentheses and operations."""

_IDENTIFIER_PART: Final = JAVA_LETTERS | {"Nd", "Mn", "Mc", "Cf"}
"""Unicode categories of Java's Character.isJavaIdentifierPart."""

_EXPECTED: Final = (
    ("NAME", "a value"),
    ("STRING", "a string"),
    ("EQUAL", "a comparison"),
    ("TIMES", "an arithmetic operator"),
    ("_BETWEEN", "BETWEEN"),
    ("_LIKE", "LIKE"),
    ("_IN", "IN"),
    ("_IS", "IS"),
    ("NOT", "NOT"),
    ("_NULL", "NULL"),
    ("_ESCAPE", "ESCAPE"),
    ("_AND", "AND"),
    ("_OR", "OR"),
    ("OPEN", "'('"),
    ("_COMMA", "','"),
    ("RPAR", "')'"),
    ("$END", "the end"),
)
"""Descriptions of the expected text in an error message, by the terminal that implies them."""

_PART_OF_A_VALUE: Final = frozenset(("STRING", "NOT", "OPEN"))


def read(text: str) -> Node:
    """Return the condition of a selector. Raises SelectorError.

    It takes up to 4 µs for each character; the caller limits the length first.
    """
    try:
        # with a transformer, the parser returns the transformed tree
        return _parser().parse(text)  # type: ignore[return-value]
    except UnexpectedToken as error:
        end = error.token.type == "$END"
        position = len(text) if end else error.token.start_pos or 0
        token_text = "the end" if end else _shortened(str(error.token))
        raise expected(_listed(error.accepts or error.expected), token_text, position) from None
    except UnexpectedCharacters as error:
        position = cast(int, error.pos_in_stream)
        if text[position] == "'":
            raise expected("a quote that ends the string", "the end", position) from None
        message = f"the character {text[position]!a} at offset {position} has no meaning"
        raise SelectorError(message, position) from None


def expected(expectation: str, found: str, position: int) -> SelectorError:
    """Return the error for a position at which other text is expected."""
    return SelectorError(f"expected {expectation}, found {found} at offset {position}", position)


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _listed(terminals: Iterable[str]) -> str:
    names = set(terminals)
    if "NAME" in names:
        names -= _PART_OF_A_VALUE
    words = [word for name, word in _EXPECTED if name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


@cache
def _parser() -> Lark:
    grammar = files("sluicemq.broker.selectors").joinpath("grammar.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", lexer="basic", transformer=Reader())


def _kind(node: Node) -> str:
    match node:
        case Literal(value=bool()):
            return "a Boolean"
        case Literal(value=str()):
            return "a string"
        case Literal() | Arithmetic() | Minus():
            return "a number"
        case Identifier():
            return "an identifier"
    return "a condition"


def _condition(node: Node) -> Node:
    """Return the node if it may be a condition; otherwise raise SelectorError."""
    kind = _kind(node)
    if kind in ("a number", "a string"):
        raise expected("a condition", kind, node.position)
    return node


def _number(node: Node) -> Node:
    """Return the node if its value may be a number; otherwise raise SelectorError."""
    kind = _kind(node)
    if kind not in ("a number", "an identifier"):
        raise expected("a number", kind, node.position)
    if isinstance(node, Literal) and node.value == values.LONG_LIMIT and type(node.value) is int:
        raise expected("a number in the range of long", str(node.value), node.position)
    return node


def _identifier(node: Node) -> Identifier:
    if not isinstance(node, Identifier):
        raise expected("an identifier", _kind(node), node.position)
    return node


def _holding(node: Node, parts: Sequence[Node]) -> Node:
    """Return the node after setting its depth and size from its parts."""
    depth = size = 0
    for part in parts:
        depth = max(depth, part.depth)
        size += part.size
    node.size += size
    return _deepened(node, depth)


def _deepened(node: Node, depth: int) -> Node:
    node.depth = depth + 1
    if node.depth > MAX_DEPTH:
        raise SelectorError(
            f"at offset {node.position} more than {MAX_DEPTH} parentheses and operations are "
            "inside one another",
            node.position,
        )
    return node


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class Reader(Transformer[Token, Node]):
    """Transformer with a method for each rule of the grammar.

    The methods that combine nodes check the types of their operands: a type error is an error of
    the text, like a missing parenthesis.
    """

    def start(self, condition: Node) -> Node:
        return _condition(condition)

    # --- values ------------------------------------------------------------------------------

    def identifier(self, token: Token) -> Node:
        name = str(token)
        position = token.start_pos or 0
        if not name.isascii():
            categories = JAVA_LETTERS
            for offset, character in enumerate(name, position):
                if unicodedata.category(character) not in categories:
                    message = f"the character {character!a} at offset {offset} has no meaning"
                    raise SelectorError(message, offset)
                categories = _IDENTIFIER_PART
        if values.reserved(name):
            raise expected(f"one of {', '.join(sorted(values.HEADER))}", _shortened(name), position)
        return Identifier(position, name)

    def string(self, token: Token) -> Node:
        return Literal(token.start_pos or 0, _text(token))

    def number(self, token: Token) -> Node:
        position = token.start_pos or 0
        read_number = values.read_exact if token.type == "EXACT" else values.read_approximate
        try:
            return Literal(position, read_number(token))
        except ValueError as error:
            raise expected(str(error), _shortened(token), position) from None

    def boolean(self, token: Token) -> Node:
        return Literal(token.start_pos or 0, token.type == "TRUE")

    def nested(self, opening: Token, inside: Node) -> Node:
        # errors give the position of the nested node
        return _deepened(inside, inside.depth)

    def plus(self, sign: Token, operand: Node) -> Node:
        position = sign.start_pos or 0
        if isinstance(_number(operand), Identifier):  # a number from now on
            operand = Arithmetic(position, Literal(position, 0), [("+", operand)])
        return _deepened(operand, operand.depth)

    def minus(self, sign: Token, operand: Node) -> Node:
        position = sign.start_pos or 0
        if isinstance(operand, Literal) and values.is_number(operand.value):
            return _holding(Literal(position, values.negative(operand.value)), (operand,))
        return _holding(Minus(position, _number(operand)), (operand,))

    def arithmetic(self, first: Node, *others: Node | Token) -> Node:
        _number(first)
        operands = [first]
        rest: list[tuple[str, Node]] = []
        for symbol, operand in zip(others[::2], others[1::2], strict=True):
            assert isinstance(operand, Node)
            operands.append(_number(operand))
            if not rest and isinstance(first, Literal) and isinstance(operand, Literal):
                value = values.calculate(str(symbol), first.value, operand.value)
                first = Literal(first.position, value)
            else:
                rest.append((str(symbol), operand))
        return _holding(Arithmetic(first.position, first, rest) if rest else first, operands)

    # --- conditions --------------------------------------------------------------------------

    def comparison(self, left: Node, symbol: Token, right: Node) -> Node:
        for node in (left, right):
            kind = _kind(node)
            if kind == "a condition":
                raise expected("a value", kind, node.position)
            if symbol not in ("=", "<>") or kind == "a number":
                _number(node)
        return _holding(Comparison(left.position, str(symbol), left, right), (left, right))

    def between(self, operand: Node, *others: Node | Token) -> Node:
        low, high = others[-2:]
        assert isinstance(low, Node)
        assert isinstance(high, Node)
        negated = len(others) == 3
        bounds = [
            self.comparison(operand, Token("LESS", "<" if negated else ">="), low),
            self.comparison(operand, Token("GREATER", ">" if negated else "<="), high),
        ]
        position = operand.position
        return _holding(Any(position, bounds) if negated else All(position, bounds), bounds)

    def like(self, operand: Node, *tokens: Token) -> Node:
        identifier = _identifier(operand)
        negated = tokens[0].type == "NOT"
        text, *escapes = tokens[negated:]
        escape = ""
        if escapes:
            escape = _text(escapes[0])
            if len(escape) != 1:
                raise expected(
                    "a string of one character", _shortened(escapes[0]), escapes[0].start_pos or 0
                )
        try:
            parts = split_pattern(_text(text), escape)
        except ValueError as error:
            raise expected(str(error), _shortened(text), text.start_pos or 0) from None
        like = Like(operand.position, identifier, parts)
        like.size += identifier.size + pattern_weight(parts)
        return _unless(negated, like)

    def within(self, operand: Node, *tokens: Token) -> Node:
        identifier = _identifier(operand)
        negated = tokens[0].type == "NOT"
        strings = frozenset(_text(token) for token in tokens[negated:] if token.type == "STRING")
        within = Within(operand.position, identifier, strings)
        within.size += identifier.size + len(tokens) - negated
        return _unless(negated, within)

    def null(self, operand: Node, *tokens: Token) -> Node:
        null = Null(operand.position, _identifier(operand))
        null.size += operand.size
        return _unless(bool(tokens), null)

    def not_(self, token: Token, operand: Node) -> Node:
        return _holding(Not(token.start_pos or 0, _condition(operand)), (operand,))

    def all(self, *operands: Node) -> Node:
        return _holding(All(operands[0].position, [_condition(o) for o in operands]), operands)

    def any(self, *operands: Node) -> Node:
        return _holding(Any(operands[0].position, [_condition(o) for o in operands]), operands)


def _unless(negated: bool, condition: Node) -> Node:
    return _holding(Not(condition.position, condition), (condition,)) if negated else condition
