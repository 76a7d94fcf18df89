"""What preflight found, as it is shown and as it is stored."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. `check` is a stable short name."""

    check: str
    level: Literal["pass", "warn", "fail"]
    message: str
    remedy: str | None = None

    @property
    def sentence(self) -> str:
        """The message and the remedy in one text, with a full stop after it."""
        said = self.message.removesuffix(".")
        if self.remedy:
            said += (". " if self.remedy[0].isupper() else "; ") + self.remedy.removesuffix(".")
        return f"{said}."


class Summary(msgspec.Struct, frozen=True):
    """What the registry records of an adapter that was understood."""

    digest: str
    peft_type: str
    rank: int
    alpha: float
    target_modules: list[str]
    parameters: int
    base_model: str
    invocation_tokens: list[int] = []
    vocab_size: int = 0
    """Tokens that it has rows for; 0: those of the base."""
    probe_tokens: list[int] = []
    """Some whose embeddings or logits it changes itself."""


class Report(msgspec.Struct, frozen=True):
    """`summary` is None when the files could not be understood."""

    findings: list[Finding]
    summary: Summary | None = None

    @property
    def passed(self) -> bool:
        return self.summary is not None and not self.failures

    def with_finding(self, finding: Finding) -> "Report":
        """One that fails stands instead of what the same check found good before."""
        kept = [
            found
            for found in self.findings
            if (found.check, found.level, finding.level) != (finding.check, "pass", "fail")
        ]
        return Report([*kept, finding], self.summary)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "fail"]
