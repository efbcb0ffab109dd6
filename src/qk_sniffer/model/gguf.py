"""GGUF files: converted once into an ordinary checkpoint, with the special tokens they ask for.

Converting weights and tokenizer takes minutes, so the checkpoint is kept in a cache:
`$ATTENTION_PLASTICITY_CACHE`, else `~/.cache/attention-plasticity`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock

from qk_sniffer.config import ModelSettings
from qk_sniffer.model.files import files_hash
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import staged_folder, user_path

_FORMAT = 1  # of the conversion; another number converts anew
_WIDENED = "float32"  # precision that every quantised weight fits

Note = Callable[[str], None]


def gguf_path(settings: ModelSettings) -> Path:
    """The GGUF file of the settings, fetched where it is on the Hub."""
    folder, file = user_path(settings.name), str(settings.gguf_file)
    if folder.is_dir():
        if not (folder / file).is_file():
            raise ConfigError(f"model.gguf_file: {folder / file}: does not exist")
        return folder / file
    from transformers.utils.hub import cached_file

    return Path(str(cached_file(settings.name, file, revision=settings.revision)))


def converted_model(
    settings: ModelSettings, note: Note = lambda text: None, *, convert_now: bool = True
) -> ModelSettings:
    """The settings with the GGUF file's converted checkpoint in its place.

    They stay as they are where there is no GGUF file, where the checkpoint cannot be kept, and,
    without `convert_now`, where the file was not converted before.
    """
    if settings.gguf_file is None:
        return settings
    source = gguf_path(settings)
    dtype = _WIDENED if settings.dtype == "auto" else settings.dtype
    target = _cache() / "gguf" / _key(settings, source, dtype)
    if not (target / "config.json").is_file():
        if not convert_now:
            return settings
        note(f"{source.name}: converting to {dtype}, once; kept in {target}")
        try:
            _keep(source, target, dtype)
        except OSError as error:
            note(f"{target}: cannot be kept ({error.strerror or error}); it is converted each time")
            return settings
    return settings.model_copy(update={"name": str(target), "gguf_file": None, "revision": None})


def _cache() -> Path:
    given = os.environ.get("ATTENTION_PLASTICITY_CACHE")
    if given:
        return user_path(given)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(base) / "attention-plasticity"


def _key(settings: ModelSettings, source: Path, dtype: str) -> str:
    """A folder's name for the content of a file, the precision and what converts it."""
    if user_path(settings.name).is_dir():
        content = files_hash(source.parent, source.name)
    else:
        content = source.resolve().name  # the Hub's cache names files by their content
    return f"{content}-{dtype}-transformers-{transformers.__version__}-{_FORMAT}"


def _keep(source: Path, target: Path, dtype: str) -> None:
    """Convert into the cache; of several processes one does it and the others wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not (target / "config.json").is_file():
            shutil.rmtree(target, ignore_errors=True)
            with staged_folder(target) as draft:
                convert_gguf(source, draft, dtype)


def convert_gguf(source: Path, target: Path, dtype: str = _WIDENED) -> tuple[Any, Any]:
    """Write the checkpoint and the tokenizer of a GGUF file; both are returned."""
    auto: Any = transformers.AutoModelForCausalLM
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    add_special_tokens_of(source, tokenizer)
    packed = auto.from_pretrained(source.parent, gguf_file=source.name, dtype=getattr(torch, dtype))
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # an ordinary checkpoint from here on
    with torch.device("meta"):
        model = auto.from_config(config, dtype=getattr(torch, dtype))
    model.load_state_dict(packed.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return packed, tokenizer


def add_special_tokens_of(source: Path, tokenizer: Any) -> None:
    """Let the tokenizer add BOS and EOS where the file's header says so, and only there.

    transformers' converter ignores these fields, and in some releases the tokens' numbers.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    flags = {name: _header_field(reader, f"add_{name}_token") for name in ("bos", "eos")}
    for name, flag in flags.items():
        number = _header_field(reader, f"{name}_token_id")
        if number is not None and number != getattr(tokenizer, f"{name}_token_id"):
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
        if flag is not None:
            setattr(tokenizer, f"_add_{name}_token", bool(flag))  # as transformers' setters do
    if any(flag is not None for flag in flags.values()):
        tokenizer.update_post_processor()


def _header_field(reader: Any, name: str) -> int | None:
    """A number of the tokenizer in a GGUF header, None where the header lacks it."""
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return None if field is None else int(field.parts[field.data[0]][0])
