"""What type a field of the contract has: the walk over the models that error messages and ``--set`` share."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class FieldType:
    """The type at one place of a document."""

    annotation: Any
    """The annotation, without ``None`` and ``Annotated``: a class, ``list[...]``, ``dict[...]``, ``Literal[...]`` or ``Any``."""
    nullable: bool = False
    """``None`` is allowed too."""

    @property
    def model(self) -> type[BaseModel] | None:
        """The model, when it is one."""
        return self.annotation if isinstance(self.annotation, type) and issubclass(self.annotation, BaseModel) else None

    @property
    def is_float(self) -> bool:
        """A number that need not be whole."""
        return self.annotation is float

    @property
    def is_text(self) -> bool:
        """Text, or an enumeration of texts."""
        return self.annotation is str or (isinstance(self.annotation, type) and issubclass(self.annotation, Enum))

    @property
    def is_list(self) -> bool:
        """A list."""
        return get_origin(self.annotation) is list

    @property
    def is_mapping(self) -> bool:
        """A mapping with keys of the user's choice."""
        return get_origin(self.annotation) is dict

    @property
    def choices(self) -> list[str]:
        """The allowed values, when there is a list of them."""
        if isinstance(self.annotation, type) and issubclass(self.annotation, Enum):
            return [str(member.value) for member in self.annotation]
        return [str(value) for value in get_args(self.annotation)] if get_origin(self.annotation) is Literal else []

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """The model's fields by their names in YAML; empty for what is no model."""
        return {} if self.model is None else {info.alias or name: info for name, info in self.model.model_fields.items()}

    @property
    def open(self) -> bool:
        """Other fields than the known ones are allowed (an object's metadata)."""
        return self.model is None or self.model.model_config.get("extra") == "ignore"

    def child(self, name: str) -> "FieldType":
        """The type of the field or key ``name``; :data:`ANY` where it is unknown."""
        if self.annotation is Any:
            return ANY  # at once, because a template may have thousands of fields
        if name in (fields := self.fields):
            return field_type(fields[name].annotation)
        return field_type(get_args(self.annotation)[1]) if self.is_mapping else ANY

    def item(self) -> "FieldType":
        """The type of a list's items; :data:`ANY` for what is no list."""
        return field_type(get_args(self.annotation)[0]) if self.is_list else ANY

    def paths(self, prefix: str = "") -> Iterator[str]:
        """The paths of all fields below, lists left out: ``training.batchSize``."""
        for name in self.fields:
            yield prefix + name
            yield from self.child(name).paths(f"{prefix}{name}.")


def field_type(annotation: Any) -> FieldType:
    """The type that ``annotation`` says."""
    if get_origin(annotation) is Annotated:
        return field_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [option for option in get_args(annotation) if option is not NoneType]
        if len(others) != 1:
            raise TypeError(f"{annotation} is a choice between types, which a structural schema cannot say")
        return FieldType(field_type(others[0]).annotation, nullable=True)
    return FieldType(annotation)


ANY = FieldType(Any)
"""The type of what the contract says nothing about (a pod template)."""
