"""Names that users write: they stay as they are from one version to the next.

A new name is added here. A name that was removed or renamed breaks scripts, notebooks and files.
"""

from __future__ import annotations

import pytest

import attention_plasticity
import qk_sniffer
from attention_plasticity import figures
from attention_plasticity.cli import main
from attention_plasticity.config import RunnerConfig
from attention_plasticity.figures.settings import FigureOptions, PlotSettings, ScriptSettings
from attention_plasticity.metrics import TABLES
from qk_sniffer.config import CaptureConfig
from qk_toolkit.settings import fields_of, section_of

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
    single_example equal_texts max_tokens_per_head query_model pair_sampling
    num_pairs_per_bucket num_pairs_per_bin bin_size max_rel_dist normality_max_dims p_alpha
    distant_from role_thresholds fidelity near first_query seed output_dir clean engine
    ray_address max_workers dry_run
"""
CAPTURE_FLAGS = """
    dataset.path dataset.name dataset.revision dataset.split dataset.text_column
    dataset.id_column dataset.max_samples dataset.streaming dataset.synthetic.length
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
    output.hf_branch output.private vllm.tensor_parallel vllm.tokens_per_step vllm.memory
    vllm.options engine ray_address num_actors num_gpus overwrite dry_run
"""
HEAD_METRICS = """
    layer q_head k_head n_q_tokens n_k_tokens d_model q_R2_pos q_R2_scalar q_mae_baseline
    q_mae_proj q_mae_ratio q_resid0_skew q_resid0_kurt q_resid0_ks_p q_noise_med_abs_skew
    q_noise_med_abs_kurt q_noise_med_ks_p q_noise_frac_ks_p_lt_alpha ap_overall q_beta_norm
    q_R2_total q_position_max sliding_window layer_type n_text_groups ap_aligned ap_aligned_se
    ap_aligned_first20 ap_aligned_first20_se ap_aligned_last20 ap_aligned_last20_se
    ap_aligned_drop ap_aligned_drop_se ap_aligned_counted ap_aligned_counted_se ap_pooled
    ap_pooled_se ap_phase ap_phase_se ap_attended ap_attended_se q_R2_unrotated
    q_R2_unrotated_se k_R2_unrotated k_R2_unrotated_se q_mean_share q_mean_share_se kernel_R2
    kernel_R2_se attn_entropy attn_entropy_se attn_sink_mass attn_sink_mass_se attn_distant_mass
    attn_distant_mass_se attn_max_logit attn_max_logit_se attn_far_mass attn_far_mass_se
"""
BINS = """
    layer q_head k_head q_bin k_bin plasticity n_pairs q_position k_position n_queries n_texts
    plasticity_se pooled pooled_se q_start q_end k_start k_end q_weight
"""
BUCKET_PLASTICITY = """
    layer q_head k_head q_bucket k_bucket plasticity n_pairs q_position k_position n_queries
    n_texts
"""
COMPONENT_WEIGHTS = "layer q_head k_head component weight r2"
INFLUENCES = """
    layer q_head k_head quantity bin value n_groups group_00 group_01 group_02 group_03 group_04
    group_05 group_06 group_07 group_08 group_09 group_10 group_11 group_12 group_13 group_14
    group_15
"""
MEANS = "entropy sink_mass max_logit mass_0"
ATTENTION = (
    "layer q_head k_head q_bucket q_position n_queries n_groups",
    *(f"{name} {name}_se" for name in MEANS.split()),
    *(f"mass_{1 << power} mass_{1 << power}_se" for power in range(23)),
    "n_tokens",
)
ROLES = """
    layer q_head k_head role likely_role n_queries n_groups self_mass previous_mass local_mass
    first_mass sink_rate far_mass duplicate_mass duplicate_chance duplicate_excess
    induction_mass induction_chance induction_excess top_weight effective_keys
    repeated_induction repeated_duplicate repeated_previous repeated_groups
"""
KEY_HEADS = """
    layer k_head n_q_heads layer_type sliding_window n_pairs n_attended_pairs n_queries n_groups
    plasticity plasticity_heads static_error static_error_heads attended_plasticity
    attended_plasticity_heads attended_static_error attended_static_error_heads
    aligned_plasticity aligned_plasticity_heads far_mass received_gini received_half
"""
FIGURE_NAMES = """
    attended attention bands by-role components depth drift fidelity heatmap
    key-heads map phase plasticity predictability profile ranks roles
"""
FIGURE_LIBRARY = "FIGURES caption_of save_all save_figure"
FIGURE_OPTIONS = """
    layers layer_type heads metric plasticity limit agg color trend_threshold cmap range
    vmin vmax intervals fade baselines alpha line_width width title footnote model_name ylabel
"""
SCRIPT_OPTIONS = """
    run bucket_csv component_csv bucket_type bucket_min_size color_by_layer color_trend color_range
    output
"""
VERBS = "capture verify add-rotary analyze plot report study export push pull demo"


def test_names_of_the_libraries() -> None:
    assert attention_plasticity.__all__ == LIBRARY.split()
    assert qk_sniffer.__all__ == CAPTURE_LIBRARY.split()


def test_flags() -> None:
    for settings, names in ((RunnerConfig, ANALYSIS_FLAGS), (CaptureConfig, CAPTURE_FLAGS)):
        found = [name for name, field in fields_of(settings).items() if section_of(field) is None]
        assert found == names.split()


def test_figures_and_their_options() -> None:
    assert sorted(spec.name for spec in figures.FIGURES) == FIGURE_NAMES.split()
    assert figures.__all__ == FIGURE_LIBRARY.split()
    options = FIGURE_OPTIONS.split()
    assert list(FigureOptions.model_fields) == options
    assert list(PlotSettings.model_fields) == [*options, "run", "output", "format"]
    assert list(ScriptSettings.model_fields) == [*options, *SCRIPT_OPTIONS.split()]


def test_columns_keep_their_names_and_their_order() -> None:
    """New columns come after these. `metrics.py` has all of them."""
    expected = {
        "head_metrics": HEAD_METRICS,
        "bucket_plasticity": BUCKET_PLASTICITY,
        "component_weights": COMPONENT_WEIGHTS,
        "influences": INFLUENCES,
        "attention": " ".join(ATTENTION),
        "bins": BINS,
    }
    for kind, names in expected.items():
        found = TABLES[kind].names  # type: ignore[index]
        assert list(found[: len(names.split())]) == names.split(), kind
        assert len(set(found)) == len(found), kind
    for table, names in ((TABLES["roles"], ROLES), (TABLES["key_heads"], KEY_HEADS)):
        values = [name for name in table.names if not name.endswith("_se")]
        assert values[: len(names.split())] == names.split()


def test_an_error_follows_its_column_and_a_value_has_no_bias_beside_it() -> None:
    """The table of bins is older: its errors come after the columns of the cells."""
    for kind, table in TABLES.items():
        for place, name in enumerate(table.names):
            assert not name.endswith(("_bias", "_corrected")), kind
            if name.endswith("_se") and kind != "bins":
                assert table.names[place - 1] == name.removesuffix("_se")


def test_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert listed == VERBS.split()
