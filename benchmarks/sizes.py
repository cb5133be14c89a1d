"""Models of different sizes, as fields of a job's spec."""

from __future__ import annotations

from dataclasses import dataclass

MICRO_BATCHES = 4


@dataclass(frozen=True)
class Size:
    """A BERT."""

    name: str
    layers: int
    hidden: int
    batch: int
    vocabulary: int = 1000

    @property
    def sets(self) -> dict[str, object]:
        """Fields of a job's spec."""
        model = {
            "layers": self.layers,
            "hiddenSize": self.hidden,
            "heads": self.hidden // 64,
            "intermediateSize": 4 * self.hidden,
            "vocabulary": self.vocabulary,
        }
        return {
            **{f"model.scratch.{name}": value for name, value in model.items()},
            "training.batchSize": self.batch,
            "training.learningRate": 1e-4,
            "pipeline.microBatches": MICRO_BATCHES,
            "checkpoint.everySteps": 200,
            # Batches of one length: else a step's time says more of its texts than of what is measured.
            "dataset.maxLength": 12,
            "recovery.backoffSeconds": 0.1,
        }

    def megabytes(self, stages: int) -> float:
        """Weights and moments of a stage: the least that a move sends."""
        return 3 * 4 * (12 * self.hidden**2 * self.layers + self.vocabulary * self.hidden) / stages / 1e6


# Of the first three a step takes about equally long where they have one stage: what differs is the state alone.
TINY, ONE, FOUR = Size("tiny", 4, 128, batch=64), Size("1x", 4, 256, batch=32), Size("4x", 4, 512, batch=8)
BASE = Size("BERT-base", 12, 768, batch=16)
"""The vocabulary apart, which this data has no use for."""
HALF = Size("half of BERT-base", 6, 768, batch=16)
"""What one of its two stages holds."""
LARGE = Size("BERT-large", 24, 1024, batch=4)
