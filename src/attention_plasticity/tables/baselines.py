"""Baselines of a run: small runs of the same model with random weights or with shuffled tokens.

`study --baselines` makes them in `RUN/baseline/<name>`, each with its dump. There are several draws
of random weights, because plasticity differs between draws by more than between texts. A file
beside them records of which capture they are. Baselines with other settings than the run are not
used: their values cannot be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from attention_plasticity.metrics import DROP_DISTANCE, DROP_POSITION, METRICS, PHASE
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.intervals import MeasuredHeads, half_width, mean_over_heads
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, PlasticityColumns
from attention_plasticity.tables.run_info import RUN_FILE, read_run_info
from qk_dump.manifest import json_text, plan_difference
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import read_json, write_text
from qk_toolkit.formatting import count

RANDOM, SHUFFLED = "random", "shuffled"
BASELINES = {RANDOM: "random weights", SHUFFLED: "shuffled tokens"}
"""The kinds of baselines, and what they are."""
FOLDER = "baseline"
DUMP_FOLDER = "dump"
_FILE = "baseline.json"
_SAME_SETTINGS = (*("pair_sampling", "query_model", "max_rel_dist", "single_example"),)
"""Settings of the analysis that decide which quantity the values are."""


@dataclass(frozen=True)
class Baseline:
    """A finished baseline of a run."""

    kind: str
    draw: int
    folder: Path
    info: dict[str, Any]  # its run.json
    differs: str | None  # the setting that is another one than that of the run

    @property
    def fits(self) -> bool:
        """Whether it has the capture and the settings of the run."""
        return self.differs is None

    @property
    def words(self) -> str:
        """`random weights` or `shuffled tokens`."""
        return BASELINES[self.kind]

    @property
    def texts(self) -> int:
        """Number of texts; 0 if it is not known."""
        return int(((self.info.get("input") or {}).get("texts") or {}).get("count") or 0)


def baseline_name(kind: str, draw: int) -> str:
    """The name of the folder of a draw: `random`, `random-1`, `random-2`, `shuffled`."""
    return f"{kind}-{draw}" if draw else kind


def baseline_words(kind: str, draw: int) -> str:
    """A draw for messages: `random weights, draw 1` or `shuffled tokens`."""
    return f"{BASELINES[kind]}, draw {draw + 1}" if kind == RANDOM else BASELINES[kind]


def baseline_folder(run: Path, name: str) -> Path:
    """The folder of a baseline of the run in a folder."""
    return run / FOLDER / name


def baselines_of(run: Path, info: Mapping[str, Any]) -> list[Baseline]:
    """The finished baselines of the run in a folder, by kind and draw. `info` is its run.json."""
    of_capture = _recorded_capture(run)
    if of_capture is None:
        return []
    found = []
    for kind, draw in _draws(run):
        folder = baseline_folder(run, baseline_name(kind, draw))
        try:
            own = read_run_info(folder / RUN_FILE)
        except FileNotFoundError:
            continue
        differs = plan_difference(of_capture, capture_of(info)) or _other_setting(info, own)
        found.append(Baseline(kind, draw, folder, own, differs))
    return found


def _draws(run: Path) -> list[tuple[str, int]]:
    """The kinds and draws that have a folder."""
    found = []
    for path in (run / FOLDER).iterdir():
        kind, _, draw = path.name.partition("-")
        if kind in BASELINES and path.is_dir() and (not draw or draw.isdecimal()):
            found.append((list(BASELINES).index(kind), int(draw or 0)))
    return [(list(BASELINES)[kind], draw) for kind, draw in sorted(found)]


def record_capture(run: Path, info: Mapping[str, Any]) -> None:
    """Record of which capture the baselines of a run are.

    Raises a `ConfigError` if there are baselines of another capture.
    """
    file, capture = run / FOLDER / _FILE, capture_of(info)
    recorded = _recorded_capture(run)
    difference = None if recorded is None else plan_difference(recorded, capture)
    if difference is not None:
        raise ConfigError(
            f"{file.parent}: holds baselines of another capture, which differs in {difference}; "
            "move this folder away to make baselines of this capture"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json_text({"capture": capture}))


def _recorded_capture(run: Path) -> dict[str, Any] | None:
    """The capture of which the baselines of a run are; None if it is not recorded."""
    try:
        return dict(read_json(run / FOLDER / _FILE)["capture"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def capture_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the capture of a run; empty if they are not known."""
    dump = (info.get("input") or {}).get("dump") or {}
    return dict(dump.get("capture") or {})


def _other_setting(run: Mapping[str, Any], baseline: Mapping[str, Any]) -> str | None:
    """The first setting of the analysis of a baseline that is not that of its run."""
    ours, theirs = (
        {name: (info.get("config") or {}).get(name) for name in _SAME_SETTINGS}
        | {"bin_size": info.get("bin_size"), "not_analysed": info.get("not_analysed") or []}
        for info in (run, baseline)
    )
    if ours["bin_size"] is None:
        ours["bin_size"] = theirs["bin_size"]
    return plan_difference(theirs, ours)


@dataclass(frozen=True)
class Level:
    """A mean over heads of a run or of all draws of a baseline, or a difference of two of them."""

    value: float
    standard_error: float  # NaN if it is not known
    freedom: float
    heads: int = 0
    draws: tuple[float, ...] = ()  # the mean of each draw

    @property
    def half(self) -> float:
        """Half of the 95 % interval; NaN if it is not known."""
        return float(half_width(self.standard_error, self.freedom + 1.0))


def level_of(means: Sequence[MeanEstimate | Level]) -> Level:
    """The mean of one run, or of several draws.

    Draws have the same texts. So the squared error of their mean is that over texts, as a mean over
    draws, and the variance between draws divided by their number. The degrees of freedom are
    Satterthwaite's.
    """
    values = [mean.value for mean in means]
    heads = min((mean.heads for mean in means), default=0)
    value = math.fsum(values) / len(values) if values else math.nan
    texts = math.fsum(mean.standard_error**2 for mean in means) / max(1, len(means))
    freedom = min((mean.freedom for mean in means), default=math.nan)
    between, parts = 0.0, [(texts, freedom)]
    if len(values) > 1:
        spread = math.fsum((one - value) ** 2 for one in values) / (len(values) - 1)
        between = spread / len(values)
        parts.append((between, len(values) - 1.0))
    return Level(value, math.sqrt(texts + between), satterthwaite(parts), heads, tuple(values))


def level_difference(one: Level, other: Level) -> Level:
    """`one` minus `other`, taken as independent: their texts differ in number."""
    parts = [(level.standard_error**2, level.freedom) for level in (one, other)]
    error = math.sqrt(math.fsum(variance for variance, _ in parts))
    return Level(one.value - other.value, error, satterthwaite(parts), min(one.heads, other.heads))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """The degrees of freedom of a sum of variances, each with its own."""
    total = math.fsum(variance for variance, _ in parts)
    if not total > 0.0:
        return min((freedom for _, freedom in parts), default=math.nan)
    shares = [(variance / total) ** 2 / freedom for variance, freedom in parts if variance > 0.0]
    return 1.0 / math.fsum(shares)


class WithBaselines(MeasuredHeads, Protocol):
    """A run, and the draws of its baselines."""

    @property
    def folder(self) -> Path:
        """The folder of the run."""

    @property
    def info(self) -> dict[str, Any]:
        """Its run.json."""

    @property
    def baselines(self) -> Mapping[str, Sequence[MeasuredHeads]]:
        """The draws of each baseline that can be compared with the run, by words."""


def levels(run: WithBaselines, columns: Iterable[str]) -> dict[str, dict[str, Level]]:
    """Means over heads by column: those of the run (`""`), and of its baselines by their words.

    A baseline is left out where one of its draws does not have the column.
    """
    draws = {"": [run], **run.baselines}
    found: dict[str, dict[str, Level]] = {}
    for column in columns:
        known = {
            name: level_of([mean_over_heads(one, column) for one in own])
            for name, own in draws.items()
            if all(column in one.head_metrics for one in own)
        }
        found[column] = {name: level for name, level in known.items() if level.heads}
    return found


def baseline_lines(run: WithBaselines, shown: PlasticityColumns) -> list[str]:
    """One line per kind of baseline of a run, and one about its drop from position.

    An error becomes a line.
    """
    if not (run.folder / FOLDER).is_dir():
        return []
    words = {shown.level: ""}
    if shown is AT_ONE_POSITION:
        words |= {DROP_POSITION: ", drop from position ", DROP_DISTANCE: ", from distance "}
        words |= {PHASE: ", rotary phase "}
    try:
        found = baselines_of(run.folder, run.info)
        known = levels(run, words)
    except (ToolkitError, OSError) as error:
        show_traceback(error)
        return [f"baselines: {error}"]
    lines = [
        f"{name}: {_values(name, words, known)}; {_counts(name, found)}"
        for name in BASELINES.values()
        if name in known[shown.level]
    ]
    return lines + _drop_lines(known.get(DROP_POSITION, {})) + _not_shown(run.folder, found)


def _values(name: str, words: Mapping[str, str], levels: Mapping[str, Mapping[str, Level]]) -> str:
    """The means of a baseline in one line; ± is half of a 95 % interval."""
    text = ""
    for column, word in words.items():
        level = levels[column].get(name)
        if level is not None:
            text += word + METRICS[column].show_half(level.value, level.half)
    return text


def _counts(name: str, found: Sequence[Baseline]) -> str:
    """How many heads, texts and draws are behind the means of a kind of baseline."""
    own = [one for one in found if one.fits and one.words == name]
    heads = (own[0].info.get("heads") or {}).get("analysed") or 0
    texts = f", {count(own[0].texts, 'text')}" if own[0].texts else ""
    return f"baseline, {count(heads, 'head')}{texts}{_draws_text(name, len(own))}"


def _draws_text(name: str, number: int) -> str:
    if name != BASELINES[RANDOM]:
        return ""
    if number > 1:
        return f", {number} draws; ± has the error between draws"
    return ", 1 draw; ± does not have the error between draws"


def _drop_lines(drops: Mapping[str, Level]) -> list[str]:
    """Whether the drop of a run at equal distances differs from that of shuffled tokens."""
    if not {"", BASELINES[SHUFFLED]} <= drops.keys():
        return []
    found = level_difference(drops[""], drops[BASELINES[SHUFFLED]])
    number = METRICS[DROP_POSITION].show_half(found.value, found.half)
    text = f"drop from position minus that of shuffled tokens: {number}"
    if math.isnan(found.half):
        return [f"{text}; its error is not known"]
    if abs(found.value) > found.half:
        return [f"{text}: the order of tokens changes it"]
    return [f"{text}: it is not shown that it comes from content"]


def _not_shown(run: Path, found: Sequence[Baseline]) -> list[str]:
    """A line about baselines of other settings, which cannot be compared with the run."""
    other = [one for one in found if not one.fits]
    if not other:
        return []
    words = " and ".join(dict.fromkeys(one.words for one in other))
    return [
        f"baselines with {words}: made with other settings, not shown: {other[0].differs}; "
        f"attention-plasticity study {run} --baselines makes them with those of the run"
    ]
