"""Arithmetic that a student or a table of exercises writes, as `2 * (N - 1) * 4 * P / N`, evaluated in fractions.

An expression is read by Python's parser and walked node by node; nothing of it is ever executed. It may hold numbers, the names
that it is given, + - * / // % **, parentheses, and min, max, ceil and floor. Text, numbers and powers are bounded, so every
expression ends at once."""

import ast
import math
import operator
import re
import warnings
from fractions import Fraction

LONGEST_TEXT = 500   # characters
LARGEST_BITS = 4096  # of a numerator or a denominator
LARGEST_POWER = 64
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
              ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
FUNCTIONS = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor}
SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u22c5": "*", "\u00f7": "/", "\u2212": "-", "\u2013": "-", "\u2019": "'",
                       "\u00a0": " ", "\u2009": " ", "\u202f": " "})
GROUPED = re.compile(r"(?<![\w.,'])[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+|(?:'\d{3})+|(?:\.\d{3}){2,})(?![\w,'])")
DECIMAL_COMMA = re.compile(r"(?<![\w.,])(\d+),(\d+)(?![\w.,])")
ALLOWED = "Use numbers, names, + - * / // % **, parentheses, min, max, ceil and floor."


class BadExpression(Exception):
    """The expression cannot be read or has no value; the text says why, in a sentence."""


def parse(text):
    """The expression as a tree; BadExpression if it is too long or is none."""
    if len(text) > LONGEST_TEXT:
        raise BadExpression(f"It has {len(text)} characters; at most {LONGEST_TEXT} are read.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise BadExpression(f"It cannot be read. {ALLOWED}") from None


def bounded(value):
    """The value as a fraction, unless it is too large."""
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > LARGEST_BITS:
        raise BadExpression("A number in it is too large.")
    return value


def power(base, exponent):
    """base ** exponent for whole exponents."""
    if exponent.denominator != 1 or abs(exponent) > LARGEST_POWER:
        raise BadExpression(f"A power needs a whole exponent of at most {LARGEST_POWER}.")
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    return base ** int(exponent)


def value_of(node, names):
    """The value of a node, a fraction; BadExpression if the node is none of those allowed."""
    if isinstance(node, ast.Constant) and (type(node.value) is int or type(node.value) is float and math.isfinite(node.value)):
        return bounded(Fraction(repr(node.value)))
    if isinstance(node, ast.Name):
        if node.id not in names:
            known = ", ".join(names) if names else "none here; use numbers"
            raise BadExpression(f"There is no {node.id[:40]}. The names are: {known}.")
        return bounded(names[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = value_of(node.operand, names)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.BitXor):
            raise BadExpression("A power is written **, not ^.")
        left, right = value_of(node.left, names), value_of(node.right, names)
        if isinstance(node.op, ast.Pow):
            return bounded(power(left, right))
        if type(node.op) in OPERATIONS:
            return bounded(OPERATIONS[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords:
        values = [value_of(argument, names) for argument in node.args]
        least = 2 if node.func.id in ("min", "max") else 1
        if len(values) >= least and (least == 2 or len(values) == 1):
            return bounded(FUNCTIONS[node.func.id](*values))
    raise BadExpression(f"It holds something that is not allowed. {ALLOWED}")


def as_written(text, *units):
    """An expression as people write it, where that can mean only one thing: with the signs of a printed page, thousands in groups
    as on our own pages, a decimal comma, a sign of equality in front, and one of these units after a number."""
    if len(text) > LONGEST_TEXT:
        return text
    text = text.translate(SIGNS).lstrip("=\u2248 \t").strip()
    for unit in filter(None, units):
        text = re.sub(rf"(?<=\d)\s{'*' if len(unit) > 2 else '+'}{re.escape(unit)}$", "", text, flags=re.IGNORECASE)
    if not re.search(r"min|max", text):  # whose arguments stand between commas
        text = GROUPED.sub(lambda found: re.sub("[ ,.']", "", found[0]), text)
        text = DECIMAL_COMMA.sub(r"\1.\2", text)
    return text


def evaluate(text, names):
    """The value of an expression as a Fraction.
    names: the value of each name that it may use. BadExpression says in a sentence why there is no value."""
    try:
        return value_of(parse(text), names)
    except ZeroDivisionError:
        raise BadExpression("It divides by zero.") from None
    except RecursionError:
        raise BadExpression("It is nested too deeply.") from None
