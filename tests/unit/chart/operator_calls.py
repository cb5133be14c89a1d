"""The calls to the API server that are in the operator's code, read from its source: what its role has to allow."""

import ast
from collections.abc import Iterator
from pathlib import Path

from lmj_operator.backend.kubernetes import resources
from lmj_operator.backend.kubernetes.resources import Resource

Call = tuple[str, str, str]
"""API group, resource (with its subresource), verb."""

VERBS = {"get": ("get",), "list": ("list",), "create": ("create",), "delete": ("delete",)}
RESOURCES = {name: value for name, value in vars(resources).items() if isinstance(value, Resource)}


def calls_in_code(package: Path) -> set[Call]:
    """All of the operator's: those of ``Api``, and those that are made to watch. What ``client`` calls is done with a person's own rights."""
    found: set[Call] = set()
    for file in sorted(set(package.rglob("*.py")) - set((package / "client").rglob("*.py"))):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _dotted(node.func) == "Watch":
                for resource in _resources(node.args[1], tree):
                    found |= {(resource.group, resource.plural, verb) for verb in ("list", "watch")}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found |= set(_watched(node)) if _dotted(node.func).startswith("kopf.") else set(_called(node, tree))
    return found


def _called(node: ast.Call, tree: ast.Module) -> Iterator[Call]:
    """``api.VERB(RESOURCE, ...)``."""
    assert isinstance(node.func, ast.Attribute)
    verb, receiver = node.func.attr, _dotted(node.func.value)
    if verb not in (*VERBS, "apply") or receiver.split(".")[-1] not in ("api", "_api"):
        return
    if ast.unparse(node.args[0]) == "self._resource":
        return  # a watch's, which is counted where it is made
    subresource = next((ast.literal_eval(k.value) for k in node.keywords if k.arg == "subresource"), None)
    for resource in _resources(node.args[0], tree):
        plural = resource.plural + (f"/{subresource}" if subresource else "")
        # Applied, an object that is not there is made; its status is not.
        verbs = VERBS.get(verb) or (("patch",) if subresource else ("create", "patch"))
        yield from ((resource.group, plural, each) for each in verbs)


def _resources(argument: ast.expr, tree: ast.Module) -> list[Resource]:
    if isinstance(argument, ast.Name) and argument.id in RESOURCES:
        return [RESOURCES[argument.id]]
    # A parameter: what the calls of its function in this file hand it.
    for function in ast.walk(tree):
        if isinstance(function, ast.AsyncFunctionDef) and function.lineno <= argument.lineno <= (function.end_lineno or 0):
            parameters = [a.arg for a in function.args.args if a.arg != "self"]
            if ast.unparse(argument) in parameters:
                at = parameters.index(ast.unparse(argument))
                calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _dotted(n.func) == f"self.{function.name}"]
                return [RESOURCES[ast.unparse(call.args[at])] for call in calls]
    # A variable of a loop: over all that the loop names.
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and any(
            isinstance(n, ast.Name) and n.id == ast.unparse(argument) for n in ast.walk(loop.target)
        ):
            return [RESOURCES[n.id] for n in ast.walk(loop.iter) if isinstance(n, ast.Name) and n.id in RESOURCES]
    raise AssertionError(f"which resource is {ast.unparse(argument)} (line {argument.lineno})?")


def _watched(node: ast.Call) -> Iterator[Call]:
    """``@kopf.on.event(GROUP, VERSION, PLURAL)`` lists and watches."""
    if _dotted(node.func) != "kopf.on.event":
        assert not _dotted(node.func).startswith(("kopf.daemon", "kopf.timer")), "these patch what they watch: add that here"
        assert not _dotted(node.func).startswith("kopf.on.") or _dotted(node.func) == "kopf.on.login", ast.unparse(node)
        return
    group, _, plural = (a.value if isinstance(a, ast.Constant) else ast.unparse(a) for a in node.args[:3])
    known = {"names.GROUP": resources.JOBS.group, "names.PLURAL": resources.JOBS.plural}
    yield from ((known.get(group, group), known.get(plural, plural), verb) for verb in ("list", "watch"))


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
