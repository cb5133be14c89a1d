"""What a mutant is: one small change of a module's syntax tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
}
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign)
Change = Callable[[], None]


@dataclass(frozen=True)
class Mutation:
    """One change. ``first`` to ``last``: lines of which one runs whenever the changed code does."""

    line: int
    first: int
    last: int
    what: str
    function: bool
    """Inside of a function, and not when the module is imported."""
    apply: Change


def mutations(tree: ast.Module, *, ordered: bool) -> Iterator[Mutation]:
    """All changes of ``tree``, in a fixed order. Applying one changes the tree in place. ``ordered``: also neighbouring statements swapped."""
    yield from _Walk(ordered).block(tree.body, function=False)


def mutate(source: str, number: int, *, ordered: bool) -> ast.Module:
    """``source`` with the change of that number."""
    tree = ast.parse(source)
    for index, mutation in enumerate(mutations(tree, ordered=ordered)):
        if index == number:
            mutation.apply()
            return ast.fix_missing_locations(tree)
    raise IndexError(number)


class _Walk:
    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered

    def block(self, body: list[ast.stmt], *, function: bool) -> Iterator[Mutation]:
        for place, statement in enumerate(body):
            if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Assert, ast.Global, ast.Nonlocal)) or _is_text(statement):
                continue
            if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
                continue
            if isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("log."):
                continue  # what is logged is for people
            yield from self._statement(body, place, statement, function)
            follower = body[place + 1] if place + 1 < len(body) else None
            if self._ordered and function and _acts(statement) and follower is not None and _acts(follower):
                yield _at(statement, f"swapped with: {_short(follower)}", function, _swap(body, place))
            yield from self._expressions(statement, function)
            inside = function or isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(statement, ast.ClassDef):
                inside = False
            for inner in _blocks(statement):
                yield from self.block(inner, function=inside)

    def _statement(self, body: list[ast.stmt], place: int, statement: ast.stmt, function: bool) -> Iterator[Mutation]:
        if not function:
            return
        match statement:
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield _at(statement, "removed", function, _replace(body, place, ast.Pass()))
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.AugAssign() | ast.Raise() | ast.Delete():
                yield _at(statement, "removed", function, _replace(body, place, ast.Pass()))
            case ast.Break() | ast.Continue() | ast.Return(value=None):
                yield _at(statement, "removed", function, _replace(body, place, ast.Pass()))
            case ast.Return(value=value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
                instead = ast.Return(value=ast.Constant(value=None))
                yield _at(statement, "returns None", function, _replace(body, place, instead))
            case _:
                pass

    def _expressions(self, statement: ast.stmt, function: bool) -> Iterator[Mutation]:
        """Of the statement's own line or header, not of what is nested in it."""
        roots: list[ast.AST] = []
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                roots = [*statement.args.defaults, *(d for d in statement.args.kw_defaults if d is not None)]
            case ast.ClassDef():
                roots = []
            case ast.AnnAssign():
                roots = [statement.value] if statement.value is not None else []
            case ast.If() | ast.While():
                roots = [statement.test]
                if not isinstance(statement.test, ast.Compare) or len(statement.test.ops) > 1:
                    yield _at(statement.test, "condition negated", function, _negate(statement))
            case ast.For() | ast.AsyncFor():
                roots = [statement.iter]
            case ast.With() | ast.AsyncWith():
                roots = [item.context_expr for item in statement.items]
            case ast.Try():
                roots = []
            case ast.Match():
                roots = [statement.subject, *(case.guard for case in statement.cases if case.guard is not None)]
            case _:
                roots = [statement]
        for root in roots:
            for node in ast.walk(root):
                yield from _of_node(node, statement, function)


def _of_node(node: ast.AST, statement: ast.stmt, function: bool) -> Iterator[Mutation]:
    place = node if isinstance(node, ast.expr) else statement
    match node:
        case ast.Compare():
            for index, op in enumerate(node.ops):
                other = _COMPARE[type(op)]()
                what = f"{_name(op)} is {_name(other)}"
                yield _at(place, what, function, _item(node.ops, index, other), statement)
                if isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                    turned: ast.cmpop = ast.GtE() if isinstance(op, (ast.Lt, ast.LtE)) else ast.LtE()
                    yield _at(place, f"{_name(op)} is {_name(turned)}", function, _item(node.ops, index, turned), statement)
        case ast.BoolOp():
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            what = "and is or" if isinstance(node.op, ast.And) else "or is and"
            yield _at(place, what, function, _attribute(node, "op", other_op), statement)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            what = "not removed" if isinstance(node.op, ast.Not) else "minus removed"
            yield _at(place, what, function, _become(node, node.operand), statement)
        case ast.IfExp():
            yield _at(place, "choice turned", function, _turn(node), statement)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            instead = _ARITHMETIC[type(op)]()
            yield _at(place, f"{_name(op)} is {_name(instead)}", function, _attribute(node, "op", instead), statement)
        case ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            instead = _ARITHMETIC[type(op)]()
            yield _at(place, f"{_name(op)}= is {_name(instead)}=", function, _attribute(node, "op", instead), statement)
        case ast.Constant(value=bool() as value):
            yield _at(place, f"{value} is {not value}", function, _attribute(node, "value", not value), statement)
        case ast.Constant(value=int() | float() as value):
            yield _at(place, f"{value} is {value + 1}", function, _attribute(node, "value", value + 1), statement)
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            instead_name = ast.Name(id="max" if name == "min" else "min", ctx=ast.Load())
            yield _at(place, f"{name} is {instead_name.id}", function, _attribute(node, "func", instead_name), statement)
        case _:
            pass


def _at(node: ast.stmt | ast.expr, what: str, function: bool, apply: Change, statement: ast.stmt | None = None) -> Mutation:
    header = statement if statement is not None and not _blocks(statement) else node
    first, last = min(node.lineno, header.lineno), header.end_lineno or header.lineno
    return Mutation(node.lineno, first, last, what, function, apply)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [b for name in ("body", "orelse", "finalbody") if isinstance(b := getattr(statement, name, None), list) and b]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    return blocks + [case.body for case in getattr(statement, "cases", [])]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _acts(statement: ast.stmt) -> bool:
    """Whether it changes something that others may see."""
    if isinstance(statement, ast.Assign):
        return not all(isinstance(target, ast.Name) for target in statement.targets)
    return isinstance(statement, _SIMPLE) and not _is_text(statement)


def _short(statement: ast.stmt) -> str:
    text = ast.unparse(statement).splitlines()[0]
    return text if len(text) <= 60 else text[:57] + "..."


def _name(op: ast.AST) -> str:
    names = {"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!=", "Is": "is", "IsNot": "is not"}
    names |= {"In": "in", "NotIn": "not in", "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%"}
    names |= {"BitOr": "|", "BitAnd": "&", "LShift": "<<", "RShift": ">>"}
    return names[type(op).__name__]


def _replace(body: list[ast.stmt], place: int, instead: ast.stmt) -> Change:
    return lambda: body.__setitem__(place, ast.copy_location(instead, body[place]))


def _swap(body: list[ast.stmt], place: int) -> Change:
    return lambda: body.__setitem__(slice(place, place + 2), [body[place + 1], body[place]])


def _negate(node: ast.If | ast.While) -> Change:
    return lambda: setattr(node, "test", ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test))


def _item(items: list[ast.cmpop], index: int, instead: ast.cmpop) -> Change:
    return lambda: items.__setitem__(index, instead)


def _attribute(node: ast.AST, name: str, value: object) -> Change:
    return lambda: setattr(node, name, value)


def _turn(node: ast.IfExp) -> Change:
    def apply() -> None:
        node.body, node.orelse = node.orelse, node.body

    return apply


def _become(node: ast.AST, other: ast.AST) -> Change:
    """``node`` is what ``other`` is: whoever refers to it need not be known."""

    def apply() -> None:
        kept = copy.copy(other)
        node.__class__ = kept.__class__  # a node of another kind: all have the same layout
        node.__dict__.clear()
        node.__dict__.update(kept.__dict__)

    return apply
