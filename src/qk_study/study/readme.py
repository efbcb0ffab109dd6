"""README.md of a study: what it is, its models, failures and cautions, commands, and files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from attention_plasticity import __version__
from attention_plasticity.comparison.tables import markdown_table, markdown_text
from attention_plasticity.tables.names import clean
from qk_study.study.figures import DrawnFigures
from qk_study.study.model_table import written_models
from qk_study.study.results import StudyResults
from qk_study.study.steps import StudiedModel
from qk_study.study.study_table import StudyTable
from qk_toolkit.formatting import count

PAGE = "report.html"
_MAIN_TABLES = ("means", "differences", "lengths", "band_shares", "role_shares")
"""Tables of which the README shows the first part, with the figures of the same names."""
_SHOWN_AS = (".png", ".svg")
_WHAT = {
    "model": "captured from {place}, and analysed",
    "dump": "analysed from the dump {place}",
    "run": "read from the finished run {place}",
}


def study_readme(results: StudyResults, tables: Sequence[StudyTable], drawn: DrawnFigures) -> str:
    """The whole file."""
    parts = [
        *_head(results),
        *_results(tables, drawn),
        *_models(results),
        *_failures(results, drawn),
        *_list("Cautions", map(markdown_text, results.cautions)),
        *_commands(results),
        *_tables(tables),
        *_figures(results, drawn),
    ]
    return "\n".join(parts).rstrip() + "\n"


def page_title(results: StudyResults) -> str:
    """The title of the page and of the README."""
    given = results.settings.content.title
    return (
        clean(given)
        if given
        else f"Attention plasticity of {count(len(results.finished), 'model')}"
    )


def _head(results: StudyResults) -> Iterator[str]:
    settings = results.settings
    yield f"# {markdown_text(page_title(results))}\n"
    if settings.content.description.strip():
        yield f"{settings.content.description.strip()}\n"
    yield (
        f"Made with attention-plasticity {__version__} from `{settings.file}`. "
        f"`{PAGE}` shows all heads of all models in a browser, `tables/` has the numbers, "
        "`figures/` the figures with captions, and `study.json` the settings, versions and "
        "fingerprints.\n"
    )


def _results(tables: Sequence[StudyTable], drawn: DrawnFigures) -> Iterator[str]:
    """The main tables and figures; the others are listed below."""
    known = {table.name: table.first_markdown for table in tables}
    figures = {name.rsplit(".", 1)[0]: name for name in drawn.of_study if name.endswith(_SHOWN_AS)}
    found = []
    for name in _MAIN_TABLES:
        if text := known.get(name):
            found.append(text)
        if file := figures.get(name.replace("_", "-")):
            found.append(f"![{name}](figures/{file})\n")
    if found:
        yield "## Results\n"
        yield from found


def _models(results: StudyResults) -> Iterator[str]:
    yield "## Models\n"
    for one in results.models:
        yield f"- {_model_line(one)}"
    yield ""
    if results.finished:
        table = written_models(results)
        yield markdown_table(table)
        yield f"{markdown_text(table.note)}\n"


def _model_line(one: StudiedModel) -> str:
    entry = one.plan.model.entry
    what = _WHAT[entry.source].format(place=f"`{entry.place}`")
    label = f"**{markdown_text(one.plan.label)}**"
    if one.run is None:
        return f"{label}: **failed**, so it is missing in tables and figures"
    heads = count(len(one.run.head_metrics), "head")
    failed = f", {count(one.failed_heads, 'head')} failed" if one.failed_heads else ""
    return f"{label}: {what}; {heads}{failed}"


def _failures(results: StudyResults, drawn: DrawnFigures) -> Iterator[str]:
    """Models, heads and figures that are missing."""
    found = [
        f"{markdown_text(one.plan.label)}: {markdown_text(one.failure)}" for one in results.failed
    ]
    for one in results.models:
        for row in [] if one.run is None else one.run.failures.to_dict("records"):
            head = f"layer {row['layer']}, head {row['q_head']}"
            label, reason = one.plan.label, str(row["reason"])
            found.append(markdown_text(f"{label}, {head}: {reason}"))
    found += [markdown_text(text) for text in drawn.failures]
    yield from _list("Failures", found)


def _list(title: str, items: Iterator[str] | Sequence[str] | map[str]) -> Iterator[str]:
    listed = list(items)
    if listed:
        yield f"## {title}\n"
        yield from (f"- {item}" for item in listed)
        yield ""


def _commands(results: StudyResults) -> Iterator[str]:
    """Every command of the study, and those that repeat its parts."""
    settings = results.settings
    again = ["attention-plasticity", "study", settings.file]
    if "output_dir" in settings.flags:
        again += ["--output_dir", settings.output_dir]
    yield "## Commands\n"
    yield (
        "All paths are relative to the folder in which the study was run. This command makes "
        "everything again that is missing:\n"
    )
    yield from _block([again])
    yield (
        "These commands make single parts. `settings/` has the settings of every capture and "
        "analysis.\n"
    )
    yield from _block(_part_commands(results))
    yield (
        "`compare` writes the tables `differences`, `key_heads` and `notes`, and the figure "
        "`profiles`; the other tables and figures of several models are made by the first command. "
        "The page of `report` also has the time at which each run was finished.\n"
    )


def _part_commands(results: StudyResults) -> Iterator[list[str]]:
    settings = results.settings
    for one in results.models:
        for part in one.plan.parts:
            yield list(part.command)
    form = settings.content.figure_format
    for plan, _ in results.finished:
        figures = f"{settings.output_dir}/figures/{plan.model.folder}"
        words = ["attention-plasticity", "plot", "all", plan.run, "--output_dir", figures]
        yield [*words, *([] if form == "png" else ["--format", form])]
    runs = [plan.run for plan, _ in results.finished]
    labels = f"--labels={','.join(results.labels)}"
    if results.comparison is not None:
        words = ["attention-plasticity", "compare", *runs, labels, "--force"]
        words += [] if form == "png" else ["--figures", form]
        yield [*words, "--output_dir", f"{settings.output_dir}/compare"]
    if runs:
        page = f"{settings.output_dir}/{PAGE}"
        title = ["--title", page_title(results)]
        yield ["attention-plasticity", "report", *runs, labels, *title, "--output", page]


def _block(commands: Iterator[list[str]] | Sequence[list[str]]) -> Iterator[str]:
    yield "```bash"
    yield from (shlex.join(words) for words in commands)
    yield "```\n"


def _tables(tables: Sequence[StudyTable]) -> Iterator[str]:
    lines = []
    for table in tables:
        files = ", ".join(f"`tables/{table.name}.{end}`" for end in table.files)
        lines.append(f"{files}: {markdown_text(table.caption)}")
    yield from _list("Tables", lines)


def _figures(results: StudyResults, drawn: DrawnFigures) -> Iterator[str]:
    lines = [f"`figures/{name}`" for name in drawn.of_study]
    for plan, _ in results.finished:
        names = drawn.of_models.get(plan.model.folder)
        if names:
            listed = ", ".join(f"`{name}`" for name in names)
            folder = f"`figures/{plan.model.folder}/`"
            lines.append(f"{markdown_text(plan.label)}, in {folder}: {listed}")
    yield from _list("Figures", lines)
    if lines:
        yield "The caption of each figure is beside it, in the .txt file of the same name.\n"
    if drawn.left_out:
        yield "Not drawn:\n"
        yield from (f"- {markdown_text(text)}" for text in drawn.left_out)
