"""Dumps of tiny models with all their queries, and readers written from the formats."""

import json
import struct

import numpy as np
import torch

import qk_sniffer
from commands_here import run_here
from dumps import make_dump
from qk_dump.layers import RotaryRecord
from tiny_models import VOCABULARY

TEXTS, LENGTH = 8, 24


def some_tokens(texts=TEXTS, length=LENGTH):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(8, VOCABULARY, (texts, length), generator=generator)


def dump_of(model, root, tokens=None, **how):
    """A dump of a model; without settings, every query of every head."""
    with torch.no_grad(), qk_sniffer.tap(model, **{"sampler": "all", **how}) as tapped:
        model(input_ids=some_tokens() if tokens is None else tokens)
    return tapped.save(root)


def queries_of(model):
    """(layers, heads, texts, length, d) queries of a model before and after RoPE.

    They are the results of `q_norm`, or of `q_proj` without it, and of the model's own rotary
    function.
    """
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    tokens = some_tokens()
    found = {}
    hooks = []
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        last = getattr(attention, "q_norm", attention.q_proj)
        hooks.append(
            last.register_forward_hook(
                lambda module, given, result, number=number: found.update({number: result})
            )
        )
    with torch.no_grad():
        model(input_ids=tokens)
        for hook in hooks:
            hook.remove()
        heads, width = model.config.num_attention_heads, model.model.layers[0].self_attn.head_dim
        shape = (*tokens.shape, heads, width)
        before = [found[i].reshape(shape).transpose(1, 2) for i in sorted(found)]
        positions = torch.arange(tokens.shape[1])[None].expand(len(tokens), -1)
        cos, sin = model.model.rotary_emb(before[0], positions)
        after = [apply_rotary_pos_emb(q, q, cos, sin)[0] for q in before]
    stacked = (torch.stack(part).transpose(1, 2) for part in (before, after))
    one, other = (part.numpy().astype(np.float64) for part in stacked)
    return one, other


_TYPES = {"F32": np.float32}


def read_safetensors(path):
    """8 bytes with the length of the header, the header as JSON, then the values."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    values = content[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(values[slice(*entry["data_offsets"])], _TYPES[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
    }


def provenance(folder):
    return json.loads((folder / "PROVENANCE.json").read_text())


def exported(dump, folder, kind, *words):
    done = run_here("export", dump, folder, "--to", kind, *words)
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    return folder


def full_dump(root):
    """Two layers with four query heads each, and everything that a file needs."""
    make_dump(root, n=60, context=256)
    record = RotaryRecord((1.0, 0.5, 0.1, 0.01)).to_json()
    layers = [
        {"layer": layer, "type": "full_attention", "rope": True, "head_dim": 8, "rotary": record}
        for layer in range(2)
    ]
    facts = {"num_layers": 2, "num_q_heads": 4, "num_k_heads": 2, "head_dim": 8, "layers": layers}
    facts |= {"bucket_type": "uniform", "min_bucket_size": 128, "model": "owner/tiny"}
    facts["sampler"] = {"type": "uniform", "base_rate": 16.0}
    (root / "dump.json").write_text(json.dumps(facts))
    return root
