"""A rank's training: what lives as long as the worker, and the run of one view."""

from __future__ import annotations

import logging
import time
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from lmj_api.layout import Layout
from lmj_api.protocol import Evaluation, EventKind, Progress, WorkerPhase
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.data.order import steps_per_epoch
from lmj_trainer.dataset.stored import PreparedRows
from lmj_trainer.follow.source import Source
from lmj_trainer.group.commit import Commit, Decision, Wish, abandon, agree
from lmj_trainer.group.group import Group
from lmj_trainer.own.objective import OwnObjective
from lmj_trainer.own.source import load_own
from lmj_trainer.state.journal import Line
from lmj_trainer.state.learning_rate import learning_rate
from lmj_trainer.state.optimizer import optimizer_of
from lmj_trainer.state.stage_state import Best
from lmj_trainer.store.registry import checkpoints_of
from lmj_trainer.strategy.registry import STRATEGIES
from lmj_trainer.task.registry import TASKS
from lmj_trainer.transport.envelope import Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.checkpointer import Checkpointer
from lmj_trainer.worker.claim import Claimant
from lmj_trainer.worker.ending import Ending
from lmj_trainer.worker.evaluator import Evaluator
from lmj_trainer.worker.fence import Claim
from lmj_trainer.worker.pace import Pace
from lmj_trainer.worker.recorder import Recorder
from lmj_trainer.worker.recut import shares_of
from lmj_trainer.worker.restoring import Restoring
from lmj_trainer.worker.results import Results
from lmj_trainer.worker.saving import Saving
from lmj_trainer.worker.snapshots import MemorySnapshots
from lmj_trainer.worker.step_times import StepTimes
from lmj_trainer.worker.stopping import Stopping

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec, LiveMigrationJob
    from lmj_api.view import Member, Resume, View
    from lmj_trainer.dataset.stored import Prepared
    from lmj_trainer.model.part import Part
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.strategy.step_data import StepData
    from lmj_trainer.task.port import Objective
    from lmj_trainer.transport.port import Transport
    from lmj_trainer.worker.control import Control

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 10.0
_FOLLOWER_PATIENCE = 5.0
"""Seconds for which training waits for a follower that takes next to nothing."""
_UNASKED = Wish(unsent=True)
"""What is taken for everybody's wish until they say otherwise."""


def _objective(spec: JobSpec, prepared: Prepared) -> Objective:
    """That of the job's task, or of its own class."""
    if isinstance(prepared, PreparedRows):
        return OwnObjective(load_own(spec.model))
    return TASKS[spec.model.task].objective(prepared.labels, prepared.splits, spec.training.label_smoothing)


class Trainer:
    """Runs views, one after the other, in one process: what survives a view (state, links) is kept for the next."""

    def __init__(
        self,
        job: LiveMigrationJob,
        rank: int,
        prepared: Prepared,
        batches: StepData,
        stage: Part,
        state: StageState,
        transport: Transport,
        control: Control,
        shelves: tuple[int, int] | None = None,
    ) -> None:
        """``shelves``: the agent's files for snapshots in memory, the own ones and those of another rank; None: they end with this process."""
        spec = job.spec
        self._job, self._spec, self._rank = job, spec, rank
        self._batches, self._state = batches, state
        self._transport, self._control = transport, control
        self._layout = Layout.of(spec)
        self.optimizer = optimizer_of(state, spec.training)
        # Shorter than what counts as a hang, so that the rank that waits says for which, and only that one is restarted.
        self._patience = 0.9 * spec.recovery.hang_timeout_seconds
        self._group = Group(transport, rank, spec.topology, self._patience)
        objective = _objective(spec, prepared)
        self.strategy = STRATEGIES[spec.strategy](stage, state, self._group, batches, objective)
        digest = state_digest(spec)
        owner = Owner(job.metadata.name, digest, job.metadata.run)
        self._claimant = Claimant(job, self._warn)
        root, kept = checkpoints_of(spec), spec.checkpoint
        self._checkpointer = Checkpointer(root, kept, state, transport, control, owner, self._before_commit)
        self._pace = Pace(batches.steps, steps_per_epoch(batches.rows, spec.training), batches.samples)
        self._times = StepTimes()
        training = spec.training
        every, metric = training.eval_steps, training.metric_for_best_model
        self._evaluator = Evaluator(prepared.splits, self.strategy, objective, control, self._pace, every, metric)
        self._stopping = Stopping(training.early_stopping)
        self._saving = Saving(job, owner, state, self._group, self._checkpointer, control, self._pace, self._patience)
        self._ending = Ending(job, prepared, stage, state, self._group, self._checkpointer, control, self._pace)
        every = spec.recovery.memory_snapshot.every_steps if spec.recovery.memory_snapshot is not None else None
        self.snapshots = MemorySnapshots(every, rank, spec.topology, state, transport, shelves, self._patience, self._warn)
        self._recorder = self._new_recorder() if spec.topology.stage(rank) == 0 else None
        self._asked = _UNASKED
        """On the leader: what anybody needs at a boundary, once its evaluation is over."""
        # The others wait for this rank meanwhile.
        patience, longest = min(_FOLLOWER_PATIENCE, self._patience / 4), self._patience / 2
        bandwidth = spec.migration.bandwidth_mbps
        self._source = Source(transport, state, self._let_go, patience, longest, bandwidth, lambda: self._times.whole)
        control.on_follower(self._follow)
        control.on_recut(lambda recut: self._source.recut(shares_of(recut, stage, state)))
        self._restoring = Restoring(
            spec, rank, stage, state, self._source, self.snapshots, self._checkpointer, self._saving, control, self._pace
        )
        self._paused: float | None = None
        """Seconds from this process's last update to the view's first batch, until they are told."""
        self.replaced = False
        """Who followed this rank has taken its place: what is here counts only where that is lost."""
        # A worker before this one may have died within the update.
        self.optimizer.apply()

    def _new_recorder(self) -> Recorder:
        """For a rank that may lead."""
        board, results = self._spec.output.tensorboard, Results.of(self._spec)
        return Recorder(self._layout, self._state.journal, tensorboard=board, warn=self._warn, results=results)

    def run(self, view: View) -> WorkerPhase:
        """Train as a member of ``view`` to the end (COMPLETED) or until drained (DRAINED). Raises ViewBrokenError when the view breaks."""
        self.settle()
        self.replaced = False
        self._group.enter(view.topology(self._spec.pipeline.stages))
        self.snapshots.join(view.number)
        self._transport.join(view.number, self._rank, {m.rank: m.address for m in view.members if m.rank != self._rank})
        self._asked = _UNASKED
        self._batches.expect(view.resume.step)  # beside what it takes to get to that step
        updated = self.optimizer.taken
        self._restoring.restore(view)
        self._control.emit(EventKind.JOINED, view.reason, view=view.number, progress=self._pace.at(view.resume.step))
        recorder = self._recorder if self._group.leads else None
        if recorder is not None:
            self._claimant.claim()
            recorder.begin(Claim(run=self._job.metadata.run, view=view.number, pod=view.members[0].pod), view.resume.step)
        try:
            if recorder is not None:
                recorder.check()
                self._checkpointer.begin(self._saving.look(view.resume.step))
            decision = self._resume(view.resume, recorder, updated)
            self.snapshots.begin()
            log.info(
                "view %d trains from step %d on; its update took %.4f s", view.number, view.resume.step, self.optimizer.seconds
            )
            return self._train(recorder, decision)
        finally:
            if recorder is not None:
                recorder.end()

    def _before_commit(self) -> None:
        """What a checkpoint must not be without, on rank 0: the record of whose it is, and where results outlive no machine those up to it."""
        self._claimant.ensure()
        if self._recorder is not None:
            self._recorder.push()

    def _warn(self, message: str) -> None:
        self._control.emit(EventKind.WARNING, message)

    def _resume(self, resume: Resume, recorder: Recorder | None, updated: float | None) -> Decision:
        """Bring all ranks to the step, and do what its boundary lacks: a state in memory may be of any moment after its commit.

        ``updated``: when this process made its last update, on the monotonic clock.
        """
        state, step = self._state, resume.step
        # Nothing trains, and rank 0 may wait for all parts of it.
        self._checkpointer.hurry()
        # The rank that the view names has the step for certain; rank 0, if it is another, may be one behind it.
        if resume.told_by == self._rank != self._group.leader:
            self._group.send(self._group.leader, Kind.TOLD, step, payload={"committed": state.committed, "line": state.line})
        if recorder is None:
            word = self._group.take(Kind.RESUME, step)
            if not word["evaluates"]:
                # One that died may have told it to some alone, and any may lead the next view.
                state.best, state.evaluated = Best(*word["best"]), word["evaluated"]
                self._end(step)
        else:
            committed, line = state.committed, state.line
            if resume.told_by != self._group.leader:
                word = self._group.take(Kind.TOLD, step, resume.told_by)
                committed, line = word["committed"], word["line"]
            # The rank 0 that committed it may have died before it could record it, or its disk died with it.
            told = Progress.model_validate_json(line) if line is not None else None
            progress = told if told is not None and told.step == step else None
            lacks = recorder.lacks(step if progress is None else step - 1)
            evaluates = self._evaluator.due(step) and state.evaluated != step
            best = state.best.step == step and not evaluates
            if best:
                # Of the view that broke: another try would be of the same, and a best one that is lost is lost for good.
                self._checkpointer.settle()
            if not evaluates:
                self._end(step)
            due = step > 0 and not evaluates and (self._saving.due(step) or (best and not self._checkpointer.busy))
            # Only then: which are known is still looked for, and training waits for no storage.
            checkpoint = due and not any(c.step == step for c in self._checkpointer.known)
            word = {"committed": committed, "evaluates": evaluates, "checkpoint": checkpoint, "lacks": lacks}
            word |= {"best": astuple(state.best), "evaluated": state.evaluated}
            self._group.tell(Kind.RESUME, step, payload=word)
        if word["lacks"]:
            self._share_journal(step)
        if recorder is not None and progress is not None:
            # Not before: lines are written in order, and those before it may have come of the others.
            recorder.step(progress, time.time())
        if state.step == step:
            # First: what is being sent must not be the zeros of what is forgotten.
            self._source.forgotten()
            state.forget_gradients()
        else:
            number, coefficient, rate = word["committed"]
            if number != step:
                raise RuntimeError(f"step {step} is to be taken, but the commit that was told is of step {number}")
            self._source.committed(coefficient, rate, None, first=False)
            state.commit(coefficient, rate)
            self._take_step()
        self._pace.begin()
        self._times.begin()
        # By one clock. What the boundary lacked would have taken its time without another view, too.
        self._paused = time.monotonic() - updated if updated is not None else None
        return self._boundary(recorder) if word["evaluates"] else Decision(checkpoint=word["checkpoint"])

    def _end(self, step: int) -> None:
        """Have training end at the boundary of ``step``, if what evaluations have said up to there is a reason."""
        self._pace.ends(step, self._stopping.why(self._state.best))

    def _share_journal(self, step: int) -> None:
        """Have rank 0 know what the others know of what is to be recorded: its predecessor could not, and died or moved."""
        journal = self._state.journal
        if not self._group.leads:
            told = [e.to_json() for e in journal.evaluations()]
            self._group.send(
                self._group.leader,
                Kind.LINES,
                step,
                payload={"lines": [tuple(line) for line in journal.lines()], "evaluations": told},
            )
            return
        for rank in self._group.others:
            word = self._group.take(Kind.LINES, step, rank)
            evaluations = [Evaluation.model_validate_json(text) for text in word["evaluations"]]
            journal.merge((Line(*line) for line in word["lines"]), evaluations)

    @property
    def _hands_over(self) -> bool:
        """Whether this rank's followers take over at the next boundary."""
        return self._control.handover >= self._transport.inbox.view and self._source.in_sync

    @property
    def _pauses(self) -> bool:
        """Whether all are to leave the view at the next boundary, because the next one has fewer members."""
        return self._control.pause >= self._transport.inbox.view

    def settle(self) -> None:
        """Make the update of a step at whose boundary this rank left its view, or the one that it followed, if that is not made yet."""
        if self._state.lacks_update:
            self._take_step()

    def _take_step(self) -> None:
        """Make the update of the committed step."""
        self._checkpointer.before_apply()
        self.snapshots.before_apply()
        with self._source.changing():
            self.optimizer.apply()

    def _follow(self, member: Member | None) -> None:
        """Have ``member`` follow; None: nobody. One of another rank joins the view, and has time; one of this rank takes its place."""
        gentle = member is not None and member.rank != self._rank
        self._source.follow(member.address if member is not None else None, gentle=gentle)

    def _let_go(self, address: str, reason: str) -> None:
        self._control.emit(EventKind.FOLLOWER_LOST, f"the follower was let go: {reason}", address=address)

    def _train(self, recorder: Recorder | None, decision: Decision) -> WorkerPhase:
        """From boundary to boundary; ``decision``: what is done at the first."""
        while True:
            last = self._state.step == self._pace.last
            if decision.checkpoint:
                awaited = decision.stop or last
                self.snapshots.release()
                self._saving.start(recorder, awaited=awaited)
                if awaited:
                    self._saving.await_durable(recorder)
            if decision.snapshot:
                self.snapshots.take(self._checkpointer.copied if decision.checkpoint else None)
            if decision.stop:
                self._transport.flush(_FLUSH_SECONDS)
                if not self._control.draining.is_set():
                    # It was another who had to leave: this process stays, with all that it has.
                    raise ViewBrokenError(f"a member left at step {self._state.step}")
                self._control.emit(EventKind.DRAINED, f"left at step {self._state.step}")
                return WorkerPhase.DRAINED
            if decision.pause:
                if self._hands_over:
                    if recorder is not None:
                        recorder.leave()
                    self._source.hand_over()
                    self.replaced = True
                    self._control.emit(EventKind.FOLLOWER_LOST, f"those that follow take over at step {self._state.reached}")
                raise ViewBrokenError(f"the next view has other members, from step {self._state.reached} on")
            if last:
                self._ending.run(self._evaluator.test, recorder)
                return WorkerPhase.COMPLETED
            self._source.boundary()
            decision = self._step(recorder)

    def _step(self, recorder: Recorder | None) -> Decision:
        """One step, with the evaluation after it when there is one. Returns what is to be done at the boundary."""
        state, training, steps = self._state, self._spec.training, self._batches.steps
        committed = state.step + 1
        evaluates = self._evaluator.due(committed)
        rate = learning_rate(training, state.step, steps)
        progress = self._pace.at(state.step)

        def decide(wish: Wish) -> Decision:
            if not evaluates:
                return self._decision(committed, wish)
            # That comes first. A checkpoint at the end of an epoch waits for its result, which it carries.
            self._asked = wish
            return Decision(recorded=state.journal.recorded)

        def decided(commit: Commit) -> None:
            nonlocal progress
            progress = self._decided(commit, rate, recorder)

        def recorded() -> None:
            if recorder is not None:
                recorder.step(progress, time.time())

        state.dirty = True
        limit, waited, begun = training.max_grad_norm, self._group.waited, time.monotonic()
        kept, source = self.snapshots, self._source
        try:
            losses = self.strategy.gradients(state.step, source.final if source.follows else None)
            wish = Wish(self._control.draining.is_set(), self._hands_over or self._pauses, kept.unsent, kept.empty)
            commit = agree(
                self._group,
                state,
                losses,
                self.strategy.whole,
                limit,
                rate,
                decide,
                decided,
                recorded,
                source.prepared,
                source.abandoned,
                wish,
            )
        except ViewBrokenError:
            if self._group.leads:
                abandon(self._group, state.step)
            source.abandoned()
            raise
        if not commit.decision.pause:  # else it is made while the next view is: see settle
            self._take_step()
        self._stepped(progress, time.monotonic() - begun, self._group.waited - waited)
        if not evaluates:
            return commit.decision
        decision = self._boundary(recorder)
        # An evaluation is no step: throughput starts again.
        self._pace.begin()
        return decision

    def _stepped(self, progress: Progress, took: float, waited: float) -> None:
        """Report the step, which is done: seconds in all, and those of them that it waited for others; and where states are beside it."""
        self._times.add(self.strategy.compute_seconds, waited, took)
        self._source.stepped(took)
        times: dict[str, Any] = {"compute_seconds": self._times.compute, "waiting_seconds": self._times.waiting}
        where: dict[str, Any] = {"snapshots": self.snapshots.news(), "saving": self._checkpointer.saving}
        self._control.emit(EventKind.COMMITTED, progress=progress, paused_seconds=self._paused, **times, **where)
        self._paused = None

    def _decided(self, commit: Commit, rate: float, recorder: Recorder | None) -> Progress:
        """Before anybody can see the ``commit`` of the state's next step: have what is to be recorded of it known here, and where this rank's
        state is copied to.
        """
        state, committed = self._state, self._state.step + 1
        if recorder is not None:
            recorder.check()
        replicas = len(self._group.topology.present) if self._batches.shards > 1 else None
        progress, took = self._pace.committed(committed, commit, rate, replicas)
        state.seconds += took
        line = state.line = progress.to_json()
        # What is recorded must not be lost with this pod.
        last = commit.decision.pause and self._hands_over
        self._source.committed(commit.coefficient, rate, line, first=recorder is not None, last=last)
        if recorder is None:
            state.journal.settle(commit.decision.recorded)
            state.journal.add(Line(committed, line, time.time()))
        return progress

    def _decision(self, step: int, wish: Wish, *, best: bool = False) -> Decision:
        """On rank 0: what is done at the boundary of ``step``. ``wish``: what anybody needs; ``best``: its weights are the best so far."""
        more = step < self._pace.last
        stop = wish.stop and more
        # A checkpoint that is being written gets its time: with its view it would be given up, and the best is never written again.
        pause = wish.pause and more and not stop and not self._checkpointer.promising
        due = self._saving.due(step) or best
        # One that is due where all leave is not begun: the next view does that first. The last step's is waited for: no snapshot beside it.
        snapshot = more and not stop and not pause and not wish.unsent and (wish.without_snapshot or self.snapshots.due(step))
        recorded = self._state.journal.recorded
        return Decision(checkpoint=stop or (due and not pause), snapshot=snapshot, stop=stop, pause=pause, recorded=recorded)

    def _boundary(self, recorder: Recorder | None) -> Decision:
        """Evaluate, and agree on what to do before the next step."""
        step = self._state.step
        result = self._evaluator.run("validation", recorder, step)
        if result is None:
            word = self._group.take(Kind.BOUNDARY, step)
            decision = Decision(**word["decision"])
            self._state.journal.evaluated(Evaluation.model_validate_json(word["evaluation"]))
            self._state.journal.settle(decision.recorded)
            # Whichever rank leads the next view.
            self._state.best, self._state.evaluated = Best(*word["best"]), step
            self._end(step)
            return decision
        self._state.best = self._stopping.judged(self._state.best, step, result.score)
        self._state.evaluated = step
        best = self._state.best.step == step
        self._evaluator.report(result, best)
        self._end(step)
        asked, self._asked = self._asked, _UNASKED
        decision = self._decision(step, asked | Wish(stop=self._control.draining.is_set()), best=best)
        self._group.tell(
            Kind.BOUNDARY,
            step,
            payload={
                "decision": vars(decision),
                "evaluation": result.to_json(),
                "best": astuple(self._state.best),
            },
        )
        return decision
