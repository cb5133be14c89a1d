"""How a run is told to who waits for it."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lmj import Result
from lmj.progress import Bar, NotebookReporter, Quiet, Relay, reporter
from lmj_api.protocol import Evaluation, Progress
from lmj_api.status import JobStatus, Phase
from lmj_operator.cli.reporter import PlainReporter
from lmj_operator.cli.terminal import TerminalReporter
from lmj_operator.plan import Plan


def plan(step: int) -> Plan:
    return Plan(JobStatus(phase=Phase.RUNNING, progress=Progress(step=step, steps=20, epoch=0.5, loss=0.25)), "")


class Shown:
    """What a notebook has been told to show."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []

    def __call__(self, bar: Bar, *, display_id: bool) -> "Shown":
        assert display_id
        self.bars.append(bar)
        return self

    def update(self, bar: Bar) -> None:
        self.bars.append(bar)


def test_a_notebook_has_one_bar_and_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown))
    told = reporter(True)
    assert isinstance(told, NotebookReporter)
    with told:
        for step in (1, 2, 2):
            told.planned(JobStatus(), plan(step))
        told.say("a <line>")
    assert [repr(bar) for bar in shown.bars] == [f"step {step}/20, epoch 0.50, loss 0.2500" for step in (1, 2)]
    assert Bar(1, 2, "<b>")._repr_html_() == '<progress value="1" max="2"></progress> &lt;b&gt;'
    assert capsys.readouterr().out == "a <line>\n"


@pytest.mark.parametrize(("terminal", "kind"), [(True, TerminalReporter), (False, PlainReporter)])
def test_elsewhere_it_is_as_the_command_does(terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    class Out(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    # IPython in a terminal has no kernel.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    monkeypatch.setattr(sys, "stdout", Out())
    assert isinstance(reporter(True), kind)
    assert isinstance(reporter(False), Quiet)


def test_what_is_relayed_waits_for_who_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    waiting: list[Any] = []
    relay = Relay(PlainReporter(), waiting.append)
    with relay:
        relay.say("--fresh trains it again")
        relay.planned(JobStatus(), plan(3))
        relay.result({}, ["the same command resumes"])
    assert capsys.readouterr().out == ""
    for call in waiting:
        call()
    assert capsys.readouterr().out == "fresh=True trains it again\nstep 3/20, epoch 0.50, loss 0.2500\nthe same call resumes\n"


def test_metrics_are_those_of_the_test_rows() -> None:
    validation = Evaluation(split="validation", step=9, samples=5, loss=0.5, accuracy=0.75, f1=0.5)
    test = Evaluation(split="test", step=9, samples=5, loss=None, mean_absolute_error=2.0)
    assert Result(JobStatus(evaluations=[test, validation])).metrics == {"mean_absolute_error": 2.0}
    assert Result(JobStatus(evaluations=[validation])).metrics == {"loss": 0.5, "accuracy": 0.75, "f1": 0.5}
    assert Result(JobStatus()).metrics == {}
