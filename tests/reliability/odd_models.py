"""Models that mislead a capture: where layers, masks and rotary angles are not as they seem."""

import torch
from transformers import CONFIG_MAPPING

from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.verify.comparison import verify_model
from qk_toolkit.errors import ConfigError
from reliability.outcomes import Outcome
from tiny_models import (
    ARCHITECTURES,
    ENCODER_DECODERS,
    LOOKING_AHEAD,
    RARE,
    VOCABULARY,
    other_model,
)

_TOKENS = torch.randint(3, VOCABULARY, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def architectures(folder, step):
    """Every architecture: the layout as it is, and attention weights from captured vectors."""
    known = {**ARCHITECTURES, **RARE}
    for name in list(known)[::step]:
        if known[name].model_type in CONFIG_MAPPING or name == "mllama_text_model":
            yield name, _captured(known[name])
    for model_type, config in {**LOOKING_AHEAD, **ENCODER_DECODERS}.items():
        yield model_type, _refused(other_model(model_type, config, "eager"))


def _captured(architecture):
    model = architecture.model("eager")
    for weight in model.parameters():
        if not torch.isfinite(weight).all():  # some are left uninitialised
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
    try:
        layout = probe(model)
        verified = verify_model(model, _TOKENS)
    except Exception:
        return Outcome.TRACEBACK
    layers = tuple(facts.layer for facts in layout.layers)
    windows = tuple(facts.window for facts in layout.layers)
    rope = tuple(facts.rope for facts in layout.layers)
    expected = (architecture.layers, architecture.windows, architecture.rope)
    right = (layers, windows, rope) == expected and not verified.failed
    return Outcome.UNHARMED if right else Outcome.WRONG


def _refused(model):
    try:
        probe(model)
    except ConfigError:
        return Outcome.REFUSED
    except Exception:
        return Outcome.TRACEBACK
    return Outcome.WRONG
