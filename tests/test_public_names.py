"""Names that users write: they stay as they are from one version to the next.

A new name is added here. A name that was removed or renamed breaks scripts, notebooks and files.
"""

import csv
from pathlib import Path

import attention_plasticity
import qk_sniffer
from attention_plasticity import figures
from attention_plasticity.cli import main
from attention_plasticity.config import RunnerConfig
from attention_plasticity.figures.settings import FigureOptions, PlotSettings, ScriptSettings
from attention_plasticity.metrics import TABLES
from qk_sniffer.config import CaptureConfig
from qk_toolkit.settings import fields_of, section_of

RUN = Path(__file__).parents[1] / "results" / "smollm2-135m"
LIBRARY = """
    AttentionPlasticity Comparison ConfigError Dump DumpError HeadError HeadResult HubError
    OutputError Run RunnerConfig StoreError ToolkitError __version__ analyze_dump analyze_head
    compare_runs compute_attention_plasticity
    compute_first_component_residual_stats compute_noise_normality_stats
    compute_scalar_position_predictability fit_multioutput_linear_regressor load_config
    make_config make_pos_rotation open_dump open_run open_sample orientation_from_keys report
    sample_key_pairs summary
"""
CAPTURE_LIBRARY = """
    CaptureConfig PositionSampler Tap TappedRows load_config make_config probe run_capture tap
"""
ANALYSIS_FLAGS = """
    dataset_local_root model_dir dataset_name dataset_revision dataset_cache_dir
    download_max_workers rotary repeated num_layers num_q_heads num_k_heads layers heads
    single_example max_tokens_per_head query_model pair_sampling
    num_pairs_per_bucket num_pairs_per_bin bin_size max_rel_dist normality_max_dims p_alpha
    distant_from role_thresholds original_columns seed output_dir
    output_csv bucket_csv component_csv engine ray_address max_workers dry_run
"""
CAPTURE_FLAGS = """
    dataset.path dataset.name dataset.revision dataset.split dataset.text_column
    dataset.id_column dataset.max_samples dataset.spread_samples dataset.streaming
    dataset.synthetic.length
    dataset.synthetic.number dataset.synthetic.texts dataset.synthetic.seed model.name
    model.revision
    model.gguf_file model.config_overrides model.trust_remote_code model.dtype model.device_map
    model.attn_implementation model.random_weights
    model.random_seed tokenizer.name
    tokenizer.revision
    tokenizer.max_length tokenizer.add_special_tokens inference.batch_size capture.sampler.type
    capture.sampler.base_rate capture.sampler.key_base_rate capture.sampler.seed
    capture.min_bucket_size
    capture.capture_queries capture.capture_keys capture.layers capture.heads
    capture.head_sampling.count capture.head_sampling.seed capture.full_attention_only
    capture.capture_pre_rope capture.attention capture.tokens capture.attended_keys
    capture.attended_queries
    output.data_root output.work_dir output.vector_dtype output.hf_repo_id
    output.hf_branch output.private vllm.tensor_parallel vllm.memory
    vllm.options ray.processes ray.gpus ray.address engine overwrite finish dry_run
"""
FIGURE_NAMES = """
    attended attention band-shares by-role components depth depth distance heatmap
    key-heads lengths map matched-heads phase plasticity profile profiles ranks
    role-shares roles
"""
FIGURE_LIBRARY = "FIGURES caption_of save_all save_figure"
FIGURE_OPTIONS = """
    layers layer_type heads metric plasticity limit agg color trend_threshold cmap range
    vmin vmax intervals fade baselines width title footnote model_name ylabel
"""
SCRIPT_OPTIONS = """
    run bucket_csv component_csv bucket_type bucket_min_size color_by_layer color_trend color_range
    output
"""
VERBS = "capture verify add-rotary analyze plot report study export push pull demo"


def test_names_of_the_libraries():
    assert attention_plasticity.__all__ == LIBRARY.split()
    assert qk_sniffer.__all__ == CAPTURE_LIBRARY.split()


def test_flags():
    for settings, names in ((RunnerConfig, ANALYSIS_FLAGS), (CaptureConfig, CAPTURE_FLAGS)):
        found = [name for name, field in fields_of(settings).items() if section_of(field) is None]
        assert found == names.split()


def test_figures_and_their_options():
    assert sorted(spec.name for spec in figures.FIGURES) == FIGURE_NAMES.split()
    assert figures.__all__ == FIGURE_LIBRARY.split()
    options = FIGURE_OPTIONS.split()
    assert list(FigureOptions.model_fields) == options
    assert list(PlotSettings.model_fields) == [*options, "run", "output", "format"]
    assert list(ScriptSettings.model_fields) == [*options, *SCRIPT_OPTIONS.split()]


def test_columns_keep_their_names_and_their_order():
    """New columns come after those of the published run. `metrics.py` has all of them."""
    files = {table.file: table.names for table in TABLES.values()}
    written = [file for file in files if (RUN / file).exists()]
    assert len(written) == 13
    for file in written:
        with (RUN / file).open() as table:
            names = next(csv.reader(table))
        assert list(files[file][: len(names)]) == names, file
        assert len(set(files[file])) == len(files[file]), file


def test_an_error_follows_its_column_and_a_value_has_no_bias_beside_it():
    """The table of bins is older: its errors come after the columns of the cells."""
    for kind, table in TABLES.items():
        for place, name in enumerate(table.names):
            assert not name.endswith(("_bias", "_corrected")), kind
            if name.endswith("_se") and kind != "bins":
                assert table.names[place - 1] == name.removesuffix("_se")


def test_verbs(capsys):
    assert main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert listed == VERBS.split()
