"""A rank's training: what lives as long as the worker, and the run of one view."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.layout import Layout
from lmj_api.names import checkpoint_name
from lmj_api.protocol import Evaluation, EventKind, Progress, WorkerPhase
from lmj_api.spec import Weights
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.checkpoint.tensors import load_state, load_weights, read_manifest
from lmj_trainer.data.order import steps_per_epoch
from lmj_trainer.metrics import evaluate_counts
from lmj_trainer.model.weights import initialise
from lmj_trainer.pipeline.commit import Decision, agree
from lmj_trainer.pipeline.pipeline import Pipeline
from lmj_trainer.state.learning_rate import learning_rate
from lmj_trainer.state.optimizer import AdamW
from lmj_trainer.transport.envelope import Kind
from lmj_trainer.worker.checkpointer import Checkpointer, Facts
from lmj_trainer.worker.export import export
from lmj_trainer.worker.recorder import Recorder

if TYPE_CHECKING:
    from lmj_api.spec import LiveMigrationJob
    from lmj_api.view import View
    from lmj_trainer.data.prepared import Prepared
    from lmj_trainer.model.stage import Stage
    from lmj_trainer.pipeline.batches import Batches
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.port import Transport
    from lmj_trainer.worker.control import Control

_THROUGHPUT_SECONDS = 10.0
_CHOICE = 1  # index of the boundary message that names the final weights


@dataclass
class Best:
    """The best validation accuracy so far."""

    step: int | None = None
    accuracy: float | None = None


class Trainer:
    """Runs views, one after the other, in one process: what survives a view (state, links) is kept for the next."""

    def __init__(
        self,
        job: LiveMigrationJob,
        rank: int,
        prepared: Prepared,
        batches: Batches,
        stage: Stage,
        state: StageState,
        transport: Transport,
        control: Control,
    ) -> None:
        spec = job.spec
        self._job, self._spec, self._rank, self._stages = job, spec, rank, spec.pipeline.stages
        self._prepared, self._batches, self._stage, self._state = prepared, batches, stage, state
        self._transport, self._control = transport, control
        self._layout = Layout.of(spec)
        self._optimizer = AdamW(state, spec.training)
        self._patience = spec.recovery.hang_timeout_seconds
        self._pipeline = Pipeline(stage, state, transport, batches, rank, self._stages, self._patience)
        self._checkpointer = Checkpointer(self._layout.checkpoints, spec.checkpoint.keep, state, transport, control)
        self._per_epoch = steps_per_epoch(batches.rows, spec.training)
        self._digest = state_digest(spec)
        self._seconds = 0.0
        self._best = Best()

    def run(self, view: View) -> WorkerPhase:
        """Train as a member of ``view`` to the end (COMPLETED) or until drained (DRAINED). Raises ViewBrokenError when the view breaks."""
        self._transport.join(view.number, self._rank, {m.rank: m.address for m in view.members if m.rank != self._rank})
        self._restore(view)
        self._control.emit(EventKind.JOINED, view.reason, view=view.number, progress=self._progress())
        recorder = None
        if self._rank == 0:
            recorder = Recorder(self._layout, self._state.step, self._spec.output.tensorboard)
            there = [found.info for found in survey(self._layout.checkpoints, self._digest, digests=False)]
            self._checkpointer.known = [c for c in there if c.problem is None and c.step <= self._state.step]
        try:
            return self._train(recorder)
        finally:
            if recorder is not None:
                recorder.close()

    def _restore(self, view: View) -> None:
        """Bring the state to the view's resume point. A state that is there already stays."""
        resume = view.resume
        self._state.forget_gradients()
        self._checkpointer.before_apply()
        if resume.checkpoint is None:
            self._best, self._seconds = Best(), 0.0
            if self._state.step != 0:
                fresh = initialise(self._stage, self._state, self._spec.model)
                if fresh:
                    self._control.emit(EventKind.PREPARING, f"starts at random: {', '.join(fresh)}", progress=self._progress())
            return
        folder = self._layout.checkpoints / Path(resume.checkpoint).name
        manifest = read_manifest(folder)
        self._best, self._seconds = Best(manifest.best_step, manifest.best_accuracy), manifest.seconds
        if self._state.step != manifest.step:
            load_state(folder, self._state)

    def _train(self, recorder: Recorder | None) -> WorkerPhase:
        steps, training = self._batches.steps, self._spec.training
        recent: deque[float] = deque([time.monotonic()], maxlen=1000)
        saved_at = time.monotonic()
        while self._state.step < steps:
            step = self._state.step
            evaluates = self._evaluates(step + 1)

            def decide(due_since: float = saved_at, evaluates: bool = evaluates, step: int = step) -> Decision:
                stop = self._control.draining.is_set() and step + 1 < steps
                # A checkpoint at the end of an epoch waits for the evaluation, whose result it carries.
                due = stop or self._checkpoint_due(step + 1, time.monotonic() - due_since)
                return Decision(snapshot=due and not evaluates, stop=stop and not evaluates)

            losses = self._pipeline.gradients(step)
            commit = agree(self._pipeline, self._state, step, losses, training.max_grad_norm, decide)
            self._checkpointer.before_apply()
            rate = learning_rate(training, step, steps)
            self._optimizer.apply(commit.coefficient, rate)
            now = time.monotonic()
            self._seconds += now - recent[-1]
            recent.append(now)
            while len(recent) > 2 and now - recent[0] > _THROUGHPUT_SECONDS:
                recent.popleft()
            progress = self._progress(commit.loss, rate, commit.grad_norm, recent)
            if recorder is not None:
                recorder.step(progress, time.time())
            self._control.emit(EventKind.COMMITTED, progress=progress)
            decision = commit.decision
            if evaluates:
                decision = self._boundary(recorder, saved_at)
                # An evaluation is no step: throughput starts anew.
                recent.clear()
                recent.append(time.monotonic())
            if decision.snapshot:
                self._snapshot(recorder)
                saved_at = time.monotonic()
            if decision.stop or self._state.step == steps:
                self._await_durable()
            if decision.stop:
                self._leave(EventKind.DRAINED, f"left at step {self._state.step}")
                return WorkerPhase.DRAINED
        return self._finish(recorder)

    def _evaluates(self, committed: int) -> bool:
        """Whether validation runs after ``committed`` steps: at the end of each epoch and of training."""
        ends = committed % self._per_epoch == 0 or committed == self._batches.steps
        return ends and "validation" in self._prepared.splits

    def _checkpoint_due(self, committed: int, seconds: float) -> bool:
        every = self._spec.checkpoint
        if committed == self._batches.steps or self._checkpointer.busy:
            # The last step's checkpoint is always taken, and waited for; any other may be late, never in the way.
            return committed == self._batches.steps
        by_step = every.every_steps is not None and committed % every.every_steps == 0
        return by_step or (every.every_seconds is not None and seconds >= every.every_seconds)

    def _boundary(self, recorder: Recorder | None, saved_at: float) -> Decision:
        """Evaluate, and agree on what to do before the next step."""
        step = self._state.step
        result = self._evaluate("validation", recorder, step)
        if result is None:
            return Decision(**self._pipeline.take(Kind.BOUNDARY, step, 0))
        best = self._best.accuracy is None or result.accuracy > self._best.accuracy
        if best:
            self._best = Best(step, result.accuracy)
        self._control.emit(EventKind.EVALUATED, _summary(result), evaluation=result, best=best)
        stop = self._control.draining.is_set() and step < self._batches.steps
        due = best or stop or self._checkpoint_due(step, time.monotonic() - saved_at)
        decision = Decision(snapshot=due, stop=stop)
        for rank in range(1, self._stages):
            self._pipeline.send(rank, Kind.BOUNDARY, step, payload=vars(decision))
        return decision

    def _evaluate(self, split: str, recorder: Recorder | None, step: int) -> Evaluation | None:
        labels = self._prepared.labels
        ticked = 0.0

        def tick(done: int, count: int) -> None:
            nonlocal ticked
            if time.monotonic() - ticked > 1:
                ticked = time.monotonic()
                self._control.emit(EventKind.PREPARING, progress=self._progress(activity=f"evaluate {split} {done}/{count}"))

        counts = self._pipeline.evaluate(split, step, len(labels), tick)
        if counts is None or recorder is None:
            return None
        result = evaluate_counts(counts.confusion, counts.loss_sum, list(labels), split, step)
        recorder.evaluation(result)
        return result

    def _snapshot(self, recorder: Recorder | None) -> None:
        facts = None
        if recorder is not None:
            step = self._state.step
            accuracy = next((e.accuracy for e in recorder.evaluations if (e.split, e.step) == ("validation", step)), None)
            facts = Facts(
                job=self._job.metadata.name,
                state_digest=self._digest,
                epoch=step / self._per_epoch,
                seconds=self._seconds,
                best=self._best.step == step,
                accuracy=accuracy,
                best_step=self._best.step,
                best_accuracy=self._best.accuracy,
            )
        self._checkpointer.start(self._rank, self._stages, self._patience, facts)

    def _await_durable(self) -> None:
        """Wait until the checkpoint of this step is durable everywhere. Raises RuntimeError when it could not be written."""
        step = self._state.step
        self._checkpointer.wait(self._patience)
        if self._rank != 0:
            problem = self._pipeline.take(Kind.DURABLE, step, 0)
        else:
            self._transport.inbox.check()
            problem = "" if any(c.step == step for c in self._checkpointer.known) else "see the warning before"
        if problem:
            raise RuntimeError(f"the checkpoint of step {step} could not be written: {problem}")

    def _finish(self, recorder: Recorder | None) -> WorkerPhase:
        """All steps are committed and durable: choose the weights, test them, save the model."""
        chosen = self._choose()
        if chosen != self._state.step:
            load_weights(self._layout.checkpoints / checkpoint_name(chosen), self._state)
        if "test" in self._prepared.splits:
            result = self._evaluate("test", recorder, chosen)
            if result is not None:
                self._control.emit(EventKind.EVALUATED, _summary(result), evaluation=result)
        if recorder is None:
            self._pipeline.take(Kind.FINISHED, self._batches.steps, 0)
            self._leave(EventKind.COMPLETED, "rank 0 saved the model")
            return WorkerPhase.COMPLETED
        self._control.emit(EventKind.PREPARING, progress=self._progress(activity="export"))
        results = [e for e in recorder.evaluations if e.step == chosen]
        folder = self._layout.checkpoints / checkpoint_name(chosen)
        export(
            self._layout.model, folder, self._stage.config, self._prepared.tokenizer, self._job.metadata.name, self._spec, results
        )
        # Told to the agent before the others leave: from here on the job has succeeded, whoever dies.
        self._control.emit(EventKind.COMPLETED, f"model of step {chosen} saved in {self._layout.model}")
        for rank in range(1, self._stages):
            self._pipeline.send(rank, Kind.FINISHED, self._batches.steps)
        self._transport.flush(10.0)
        return WorkerPhase.COMPLETED

    def _choose(self) -> int:
        """The step whose weights become the model: rank 0's word."""
        step = self._state.step
        if self._rank != 0:
            return int(self._pipeline.take(Kind.BOUNDARY, step, 0, _CHOICE))
        chosen = step
        if self._spec.output.weights is Weights.BEST and self._best.step is not None:
            # A best checkpoint that could not be written leaves the best of those that could.
            known = self._checkpointer.known
            fallback = max((c.step for c in known if c.best), default=step)
            chosen = self._best.step if any(c.step == self._best.step for c in known) else fallback
            if chosen != self._best.step:
                message = f"the best weights, of step {self._best.step}, have no checkpoint: those of step {chosen} are taken"
                self._control.emit(EventKind.WARNING, message)
        for rank in range(1, self._stages):
            self._pipeline.send(rank, Kind.BOUNDARY, step, _CHOICE, chosen)
        return chosen

    def _leave(self, kind: EventKind, message: str) -> None:
        self._transport.flush(10.0)
        self._control.emit(kind, message)

    def _progress(
        self,
        loss: float | None = None,
        rate: float | None = None,
        norm: float | None = None,
        recent: deque[float] | None = None,
        activity: str = "train",
    ) -> Progress:
        step = max(0, self._state.step)
        speed = None if recent is None or len(recent) < 2 else (len(recent) - 1) / max(1e-9, recent[-1] - recent[0])
        return Progress(
            step=step,
            steps=self._batches.steps,
            epoch=step / self._per_epoch,
            loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            samples_per_second=None if speed is None else speed * self._batches.samples,
            eta_seconds=None if speed is None else (self._batches.steps - step) / speed,
            activity=activity,
        )


def _summary(result: Evaluation) -> str:
    return f"{result.split} of step {result.step}: accuracy {result.accuracy:.4f}, F1 {result.f1:.4f}, loss {result.loss:.4f}"
