"""Report: collects every finding of an inspection, so that a person repairs all of them at once."""

from collections.abc import Sequence
from typing import Final

from .manifest import Finding

SHOWN: Final = 3
"""Examples named of a problem that many tensors share."""
MOST_FINDINGS: Final = 64
"""A file with thousands of faults gets no report of thousands of lines."""
LONGEST_TEXT: Final = 120


class Report:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    @property
    def failed(self) -> bool:
        return any(finding.level == "fail" for finding in self.findings)

    def fail(self, check: str, message: str, remedy: str | None = None) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(check, "fail", message, remedy))

    def warn(self, check: str, message: str, remedy: str | None = None) -> None:
        self.findings.append(Finding(check, "warn", message, remedy))

    def fail_all(self, check: str, problems: Sequence[str], remedy: str | None = None) -> None:
        """One failure for all `problems` of one sort; nothing when there are none."""
        if problems:
            self.fail(check, enumerate_some(problems), remedy)

    def settle(self, check: str, message: str) -> None:
        """Close a check: `message` says what was found good, unless the check has already failed."""
        if not any(finding.check == check and finding.level == "fail" for finding in self.findings):
            self.findings.append(Finding(check, "pass", message))


def enumerate_some(problems: Sequence[str]) -> str:
    more = len(problems) - SHOWN
    return "; ".join(problems[:SHOWN]) + (f"; and {more} more like these" if more > 0 else "")


def quote(value: object) -> str:
    """A value of the user's for a message: printable ASCII, cut to a readable length."""
    text = ascii(value)
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."
