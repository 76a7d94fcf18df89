"""A parity certificate as the pages show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loraplex.engine.certify.certificate import Certificate, Figures, runtime_words
from loraplex.registry.adapters.views import Adapter, Version

from ...certificates.standing import Standing
from ...units import age_words, count_words, percent_words, span_words

TONES: Final = {"none": "", "waiting": "warn", "running": "warn", "failed": "bad", "valid": "good", "outdated": "warn"}
WORDS: Final = {
    "none": "Not measured",
    "waiting": "Waiting",
    "failed": "Failed",
    "valid": "Valid",
    "outdated": "Out of date",
}
"""Of each state but `running`, which says how far it is."""


@dataclass(frozen=True, slots=True)
class CertificatePlace:
    """Where it stands: its title, the path of the page, the one to ask for it, and the command that does so.

    `also`: which other part of the page shows its figures; `rule`: what the operator asks of it, in words.
    """

    title: str
    page: str
    ask: str
    command: str
    also: str = ""
    rule: str = ""


OF_THE_BASE: Final = CertificatePlace("Parity certificate of the base", "/", "/certify", "loraplex certify")


@dataclass(frozen=True, slots=True)
class FigureRow:
    """What one way of storing costs, in words."""

    label: str
    agreement: str
    mean_kl: str
    max_kl: str
    perplexity: str
    delta: str


@dataclass(frozen=True, slots=True)
class CertificateView:
    """`busy`: the page looks again by itself. `cause` of a failure is for the operator. `covers` and `origin` are empty
    without a certificate."""

    place: CertificatePlace
    state: str
    words: str
    tone: str
    busy: bool
    share: int
    problem: str | None
    cause: str | None
    obstacle: str | None
    changes: Sequence[str]
    rows: Sequence[FigureRow]
    covers: str
    origin: str
    digest: str


def version_certificate(
    adapter: Adapter, version: Version, standing: Standing, min_agreement: float | None
) -> CertificateView:
    """Of one version, on the adapter's page. `min_agreement`: what an alias asks for, None for nothing."""
    path = f"/adapters/{adapter.name}"
    least = None if min_agreement is None else percent_words(min_agreement, 2)
    place = CertificatePlace(
        title="Parity certificate",
        page=path,
        ask=f"{path}@{version.number}/certify",
        command=f"loraplex certify {adapter.name}@{version.number}",
        also="#versions",
        rule="" if least is None else f"Aliases can only point to versions with at least {least}.",
    )
    return certificate_view(standing, place)


def certificate_view(standing: Standing, place: CertificatePlace = OF_THE_BASE) -> CertificateView:
    state, attempt, certificate = standing.state, standing.attempt, standing.certificate
    share = round(100 * attempt.progress) if attempt is not None and state == "running" else 0
    return CertificateView(
        place=place,
        state=state,
        words=_words(state, share),
        tone=TONES[state],
        busy=state in ("waiting", "running"),
        share=share,
        problem=attempt.problem if attempt is not None and state == "failed" else None,
        cause=attempt.cause if attempt is not None and state == "failed" else None,
        obstacle=standing.obstacle,
        changes=standing.changes,
        rows=() if certificate is None else _rows(certificate),
        covers="" if certificate is None else _covers(certificate),
        origin="" if certificate is None else _origin(standing, certificate),
        digest="" if certificate is None else certificate.coverage.digest(),
    )


def agreement_words(standing: Standing) -> tuple[str, str]:
    """The figure that promotion looks at, or how it stands without one, and a tone."""
    if standing.certificate is not None and standing.valid:
        return _percent(standing.certificate.both.top1_agreement), TONES["valid"]
    return _words(standing.state, 0), TONES[standing.state]


def _words(state: str, share: int) -> str:
    return WORDS.get(state, f"Measuring, {share} %")


def _rows(certificate: Certificate) -> list[FigureRow]:
    parts = (
        ("Weights only", certificate.weights),
        ("KV cache only", certificate.kv_cache),
        ("Both, as served", certificate.both),
    )
    return [_row(label, figures) for label, figures in parts]


def _row(label: str, figures: Figures) -> FigureRow:
    return FigureRow(
        label=label,
        agreement=_percent(figures.top1_agreement),
        mean_kl=_small(figures.mean_kl),
        max_kl=_small(figures.max_kl),
        perplexity=f"{figures.perplexity:,.3f}",
        delta=f"{figures.perplexity_delta:+,.4f}",
    )


def _covers(certificate: Certificate) -> str:
    """What was served, in words."""
    coverage = certificate.coverage
    weights = coverage.quantization or "unquantized weights"
    computed = f"computed by {coverage.arithmetic}; {runtime_words(coverage.runtime)}; loraplex {coverage.version}"
    parts = weights, f"KV cache in {coverage.kv_cache_dtype}", coverage.positions, computed
    return "; ".join(filter(None, parts))


def _origin(standing: Standing, certificate: Certificate) -> str:
    """On what it was measured, and when."""
    ended = standing.shown and standing.shown.ended_at
    prompts, tokens = count_words(certificate.num_prompts, "prompt"), count_words(certificate.num_tokens, "token")
    when = f" {age_words(ended)}" if ended else ""
    return (
        f"Measured{when} in {span_words(certificate.seconds)}, on {prompts} with {tokens}, where the unquantized "
        f"reference has a perplexity of {certificate.reference_perplexity:,.3f}."
    )


def _percent(share: float) -> str:
    """Rounded down, so that 100 % is said of all tokens only."""
    return f"{int(share * 10_000) / 100:.2f} %"


def _small(value: float) -> str:
    return f"{value:.2g}" if 0 < value < 0.001 else f"{value:.4f}"
