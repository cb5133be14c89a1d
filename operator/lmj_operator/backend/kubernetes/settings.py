"""What the operator is told about its place, the same for all jobs."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the Kubernetes backend."""

    trainer_image: str | None = None
    """Image of trainer pods whose template names none."""
    image_pull_policy: str | None = None
    """Pull policy of that image; None: the cluster's default."""
    trust: tuple[str, ...] = ()
    """Public keys that the next pod's agent trusts."""
    namespace: str | None = None
    """The operator's own namespace; None: it runs outside of the cluster."""
    labels: dict[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/name": "lmj", "app.kubernetes.io/component": "operator"}
    )
    """Labels of the operator's own pods, by which a job's NetworkPolicy knows them."""
    user: int = 65532
    """User and group id of trainer pods (``runAsUser``, ``runAsGroup``, ``fsGroup``)."""
    grace_seconds: int = 60
    """Time that a trainer pod has for its last checkpoint when it is told to go."""
    status_seconds: float = 2.0
    """At most one write of progress alone in so long, for each job."""
