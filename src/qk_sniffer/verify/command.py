"""The command `verify`: check captured queries and keys against the model's attention."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from qk_sniffer.config import Dtype, ModelSettings, ModelSource, TokenizerSettings
from qk_sniffer.extras import capture_extra
from qk_toolkit.command_line import allow_closed_stdout, command_parser, guarded
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import add_flags, flags_of_places, parse_flags
from qk_toolkit.formatting import index_ranges
from qk_toolkit.settings import Indices, settings_from

if TYPE_CHECKING:
    from qk_sniffer.engines.engine import LayerFacts
    from qk_sniffer.verify.comparison import LayerCheck, Verification

_PROGRAM = "attention-plasticity verify"
_DESCRIPTION = """\
Check that a capture gets the queries and keys that the model's attention uses. One text is run with
eager attention, and every query and key is kept as in a capture (after RoPE). The attention weights
are recomputed from them and compared with the model's weights in every layer, and so are the
attention columns of a capture (log-sum-exp, entropy, weight by distance). Then the text is run at
shifted positions, and the rotary record of every layer is checked. Nothing is written.

With --dump, the first text of a dump is captured again with transformers, and the rows are compared
with those of the dump, which may come from another engine (capture --engine vllm). MODEL may be a
copy of the model with another name.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity verify HuggingFaceTB/SmolLM2-135M
  attention-plasticity verify google/gemma-3-1b-pt --text book.txt --max_length 1024
  attention-plasticity verify Qwen/Qwen3-8B --dump data/qwen3-8b --device_map auto

The tolerance is 1e-5 in float32, 2e-3 in float16 and 2e-2 in bfloat16. In layers with large scores
it is the rounding error of these scores, if that is larger. A wrong pair of heads or a missing
rotation changes weights by 0.1 or more, a scale that is wrong by 1 % changes them by about 0.01.
Exit codes: 0 all layers within the tolerance, 1 some are not, 2 usage or config, 130 interrupted.
"""
_TOKENS = 256
_PASSAGE = """\
Call me Ishmael. Some years ago—never mind how long precisely—having little or no money in my \
purse, and nothing particular to interest me on shore, I thought I would sail about a little and \
see the watery part of the world. It is a way I have of driving off the spleen and regulating \
the circulation. Whenever I find myself growing grim about the mouth; whenever it is a damp, \
drizzly November in my soul; whenever I find myself involuntarily pausing before coffin \
warehouses, and bringing up the rear of every funeral I meet; and especially whenever my hypos \
get such an upper hand of me, that it requires a strong moral principle to prevent me from \
deliberately stepping into the street, and methodically knocking people's hats off—then, I \
account it high time to get to sea as soon as I can. This is my substitute for pistol and ball. \
With a philosophical flourish Cato throws himself upon his sword; I quietly take to the ship. \
There is nothing surprising in this. If they but knew it, almost all men in their degree, some \
time or other, cherish very nearly the same feelings towards the ocean with me.
"""


_LESS_MEMORY = "Choose fewer tokens (--max_length), a smaller --dtype, or --device_map auto."


class VerifySettings(ModelSource):
    """The model, and what is checked."""

    dtype: Dtype = Field(
        title="the model",
        default="float32",
        description="precision; float32 gives the strictest check, auto uses the checkpoint's",
    )
    device_map: str | None = Field(
        title="the model",
        default=None,
        description="cpu, cuda, cuda:1, or auto to use all GPUs (default: a GPU if there is one)",
    )
    dump: str | None = Field(
        title="what is checked",
        default=None,
        min_length=1,
        description="dump whose first text is captured again, with the settings of its capture; "
        "only with flags that say where the model is and where it runs",
    )
    text: str | None = Field(
        title="what is checked",
        default=None,
        min_length=1,
        description="text file to run (default: the beginning of Moby Dick)",
    )
    max_length: int | None = Field(
        title="what is checked",
        default=None,
        ge=2,
        description=f"number of tokens to use (default: {_TOKENS}, or the model's context)",
    )
    layers: Indices | None = Field(
        title="what is checked",
        default=None,
        description="layers to check, such as 0-3,8 (default: all)",
    )
    tolerance: float | None = Field(
        title="what is checked",
        default=None,
        gt=0,
        description="largest allowed difference of a weight (default: by precision, see below)",
    )


def verify(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity verify MODEL [--text FILE] …` and return the exit code."""
    return guarded(lambda: _verify(arguments), "nothing was written")


def _verify(arguments: Sequence[str]) -> int:
    model, settings = _parse(arguments)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    with capture_extra():
        from qk_sniffer.engines.hf.memory import out_of_memory_advice

        with out_of_memory_advice(_LESS_MEMORY):
            if settings.dump is not None:
                return _verify_dump(model, settings)
            found = _run(model, settings)
    with allow_closed_stdout():
        _print(found)
    return 1 if found.failed else 0


def _parse(arguments: Sequence[str]) -> tuple[ModelSettings, VerifySettings]:
    parser = command_parser(_PROGRAM, _DESCRIPTION, _EXAMPLES)
    parser.usage = f"{_PROGRAM} MODEL [--text FILE] [--FIELD VALUE …]"
    add_flags(parser, VerifySettings)
    given = flags_of_places("verify", arguments, {"name": "MODEL"}, "give one model")
    settings = settings_from(VerifySettings, flags=parse_flags(parser, given))
    values = settings.model_dump(include={*ModelSettings.model_fields})
    return ModelSettings(**values, attn_implementation="eager"), settings  # the reference


def _run(model: ModelSettings, settings: VerifySettings) -> Verification:
    """Load the tokenizer first: its errors appear before the slow loading of the model."""
    import torch

    from qk_sniffer.engines.hf.layout import decoder_of, vocabulary_of
    from qk_sniffer.engines.hf.loading import load_model, load_tokenizer
    from qk_sniffer.texts.encoding import require_known_tokens
    from qk_sniffer.texts.sources import tokenize
    from qk_sniffer.verify.comparison import verify_model

    text = _PASSAGE if settings.text is None else _read(settings.text)
    tokenizer = load_tokenizer(TokenizerSettings(), model)
    tokens = tokenize(tokenizer, text, settings.max_length or _TOKENS, add_special_tokens=True)
    if len(tokens) < 2:
        raise ConfigError(
            f"--text: the text is {len(tokens)} tokens long, expected 2 or more; give a longer text"
        )
    loaded = load_model(model, "cuda:0" if torch.cuda.is_available() else "cpu", _print_note)
    if settings.max_length is None:
        tokens = tokens[: loaded.context]
    require_known_tokens(tokens, vocabulary_of(decoder_of(loaded.model)))
    return verify_model(loaded.model, tokens, layers=settings.layers, tolerance=settings.tolerance)


def _verify_dump(model: ModelSettings, settings: VerifySettings) -> int:
    """Compare the rows of a dump with those of transformers; the exit code."""
    from qk_dump.source import open_dump
    from qk_sniffer.verify.dump_rows import GIVEN, check_dump

    given = settings.model_dump(exclude_defaults=True).keys() - {"name", "dump", *GIVEN}
    if given:
        raise ConfigError(
            f"--{min(given)}: has no effect with --dump, whose own settings are used; leave it out"
        )
    found = check_dump(open_dump(settings.dump or ""), model, _print_note)
    with allow_closed_stdout():
        for layer in found.layers:
            print(
                f"layer {layer.layer}: {layer.rows:,} rows, vectors differ by {layer.vectors:.1e}, "
                f"attention columns by {layer.columns:.1e}"
            )
        where = f"text {found.text}, {found.tokens:,} tokens, {found.dtype}"
        if found.failed:
            layers = index_ranges(found.failed)
            print(f"NOT equal: layers {layers} differ by more than {found.tolerance:g}; {where}.")
        else:
            print(f"Equal: no layer differs by more than {found.tolerance:g}; {where}.")
    return 1 if found.failed else 0


def _print_note(text: str) -> None:
    print(text, file=sys.stderr)


def _read(name: str) -> str:
    from qk_toolkit.files import user_path

    path = user_path(name)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"--text: {path}: does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--text: {path}: cannot be read: {reason}") from error


def _print(found: Verification) -> None:
    from rich import box
    from rich.table import Table

    from qk_toolkit.terminal import command_console

    table = Table(box=box.SIMPLE)
    table.add_column("layer", justify="right")
    table.add_column("attention")
    table.add_column("heads q / k", justify="right")
    for name in ("weights differ by", "columns by", "tolerance", "rotation by"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result")
    for layer in found.layers:
        facts = layer.facts
        table.add_row(
            str(facts.layer),
            attention_label(facts),
            f"{facts.q_heads} / {facts.k_heads}",
            f"{layer.difference:.1e}",
            "null" if layer.attention is None else f"{layer.attention:.1e}",
            f"{layer.tolerance:.0e}",
            _rotation_cell(layer),
            _result(layer),
        )
    command_console(wrap=False).print(table)
    for line in summary_lines(found):
        print(line)


def _rotation_cell(layer: LayerCheck) -> str:
    if layer.rotation is not None:
        return f"{layer.rotation.difference:.1e}"
    if layer.facts.rotations.after.record is not None:
        return "not checked"
    return "no record" if layer.facts.rope else "no RoPE"


def _result(layer: LayerCheck) -> str:
    if layer.agrees:
        return "ok"
    if layer.largest <= layer.tolerance:
        return "DIFFERS from its rotary record"
    return f"DIFFERS, most in head {layer.head}"


def attention_label(facts: LayerFacts) -> str:
    """The attention type of a layer for the table."""
    reach = {
        "full_attention": "full",
        "sliding_attention": f"sliding {facts.window}",
        "chunked_attention": f"chunks of {facts.window}",
    }[facts.type]
    return reach if facts.rope else f"{reach}, NoPE"


def summary_lines(found: Verification) -> list[str]:
    """A summary of the table in one or two sentences; the result comes last."""
    from qk_sniffer.engines.engine import rotary_problems

    lines = []
    facts = [layer.facts for layer in found.layers]
    wide = [one.layer for one in facts if one.window and one.window >= found.tokens]
    if wide:
        lines.append(
            f"The windows of layers {index_ranges(wide)} are not tested: they are not shorter than "
            f"the text ({found.tokens} tokens). Give a longer text with --text and --max_length."
        )
    unknown = [layer.facts.layer for layer in found.layers if layer.attention is None]
    if unknown:
        lines.append(
            f"The attention columns of layers {index_ranges(unknown)} are null in a capture: the "
            "attention function computes its weights in an unknown way."
        )
    for problem, layers in rotary_problems(facts, False).items():
        lines.append(
            f"Layers {index_ranges(layers)} have no rotary record in a capture: {problem}."
        )
    worst = found.worst
    what = (
        f"the largest difference is {worst.largest:.1e} (layer {worst.facts.layer}); "
        f"{found.tokens} tokens, {found.dtype}."
    )
    if found.failed:
        failed = index_ranges(layer.facts.layer for layer in found.failed)
        lines.append(
            f"NOT faithful: layers {failed} differ by more than the tolerance, or turn in another "
            f"way than their rotary records say; {what}"
        )
    else:
        columns = "" if unknown else " and attention columns"
        lines.append(
            f"Faithful: weights{columns} of captured queries and keys equal those of the model in "
            f"all {len(found.layers)} checked layers; {what}"
        )
    return lines
