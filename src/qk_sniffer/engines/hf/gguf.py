"""GGUF files: their place, their special tokens and names, and ordinary checkpoints of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from qk_sniffer.config import ModelSettings
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path

WIDE = "float32"  # a precision that is wide enough for every quantised weight


def gguf_path(settings: ModelSettings) -> Path:
    """The GGUF file of the settings; it is downloaded if the model is on the Hub."""
    folder, file = user_path(settings.name), str(settings.gguf_file)
    if folder.is_dir():
        if not (folder / file).is_file():
            raise ConfigError(f"model.gguf_file: {folder / file}: does not exist")
        return folder / file
    from transformers.utils.hub import cached_file

    return Path(str(cached_file(settings.name, file, revision=settings.revision)))


def convert_gguf(source: Path, target: Path, dtype: str = WIDE) -> tuple[Any, Any]:
    """Write the checkpoint and the tokenizer of a GGUF file into a folder.

    Returns the model and the tokenizer.
    """
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
