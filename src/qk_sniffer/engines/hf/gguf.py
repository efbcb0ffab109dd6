"""Convert GGUF files to ordinary checkpoints.

Converting weights and tokenizer takes minutes, so the checkpoint is stored in a cache folder:
`$ATTENTION_PLASTICITY_CACHE`, else `~/.cache/attention-plasticity`.
"""

from __future__ import annotations

import shutil
from math import ceil
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock

from qk_sniffer.config import ModelSettings
from qk_toolkit.cache import cache_folder
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import staged_folder, user_path
from qk_toolkit.model_files import Note, files_hash

_CONVERSION_VERSION = 1  # a change of this number makes cached checkpoints unused
_DEFAULT_DTYPE = "float32"  # wide enough for every quantised weight
_MINUTES_PER_GB = 3  # measured on a slow core: 160 s for Q4_1, 80 s for Q8_0, 30 s for F16
_MINUTES_AT_LEAST = 1  # for the tokenizer


def gguf_path(settings: ModelSettings) -> Path:
    """The GGUF file of the settings; it is downloaded if the model is on the Hub."""
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
    """The settings, changed to load the converted checkpoint of the GGUF file.

    They are returned unchanged if there is no GGUF file, if the cache cannot be written, and, with
    `convert_now=False`, if the file was not converted before.
    """
    if settings.gguf_file is None:
        return settings
    source = gguf_path(settings)
    dtype = _DEFAULT_DTYPE if settings.dtype == "auto" else settings.dtype
    target = cache_folder() / "gguf" / _cache_name(settings, source, dtype, note)
    if not (target / "config.json").is_file():
        if not convert_now:
            return settings
        note(
            f"{source.name}: converting to {dtype}, which may take {conversion_time(source)}; this "
            f"is done once, later runs reuse {target}"
        )
        try:
            _convert_once(source, target, dtype)
        except OSError as error:
            reason = error.strerror or error
            note(f"{target}: cannot be written ({reason}); every run converts the file again")
            return settings
    return settings.model_copy(update={"name": str(target), "gguf_file": None, "revision": None})


def conversion_time(source: Path) -> str:
    """How long the conversion of a file may take, for messages."""
    size = source.stat().st_size / 1e9
    return f"up to {_MINUTES_AT_LEAST + ceil(size * _MINUTES_PER_GB)} minutes"


def _cache_name(settings: ModelSettings, source: Path, dtype: str, note: Note) -> str:
    """The folder name for a file's content, the precision and the version of the converter."""
    if user_path(settings.name).is_dir():
        content = files_hash(source.parent, source.name, note)
    else:
        content = source.resolve().name  # in the Hub's cache this is the hash of the file
    return f"{content}-{dtype}-transformers-{transformers.__version__}-{_CONVERSION_VERSION}"


def _convert_once(source: Path, target: Path, dtype: str) -> None:
    """Convert into the cache; if several processes do so, one converts and the others wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not (target / "config.json").is_file():
            shutil.rmtree(target, ignore_errors=True)
            with staged_folder(target) as draft:
                convert_gguf(source, draft, dtype)


def convert_gguf(source: Path, target: Path, dtype: str = _DEFAULT_DTYPE) -> tuple[Any, Any]:
    """Write the checkpoint and the tokenizer of a GGUF file; return the model and the tokenizer."""
    auto: Any = transformers.AutoModelForCausalLM
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    add_special_tokens_of(source, tokenizer)
    packed = auto.from_pretrained(source.parent, gguf_file=source.name, dtype=getattr(torch, dtype))
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the checkpoint is not quantised
    with torch.device("meta"):
        model = auto.from_config(config, dtype=getattr(torch, dtype))
    model.load_state_dict(packed.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return packed, tokenizer


def add_special_tokens_of(source: Path, tokenizer: Any) -> None:
    """Let the tokenizer add BOS and EOS as the header of the GGUF file specifies.

    The converter of transformers ignores these fields. Some releases also ignore the token ids.
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
    """A number in the tokenizer fields of a GGUF header; None if it is missing."""
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return None if field is None else int(field.contents())


def model_title(path: Path) -> str:
    """The name of the model: `general.name`, else basename and size, else the name of the file."""
    import gguf

    reader = gguf.GGUFReader(path)

    def text(name: str) -> str:
        field = reader.get_field(f"general.{name}")
        return "" if field is None else " ".join(str(field.contents()).split())

    return text("name") or f"{text('basename')} {text('size_label')}".strip() or path.stem
