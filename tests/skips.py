"""A test that skips has shown nothing: with ``LMJ_NO_SKIPS`` the run fails, but for tests that need a GPU or a machine of a cloud."""

import os

import pytest

ALLOWED = ("tests/gpu/", "tests/cloud/")


class NoSkips:
    """Fails a run in which a test skipped."""

    def __init__(self) -> None:
        self._skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._take(report, wanted=hasattr(report, "wasxfail"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._take(report, wanted=False)

    def _take(self, report: pytest.TestReport | pytest.CollectReport, wanted: bool) -> None:
        if report.skipped and not wanted and not report.nodeid.startswith(ALLOWED):
            self._skipped.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid in self._skipped:
            terminalreporter.write_line(f"SKIPPED, and LMJ_NO_SKIPS does not allow it: {nodeid}", red=True)


def register(config: pytest.Config) -> None:
    """Take part in the run where it is asked for."""
    if os.environ.get("LMJ_NO_SKIPS"):
        config.pluginmanager.register(NoSkips())
