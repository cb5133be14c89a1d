"""Records docs/session/migration.txt: a rank that moves while its job trains, on one machine, with the real commands.

python tools/session.py writes what the commands print, with the folder that they ran in taken out of all paths.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "session" / "migration.txt"
LMJ = (sys.executable, "-m", "lmj_operator.cli.main")
SECONDS = 300.0
"""Longest that the job, and each command, may take."""

JOB = """\
apiVersion: lmj.dev/v1alpha1
kind: LiveMigrationJob
metadata:
  name: tiny
spec:
  pipeline: {stages: 2, microBatches: 2}
  model:
    scratch: {layers: 2, hiddenSize: 64, heads: 4, intermediateSize: 128, vocabulary: 500, maxPositions: 64}
    labels: [negative, positive]
  dataset:
    source: reviews.csv
    text: [review]
    label: sentiment
    splits: {validationFraction: 0.05, testFraction: 0.05}
    maxSamples: {train: 4000}
    maxLength: 32
  training: {epochs: 12, batchSize: 32, learningRate: 1.0e-3, maxSteps: 1200, threads: 1}
  checkpoint: {everySteps: 400, keep: 2}
  output: {path: runs/tiny}
"""


class Session:
    """Commands in a folder, and what a reader at a terminal would have seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = ""

    def shown(self, command: str, output: str) -> None:
        """Adds a command with its output, its paths relative to the folder."""
        self.text += f"$ {command}\n{output.replace(f'{self.folder}/', '')}".rstrip() + "\n\n"

    def run(self, *arguments: str) -> None:
        """Runs ``lmj`` with ``arguments`` and adds it. Raises RuntimeError when it fails."""
        done = subprocess.run([*LMJ, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"lmj {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        self.shown(f"lmj {' '.join(arguments)}", done.stdout + done.stderr)


def wait_for_step(metrics: Path, step: int, training: "subprocess.Popen[str]") -> None:
    """Returns when ``step`` is recorded. Raises RuntimeError when the run ends before, or it takes too long."""
    limit = time.monotonic() + SECONDS
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= step):
        if training.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"step {step} did not come: see the output of lmj run")
        time.sleep(0.1)


def main() -> None:
    """Run the session and write the record."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        (folder / "job.yaml").write_text(JOB)
        (folder / "reviews.csv").write_bytes((ROOT / "examples" / "data" / "reviews.csv").read_bytes())
        session = Session(folder)
        session.shown("cat job.yaml", JOB)
        log = folder / "run.txt"
        with log.open("w") as out:
            training = subprocess.Popen([*LMJ, "run", "job.yaml"], cwd=folder, stdout=out, stderr=subprocess.STDOUT, text=True)
        try:
            session.shown("lmj run job.yaml > run.txt 2>&1 &", "")
            wait_for_step(folder / "runs/tiny/metrics.jsonl", 100, training)
            session.run("status", "job.yaml")
            session.run("migrate", "job.yaml", "--rank", "1")
            session.run("status", "job.yaml")
            code = training.wait(timeout=SECONDS)
        finally:
            if training.poll() is None:
                training.terminate()
                training.wait(timeout=60)
        session.shown("wait; cat run.txt", log.read_text())
        if code:
            raise RuntimeError(f"lmj run ended with {code}: {log.read_text()}")
        session.run("report", "job.yaml", "-o", "report.html")
        text = re.sub(r"[ \t]+$", "", session.text, flags=re.MULTILINE)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(text.rstrip() + "\n")
    sys.stdout.write(f"{RECORD.relative_to(ROOT)}: {len(text.splitlines())} lines\n")


if __name__ == "__main__":
    main()
