"""Jobs of Kubeflow as LiveMigrationJobs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_jobs import cluster_job
from typer.testing import CliRunner

from lmj_api.load import load_job, read_document
from lmj_operator.backend.kubernetes.build.pod import build_pod
from lmj_operator.backend.kubernetes.build.template_check import check_template
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.cli.errors import BAD_INPUT, CommandError
from lmj_operator.cli.main import app
from lmj_operator.convert.job import Converted, convert
from lmj_operator.convert.notes import ConvertError
from lmj_operator.convert.results import PLACEHOLDER

FILES = Path(__file__).parent / "files"


def of_file(name: str) -> Converted:
    documents = list(yaml.safe_load_all((FILES / name).read_text()))
    return convert(documents[-1])


def pytorchjob(*command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "example.test/x:1", "workingDir": "/code", "command": list(command)}
    specs = {"Master": {"template": {"spec": {"containers": [container]}}}}
    parts = {"pytorchReplicaSpecs": specs, **spec}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "it"}, "spec": parts}


def trainer(made: Converted) -> dict[str, Any]:
    found: dict[str, Any] = made.document["spec"]["template"]["spec"]["containers"][0]
    return found


def told(made: Converted, *words: str) -> bool:
    return any(all(word in line for word in words) for line in made.notes)


@pytest.mark.parametrize("name", ["lora.yaml", "elastic-qa.yaml", "mnist.yaml", "trainjob.yaml"])
def test_what_people_write_becomes_a_valid_job(name: str) -> None:
    made = of_file(name)
    job = read_document(yaml.safe_load(yaml.safe_dump(made.document)))
    check_template(job.spec.template)
    assert job.spec.command is not None
    assert all(line.isprintable() for line in made.notes)


def test_an_elastic_job_of_torchrun() -> None:
    made = of_file("lora.yaml")
    spec = made.document["spec"]
    assert spec["command"]["args"][:2] == ["finetune_lora.py", "--model_name_or_path=meta-llama/Llama-2-7b-hf"]
    assert (spec["command"]["processesPerNode"], spec["command"]["threads"], spec["command"]["workingDir"]) == (
        2,
        16,
        "/workspace",
    )
    assert spec["dataParallel"] == {"replicas": 4, "minReplicas": 1, "maxReplicas": 4}
    assert spec["output"] == {"path": "/tmp/pvc-mount/output/saved_model"}
    assert spec["recovery"] == {"maxRestarts": 30}
    assert (spec["cleanPodPolicy"], spec["ttlSecondsAfterFinished"]) == ("Running", 600)
    names = [variable["name"] for variable in trainer(made)["env"]]
    assert names == ["LD_PRELOAD", "CCL_WORKER_COUNT", "KMP_BLOCKTIME", "HF_TOKEN"], "the launcher's own are not there"
    assert {"name": "shm", "mountPath": "/dev/shm"} in trainer(made)["volumeMounts"]
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {"node-type": "spr"}
    assert pod["tolerations"]
    assert pod["imagePullSecrets"]
    assert pod["serviceAccountName"] == "trainer"
    assert "command" not in trainer(made)
    assert "workingDir" not in trainer(made)
    assert told(made, "no equivalent", "PET_NNODES")
    assert told(made, "rdzvBackend")


def test_a_line_of_a_shell_that_only_starts_the_script() -> None:
    made = of_file("elastic-qa.yaml")
    spec = made.document["spec"]
    assert spec["command"]["args"] == [
        "-m",
        "transformers_qa.run_qa",
        "--dataset_name",
        "squad",
        "--do_train",
        "--doc_stride=128",
    ]
    assert spec["command"]["workingDir"] == "/code"
    assert trainer(made)["env"] == [{"name": "HF_HOME", "value": "/results/hf"}]
    assert spec["recovery"]["maxRestarts"] == 13
    codes = [code for rule in spec["recovery"]["rules"] for code in rule["exitCodes"]]
    assert codes == list(range(1, 128)), "ExitCode: those are final"
    assert spec["template"]["spec"]["volumes"][0]["name"] == "user-run", "the operator has a volume that is called run"
    assert spec["template"]["spec"]["initContainers"][0]["volumeMounts"][0]["name"] == "user-run"
    name = made.document["metadata"]["name"]
    assert len(name) <= 40
    assert told(made, "metadata.name", name)
    assert told(made, "schedulingPolicy.queue")
    assert told(made, "HorizontalPodAutoscaler")
    assert told(made, "--tee 3")


def test_master_and_workers_are_replicas_and_all_are_needed() -> None:
    made = of_file("mnist.yaml")
    assert made.document["spec"]["dataParallel"] == {"replicas": 4, "minReplicas": 4}
    assert made.document["spec"]["command"] == {
        "args": ["/opt/mnist/mnist.py", "--epochs=1", "--backend", "nccl"],
        "workingDir": "/opt/mnist",
    }
    assert trainer(made)["image"] == "example.test/mnist:1"
    assert told(made, "Worker", "containers[0].image", "Master's")


def test_without_a_volume_the_output_is_to_be_filled_in(tmp_path: Path) -> None:
    made = of_file("mnist.yaml")
    assert made.document["spec"]["output"]["path"] == PLACEHOLDER
    assert told(made, "fill in", "spec.output.path", "storage")
    with pytest.raises(Exception, match=r"spec\.output\.path.*write a path"):
        load_job(made.document, base=tmp_path)


def test_a_train_job() -> None:
    made = of_file("trainjob.yaml")
    spec = made.document["spec"]
    assert spec["command"] == {"args": ["train.py", "--epochs", "3"], "processesPerNode": 4}
    assert spec["dataParallel"] == {"replicas": 2, "minReplicas": 2}
    assert spec["suspend"] is True
    assert spec["output"] == {"path": "/models/bert-finetune"}
    assert trainer(made)["resources"] == {"requests": {"cpu": 8, "memory": "16Gi"}}
    assert trainer(made)["name"] == "trainer"
    assert trainer(made)["volumeMounts"]
    assert made.document["metadata"]["labels"] == {"team": "nlp"}
    assert told(made, "check", "runtimeRef torch-distributed")


@pytest.mark.parametrize(
    ("command", "args"),
    [
        (["torchrun", "--standalone", "--nproc-per-node", "2", "train.py", "-m"], ["train.py", "-m"]),
        (["torchrun", "--max_restarts=3", "-m", "pkg.train", "--lr", "1"], ["-m", "pkg.train", "--lr", "1"]),
        (["torchrun", "--no-python", "./run", "x"], ["./run", "x"]),
        (["python", "-m", "torch.distributed.launch", "--use_env", "train.py"], ["train.py"]),
        (["python3.11", "-u", "train.py", "a b"], ["train.py", "a b"]),
        (["python", "-m", "pkg.train", "x"], ["-m", "pkg.train", "x"]),
        (["accelerate", "launch", "--multi_gpu", "--mixed_precision", "bf16", "train.py", "--cpu"], ["train.py", "--cpu"]),
        (["bash", "-c", "torchrun --node_rank=$RANK train.py --name 'a b'"], ["train.py", "--name", "a b"]),
        (["mpirun", "train"], ["mpirun", "train"]),
        (["sh", "-c", "torchrun train.py | tee log"], ["sh", "-c", "torchrun train.py | tee log"]),
        (["bash", "-c", "pip install x && torchrun train.py $LR"], ["bash", "-c", "pip install x && exec python train.py $LR"]),
        (["bash", "-ec", "make; torchrun -m pkg --lr 1"], ["bash", "-ec", "make; exec python -m pkg --lr 1"]),
        (["bash", "-c", "torchrun train.py 'never closed"], ["bash", "-c", "torchrun train.py 'never closed"]),
    ],
)
def test_command_lines(command: list[str], args: list[str]) -> None:
    assert convert(pytorchjob(*command)).document["spec"]["command"]["args"] == args


def test_options_of_launchers_are_fields() -> None:
    made = convert(pytorchjob("torchrun", "--nnodes=1:4", "--nproc_per_node", "3", "--max-restarts", "7", "t.py"))
    assert made.document["spec"]["dataParallel"] == {"replicas": 1, "minReplicas": 1, "maxReplicas": 4}
    assert made.document["spec"]["command"]["processesPerNode"] == 3
    assert made.document["spec"]["recovery"] == {"maxRestarts": 7}
    made = convert(pytorchjob("accelerate", "launch", "--num_processes=4", "--mixed_precision=bf16", "--use_fsdp", "t.py"))
    assert made.document["spec"]["command"]["processesPerNode"] == 4
    assert trainer(made)["env"] == [{"name": "ACCELERATE_MIXED_PRECISION", "value": "bf16"}]
    assert told(made, "no equivalent", "--use-fsdp")


def test_auto_is_the_gpus_of_the_container() -> None:
    document = pytorchjob("torchrun", "t.py")
    container = document["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    made = convert(document)
    assert "processesPerNode" not in made.document["spec"]["command"]
    assert told(made, "auto")
    container["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    assert convert(document).document["spec"]["command"]["processesPerNode"] == 8


def test_variables_in_arguments_are_put_in() -> None:
    document = pytorchjob("torchrun", "t.py", "--lr=$(LR)", "$$(X)")
    document["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "LR", "value": "0.1"}
    ]
    made = convert(document)
    assert made.document["spec"]["command"]["args"] == ["t.py", "--lr=0.1", "$(X)"]
    assert told(convert(pytorchjob("torchrun", "t.py", "$(NOBODY)")), "check", "NOBODY")


def bomb() -> Any:
    value: Any = ["x"] * 10
    for _ in range(8):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "Pod", "apiVersion": "v1"}, "PyTorchJob"),
        ("text", "PyTorchJob"),
        (pytorchjob(), "ENTRYPOINT"),
        (pytorchjob("torchrun", "t.py", pytorchReplicaSpecs={}), "no Master and no Worker"),
        (pytorchjob("torchrun", "t.py", pytorchReplicaSpecs=[]), "a mapping is needed, not a list"),
        (pytorchjob("torchrun", "t.py", elasticPolicy={"minReplicas": "2"}), "minReplicas: a whole number is needed"),
        (pytorchjob("torchrun", "t.py", nprocPerNode=0), "less than 1"),
        (pytorchjob("torchrun", "t.py", runPolicy={"cleanPodPolicy": "Sometimes"}), "cleanPodPolicy"),
        (pytorchjob("torchrun", "t.py", more=bomb()), "aliases"),
        (pytorchjob("torchrun", "x" * 5000 + ".py"), "put the script into a file"),
    ],
)
def test_what_cannot_be_converted_is_told_in_one_line(document: object, said: str) -> None:
    with pytest.raises(ConvertError, match=said) as caught:
        convert(document)
    assert "\n" not in str(caught.value)


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["convert", *args])


def test_the_command_writes_all_jobs_of_a_file_and_says_the_rest_on_stderr(tmp_path: Path) -> None:
    file, out = tmp_path / "in.yaml", tmp_path / "out.yaml"
    file.write_text((FILES / "mnist.yaml").read_text() + "---\n" + (FILES / "trainjob.yaml").read_text())
    result = run(str(file))
    assert result.exit_code == 0
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(result.stdout)]
    assert names == ["mnist", "bert-finetune"]
    assert "PersistentVolumeClaim" in result.stderr
    assert "document 3: check" in result.stderr
    assert "2 jobs" in result.stderr
    assert run(str(file), "-o", str(out)).stdout == ""
    assert out.read_text() == result.stdout


@pytest.mark.parametrize("content", ["a: [", "a: 1\na: 2\n", "", "kind: Pod\napiVersion: v1\n", "--- 1\n" * 101])
def test_a_file_without_a_job_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "in.yaml"
    file.write_text(content)
    result = run(str(file))
    assert isinstance(result.exception, CommandError)
    assert result.exception.code == BAD_INPUT
    assert len(result.exception.lines) == 1


def test_the_file_itself_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "in.yaml"
    file.write_text((FILES / "trainjob.yaml").read_text())
    assert isinstance(run(str(file), "-o", str(file)).exception, CommandError)
    assert "TrainJob" in file.read_text()


@pytest.mark.parametrize("name", ["lora.yaml", "elastic-qa.yaml", "trainjob.yaml"])
def test_the_operator_makes_pods_of_it(name: str) -> None:
    settings = Settings(trainer_image="registry.example/lmj-trainer:1", namespace="lmj-system")
    made = of_file(name).document
    body = {**made, "metadata": {"namespace": "team", **made["metadata"], "uid": "11111111-2222-3333-4444-555555555555"}}
    pod = build_pod(cluster_job(body, settings), settings, 1, 1)
    container = pod["spec"]["containers"][0]
    assert container["image"] == made["spec"]["template"]["spec"]["containers"][0]["image"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {"job", "run", "tmp"} <= mounted, "the operator's own volumes are still there"


def test_the_example_in_the_documentation_is_what_comes_out() -> None:
    page = (Path(__file__).parents[3] / "docs" / "convert.md").read_text()
    before, after = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert convert(yaml.safe_load(before)).document == yaml.safe_load(after)
