"""A YAML file as one document, read as strictly as a person who mistyped would want: what is ambiguous is an error with its place."""

from typing import Any

import yaml

LARGEST = 1 << 20
"""Bytes of a job's file. An API server takes no larger object either."""


class YamlProblem(Exception):  # noqa: N818 - what is wrong is in the text
    """The file holds no document that can be used: where, what, and what to do."""


MOST_DOCUMENTS = 100
"""Documents of a file that may hold several."""
MOST_MERGED = 10_000
"""Keys of a mapping with those that it merges (``<<``): mappings that merge each other have nine times as many with each line."""


def parse(data: bytes) -> object:
    """The one document in ``data``. Raises YamlProblem."""
    found = _documents(data, single=True)
    return found[0] if found else None


def parse_all(data: bytes) -> list[object]:
    """All documents in ``data``, without empty ones. Raises YamlProblem."""
    return [document for document in _documents(data, single=False) if document is not None]


def _documents(data: bytes, single: bool) -> list[object]:
    if len(data) > LARGEST:
        raise YamlProblem(f"larger than {LARGEST >> 20} MiB: that is no job's file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _place(data[: error.start])
        found = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise YamlProblem(f"line {line}, column {column}: {found}; save the file as UTF-8") from None
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line, column = _place(text[: error.position].encode())
        raise YamlProblem(f"line {line}, column {column}: the character U+{error.character:04X}, which is not text") from None
    try:
        return _constructed(loader, single)
    except yaml.MarkedYAMLError as error:
        raise YamlProblem(_told(error)) from None
    except yaml.YAMLError as error:
        raise YamlProblem("not YAML: " + " ".join(str(error).split())) from None
    except (ValueError, OverflowError) as error:  # a date or number of the right form that is none, such as 2020-13-45
        raise YamlProblem(f"not YAML: {error}; put it in quotes if it is text") from None
    except RecursionError:
        raise YamlProblem("nested too deep") from None
    finally:
        loader.dispose()


def _constructed(loader: "_Loader", single: bool) -> list[object]:
    nodes: list[yaml.Node] = []
    while loader.check_node():
        line = loader.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call] # it has no types
        if nodes and single:
            raise YamlProblem(f"line {line}: a second document begins here; one file holds one job: give each its own file")
        if len(nodes) == MOST_DOCUMENTS:
            raise YamlProblem(f"line {line}: more than {MOST_DOCUMENTS} documents; give some of them another file")
        node = loader.get_node()
        if node is not None:
            nodes.append(node)
    return [loader.construct_document(node) for node in nodes]


class _Loader(yaml.SafeLoader):
    """YAML allows no key twice in a mapping; PyYAML takes the last and says nothing."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            before = first.setdefault((key.tag, key.value), key.start_mark)
            if before is not key.start_mark:
                problem = f"the key {key.value!r} is here a second time (first in line {before.line + 1}); keep one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_MERGED:
            problem = f"a mapping of more than {MOST_MERGED:,} keys with those that it merges (<<); write out what it needs"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _told(error: yaml.MarkedYAMLError) -> str:
    problem, mark = error.problem or "not YAML", error.problem_mark
    if r"'\t'" in problem:
        problem = "a tab; YAML is indented with spaces alone"
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _place(before: bytes) -> tuple[int, int]:
    """Line and column, from 1, of what comes after ``before``."""
    line = before.count(b"\n") + 1
    return line, len(before.rsplit(b"\n", 1)[-1].decode("utf-8", "replace")) + 1
