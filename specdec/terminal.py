"""Prints what a run found: the summary table, its notes, where to look next, and the traces of a few generations. Text
of a model is never read as markup, and its control characters are shown as glyphs.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from specdec.analysis.account.verdicts import CAPPED_GEOMETRIC
from specdec.analysis.comparisons import best_gammas, best_in_words
from specdec.analysis.findings.run_findings import RunFindings
from specdec.analysis.findings.run_metrics import printed_metric
from specdec.analysis.intervals import FEWEST, Interval
from specdec.analysis.pages.trace import ENDS, visible, visible_piece
from specdec.analysis.read.facts import Kind, Trace
from specdec.progress import verbose
from specdec.tracking.writer import TrackedRun

_COLUMNS = {  # metric: its heading, which folds where a terminal is narrow, and its number format
    "tokens_per_round": ("tokens per round", ".2f"),
    "tokens_per_round.capped_geometric": ("capped\ngeom.", ".2f"),
    "speedup": ("speedup", ".2f"),
    "speedup.capped_geometric": ("capped\ngeom.", ".2f"),
    "speedup.end_to_end": ("with\nprefill", ".2f"),
    "alpha.mle": ("alpha", ".3f"),
}
_WITHOUT_BOUNDS = ("alpha.mle", "speedup.end_to_end")


def show_run(found: RunFindings, console: Console, folder: Path, tracked: TrackedRun, told: Sequence[str] = ()) -> None:
    """Print the summary table, the sentences that close a run, and where to look next, also in MLflow; with `-v` all
    notes instead, but those that were `told` before, and the addresses of MLflow's pages.
    """
    alpha_of = "each drafter's alpha" if found.beside else f"alpha {found.metrics.get('account/alpha', nan):.3f}"
    measured = "Simulated time: recorded text" if found.facts.simulated else "Measured"
    lines = summary_lines(found)
    signs = {  # what stands in the table: its meaning
        "(–)": f"–: fewer than {FEWEST} prompts have none",
        "*": "* primary",
        "T=": "T: at this temperature",
        "prefill": "with prefill: from end to end",
    }
    printed = " ".join(cell for line in lines for cell in line)
    signs_said = "; ".join(meaning for sign, meaning in signs.items() if sign in printed)
    unclear = {name: best_in_words(each.arms) for name, each in {found.facts.drafter: found, **found.beside}.items()}
    told_apart = "".join(f"; {f'{name}: ' * bool(found.beside)}{words}" for name, words in unclear.items() if words)
    title = f"{measured}{', with a lossy rule,' if not found.facts.lossless else ''} against the capped geometric"
    caption = f"95% prompt-bootstrap intervals; {CAPPED_GEOMETRIC}, {alpha_of} ({found.alpha_source}); {signs_said}"
    print_table(console, lines, title, caption + told_apart)
    notes = [*found.reasons, *(n for n in found.notes if n not in told)] if verbose() else found.closing
    print_lines(console, *notes)
    overlay = tracked.overlay("curve/tokens_per_round") if verbose() else ""
    print_links(console, {"results": from_here(folder), "browse": tracked.shown_link, "overlay": overlay})


def from_here(path: Path) -> str:
    """Return a path as short as it can be given in the working directory; with `-v` the whole of it."""
    here = Path.cwd()
    return str(path if verbose() or not path.is_relative_to(here) else path.relative_to(here))


def summary_lines(found: RunFindings) -> list[list[str]]:
    """Return the cells of the summary table, its headings first: a line for each depth, by drafter where there are
    several, and one for the texts that were sampled beside a greedy run.
    """
    headings = [heading for heading, _ in _COLUMNS.values()]
    if found.facts.simulated:
        headings[2] = f"simulated {headings[2]}"
    lines = [["drafter", found.facts.depth_name, *headings]]
    own = found.facts.drafter
    for name, arms in {own: found.arms, **{key: other.arms for key, other in found.beside.items()}}.items():
        best = best_gammas(arms)[:1] if len(arms) > 1 and not found.refuted else []
        for arm in arms:
            depth = f"{arm['gamma']}{'*' if arm['primary'] else ''}{' best' if arm['gamma'] in best else ''}"
            lines.append([name, depth, *_cells(arm)])
        if name == own and "sampled/speedup" in found.metrics:
            metrics = found.metrics.items()
            sampled = {key.removeprefix("sampled/"): value for key, value in metrics if key.startswith("sampled/")}
            lines.append([name, f"T={sampled['temperature']:g}", *_cells(sampled)])
    return lines if found.beside else [line[1:] for line in lines]


def _cells(metrics: Mapping[str, float]) -> list[str]:
    return [
        f"{Interval(metrics.get(name, nan)):{form}}" if name in _WITHOUT_BOUNDS else printed_metric(metrics, name, form)
        for name, (_, form) in _COLUMNS.items()
    ]


def print_table(console: Console, lines: Sequence[Sequence[str]], title: str, caption: str) -> None:
    """Print a table of headings and lines, whose cells fold between words where the terminal is narrow; where not even
    that fits, a paragraph for each line. No number is ever cut.
    """
    headings, *rows = lines
    whole = [heading.replace("\n", " ") for heading in headings]
    widths = (max(map(cell_len, column)) + 2 for column in zip(whole, *rows, strict=True))
    headings = whole if sum(widths) <= console.width else headings
    table = Table(box=SIMPLE_HEAD, title=title, caption=caption, show_edge=False, pad_edge=False, collapse_padding=True)
    for place, heading in enumerate(headings):
        words = " ".join(line[place] for line in lines).split()
        left = place == 0 and headings[0] == "drafter"
        table.add_column(heading, justify="left" if left else "right", min_width=max(map(cell_len, words)))
    for row in rows:
        table.add_row(*row)
    if Measurement.get(console, console.options.update(width=10_000), table).minimum <= console.width:
        console.print(table)
        return
    print_lines(console, title)
    for row in rows:
        said = [f"{heading} {cell}" for heading, cell in zip(headings, row, strict=True) if cell != "–"]
        print_lines(console, "; ".join(said).replace("\n", " "))
    print_lines(console, caption)


def print_lines(console: Console, *sentences: str) -> None:
    """Print sentences as they are, without markup or colours."""
    for sentence in sentences:
        console.print(sentence, markup=False, highlight=False)


def print_links(console: Console, links: Mapping[str, str]) -> None:
    """Print each link that is there behind its name."""
    for name, link in links.items():
        if link:
            console.print(f"{name + ':':<8} {link}", markup=False, highlight=False, soft_wrap=True)


# Traces -------------------------------------------------------------------------------------------

_SIGNS = {  # the style of a piece, and marks around it that are readable when styles are lost, as in a log file
    Kind.ACCEPTED: ("green underline", "", ""),
    Kind.REJECTED: ("red strike", "✗", ""),
    Kind.CORRECTION: ("bold blue", "«", "»"),
    Kind.BONUS: ("bold cyan", "«+", "»"),
    Kind.PLAIN: ("bold", "«", "»"),
}


def terminal_lines(trace: Trace, width: int = 100) -> Iterator[Text]:
    """Yield the header, then rounds of at most `width` cells, cut from the left so that the newest part shows."""
    yield Text(f"prompt {visible(trace.prompt)} · {visible(trace.summary)}", style="bold")
    digits = len(str(len(trace.lines)))
    for line in trace.lines:
        lead = f"{line.number:>{digits}} {line.accepted:>2}/{line.offered:<2} "
        text = Text().append(visible(line.so_far) + "│", style="dim")
        for piece in line.pieces:
            style, left, right = _SIGNS[piece.kind]
            shown = visible_piece(piece.text)
            space = " " * (shown.startswith(" ") and piece.kind != Kind.ACCEPTED)
            text.append(space + left + shown[len(space) :] + right, style=style)
        if line.unused:
            text.append(f" (+{line.unused})", style="dim")
        if line.end:
            text.append(" " + ENDS.get(line.end, line.end), style="dim")
        room, start = width - cell_len(lead), 0
        if cell_len(text.plain) > room:
            while cell_len(text.plain[start:]) >= room and start < len(text):  # one cell less, for the ellipsis
                start += 1
            text = Text().append("…", style="dim").append_text(text[start:])
        yield Text().append(lead, style="dim").append_text(text)


def print_trace(traces: Sequence[Trace], console: Console, rounds: int | None = None) -> None:
    """Print at most the first `rounds` rounds of each trace, or all of them, behind an explanation of the signs."""
    legend = Text().append("text so far│then ", style="dim")
    signs = {Kind.ACCEPTED: "accepted", Kind.REJECTED: "rejected", Kind.CORRECTION: "correction", Kind.BONUS: "bonus"}
    for kind, word in signs.items():
        style, left, right = _SIGNS[kind]
        legend.append(left + word + right, style=style).append("  ")
    console.print(legend.append("(+n) drafted, not tested; a/n: accepted of n drafted", style="dim"))
    for trace in traces:
        console.print()
        header, *lines = terminal_lines(trace, console.width)
        console.print(header)
        for line in lines[:rounds]:
            console.print(line, no_wrap=True, overflow="crop")
        if rounds is not None and len(lines) > rounds:
            console.print(Text(f"… {len(lines) - rounds} more rounds", style="dim"))
