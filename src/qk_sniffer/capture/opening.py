"""Load a model into the engine of the settings, and take rows from it."""

from __future__ import annotations

from qk_sniffer.config import CaptureConfig, CaptureSettings
from qk_sniffer.engines.hf.layout import decoder_of
from qk_sniffer.engines.hf.loading import LoadedModel, load_model
from qk_sniffer.engines.hf.unloaded import shape_of
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.rows.source import HfRows, RowSource
from qk_sniffer.vllm.model import VllmModel, open_vllm
from qk_toolkit.errors import ConfigError
from qk_toolkit.model_files import Note

Model = LoadedModel | VllmModel


def open_model(
    config: CaptureConfig, device: str, note: Note, *, processes: int, most_tokens: int | None
) -> Model:
    """The model of the settings, on `device` unless they name another one.

    `processes` share the capture. `most_tokens` is more than any text has, if that is known.
    """
    if config.engine != "vllm":
        return load_model(config.model, device, note)
    if processes > 1:
        raise ConfigError(
            "engine: vllm starts its own processes; start this command once, without torchrun, "
            "accelerate or srun"
        )
    return open_vllm(config, note, most_tokens)


def unloaded_model(config: CaptureConfig) -> LoadedModel:
    """The model of the settings without the values of its weights."""
    return LoadedModel(shape_of(config.model)[0], commit=None)


def row_source(model: Model, plan: RowPlan, settings: CaptureSettings, padding: int) -> RowSource:
    """What runs texts and takes the rows of a plan; no token of a text attends to `padding`."""
    if isinstance(model, VllmModel):
        return model.row_source(plan)
    decoder, pre_rope = decoder_of(model.model), settings.capture_pre_rope
    return HfRows(decoder, model.layout, plan, pre_rope=pre_rope, padding=padding)
