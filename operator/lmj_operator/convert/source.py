"""What a job of another operator says, whichever it is."""

from dataclasses import dataclass, field

from lmj_operator.convert.fields import Object


@dataclass(frozen=True)
class Source:
    """A job that is to be converted."""

    metadata: Object
    pod: Object
    """Its pod template."""
    where: str
    """Where the pod template is in the document."""
    container: str
    """Name of the container that trains."""
    replicas: int
    """Pods."""
    least: int | None = None
    """Pods that are enough; None: all."""
    most: int | None = None
    """The most pods."""
    processes: str | None = None
    """Of each pod: a number, or ``auto``, ``cpu`` or ``gpu``; None: not said."""
    restarts: int | None = None
    entrypoint: str = ""
    """Where somebody has to look for the command that the document does not say."""
    fields: Object = field(default_factory=dict)
    """Fields of ``spec`` that are the same here."""
