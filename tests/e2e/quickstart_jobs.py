"""The quickstart as a user applies it: the file itself, in a namespace with a volume for its claim."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from cluster import Cluster
from cluster_fixture import Target
from operator_fixture import forget_volumes
from operator_jobs import ClusterJob, Operator

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


class QuickstartJob(ClusterJob):
    """The file is applied as it is; what is known of the job is read from it."""

    def __init__(self, target: Target, operator: Operator, own: Cluster) -> None:
        super().__init__(target, operator, None, yaml.safe_load(QUICKSTART.read_text()))
        size = self.spec["storage"]["output"]["size"]
        self.output = own.shared_volume(f"output-{self.namespace}", size)

    def apply_file(self) -> None:
        """``kubectl apply -f examples/quickstart.yaml``."""
        self.kubectl("apply", "--namespace", self.namespace, "--filename", str(QUICKSTART))

    @property
    def results(self) -> Path:
        """What the job left in its volume, as a folder of this machine."""
        claim = self.get(f"pvc/{self.name}-output")
        assert claim["spec"]["volumeName"] == f"output-{self.namespace}"
        assert self.output is not None
        return self.output / str(self.spec["output"]["path"])


@contextmanager
def quickstart_job(target: Target, operator: Operator, own: Cluster) -> Iterator[QuickstartJob]:
    """One that is not applied yet."""
    job = QuickstartJob(target, operator, own)
    try:
        yield job
    finally:
        job.remove()
        forget_volumes(target, job.namespace)
