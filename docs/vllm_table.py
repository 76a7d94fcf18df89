"""The table of vLLM's flags in docs/vllm.md, from the code. Run it after a change of the code: it writes the page."""

from pathlib import Path

from loraplex.web.cli.serve.vllm_arguments import ARGUMENTS, RENAMED
from loraplex.web.settings.settings import Settings

PAGE = Path(__file__).with_name("vllm.md")
BEGIN, END = "<!-- table: docs/vllm_table.py writes it -->\n", "<!-- end of the table -->\n"


def flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"


def table() -> str:
    """All that is not simply ours, grouped by the answer."""
    without_need: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for name, argument in sorted(ARGUMENTS.items()):
        if name not in Settings.model_fields:
            group = without_need if argument.is_without_need else refused
            group.setdefault(argument.why, []).append(flag(name))
    renamed = [f"| {flag(theirs)} | {flag(ours)} |" for theirs, ours in sorted(RENAMED.items())]
    return "\n".join(
        [
            *("| vLLM's | is read as |", "|---|---|", *renamed, ""),
            *("| accepted without effect | since |", "|---|---|", *_rows(without_need), ""),
            *(
                "| refused, but for a value that changes nothing | what to do, or why |",
                "|---|---|",
                *_rows(refused),
                "",
            ),
        ]
    )


def page() -> str:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def _rows(groups: dict[str, list[str]]) -> list[str]:
    return [f"| {' '.join(names)} | {why} |" for why, names in groups.items()]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
