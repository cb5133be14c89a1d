"""The base of every message: frozen, camelCase outside, snake_case inside, no unknown fields."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Message(BaseModel):
    """A value that crosses a process boundary as JSON or YAML."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,  # JSON has no such numbers, and an API server takes no object with one
    )

    def to_json(self) -> str:
        """The value as one line of JSON, camelCase; nulls are written, because a null may differ from a default."""
        return self.model_dump_json(by_alias=True)
