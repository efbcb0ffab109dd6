"""Dumps of two models, one with a factor on cos and sin, before and after RoPE."""

import pytest

from helpers.export_dumps import dump_of
from rope_types import model_of
from tiny_models import ARCHITECTURES

MODELS = {"qwen3": lambda: ARCHITECTURES["qwen3"].model(), "yarn": lambda: model_of("yarn")}


@pytest.fixture(scope="module", params=[(m, p) for m in MODELS for p in (False, True)], ids=str)
def model_and_dump(request, tmp_path_factory):
    """A model, and its dump before or after RoPE."""
    name, pre_rope = request.param
    model = MODELS[name]()
    scaling = model.model.rotary_emb.attention_scaling
    assert scaling > 1.1 if name == "yarn" else scaling == 1.0  # yarn has a factor to divide out
    return model, dump_of(model, tmp_path_factory.mktemp("dump") / name, pre_rope=pre_rope)
