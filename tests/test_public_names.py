"""Names that users write: they stay as they are from one version to the next.

A new name is added here. A name that was removed or renamed breaks scripts, notebooks and files.
"""

from __future__ import annotations

import pytest

import attention_plasticity
import qk_sniffer
from attention_plasticity import plots
from attention_plasticity.cli import main
from attention_plasticity.config import RunnerConfig
from attention_plasticity.metrics import TABLES
from attention_plasticity.plots.drawing import FUNCTIONS
from attention_plasticity.plots.settings import KINDS, AllPlots
from qk_sniffer.config import CaptureConfig
from qk_toolkit.settings import fields_of, section_of

LIBRARY = """
    AttentionPlasticity Comparison ConfigError Dump DumpError HeadError HeadResult HubError
    OutputError Run RunnerConfig StoreError ToolkitError __version__ analyze_dump analyze_head
    compare compute_attention_plasticity
    compute_first_component_residual_stats compute_noise_normality_stats
    compute_scalar_position_predictability fit_multioutput_linear_regressor load_config
    make_config make_pos_rotation open_dump open_run open_sample orientation_from_keys report
    sample_key_pairs
"""
CAPTURE_LIBRARY = """
    CaptureConfig PositionSampler Tap TappedRows load_config make_config probe run_capture tap
"""
ANALYSIS_FLAGS = """
    dataset_local_root dumps model_dir dataset_name dataset_revision dataset_cache_dir
    download_max_workers rotary repeated num_layers num_q_heads num_k_heads layers heads
    single_example equal_texts max_tokens_per_head query_model pair_sampling num_pairs_per_bucket
    bin_size max_rel_dist normality_max_dims p_alpha error_bars counting distant_from
    role_thresholds points_per_head seed output_dir
    output_csv bucket_csv component_csv influence_csv distance_csv attention_csv bin_csv engine
    ray_address num_shards shard_index max_workers overwrite dry_run
"""
CAPTURE_FLAGS = """
    dataset.path dataset.name dataset.revision dataset.split dataset.text_column
    dataset.id_column dataset.max_samples dataset.streaming dataset.synthetic.length
    dataset.synthetic.number dataset.synthetic.texts dataset.synthetic.seed model.name
    model.revision
    model.gguf_file model.dtype model.device_map model.tensor_parallel
    model.attn_implementation model.config_overrides model.trust_remote_code model.random_weights
    model.random_seed tokenizer.name
    tokenizer.revision
    tokenizer.max_length tokenizer.add_special_tokens inference.batch_size capture.sampler.type
    capture.sampler.base_rate capture.sampler.key_base_rate capture.sampler.seed
    capture.min_bucket_size
    capture.capture_queries capture.capture_keys capture.layers capture.heads
    capture.head_sampling.count capture.head_sampling.seed capture.full_attention_only
    capture.capture_pre_rope capture.attention capture.tokens capture.attended_keys
    capture.attended_queries capture.capture_token_strings
    capture.max_rows_per_batch
    output.data_root output.work_dir output.vector_dtype output.save_seconds output.hf_repo_id
    output.hf_branch output.private engine ray_address num_actors num_gpus overwrite dry_run
"""
HEAD_METRICS = """
    layer q_head k_head n_q_tokens n_k_tokens d_model q_R2_pos q_R2_scalar q_mae_baseline
    q_mae_proj q_mae_ratio q_resid0_skew q_resid0_kurt q_resid0_ks_p q_noise_med_abs_skew
    q_noise_med_abs_kurt q_noise_med_ks_p q_noise_frac_ks_p_lt_alpha ap_overall q_beta_norm
    q_R2_total ap_first20 ap_last20 ap_drop ap_20to40 ap_40to60 ap_60to80 q_position_max
    sliding_window
    ap_overall_se ap_first20_se ap_20to40_se ap_40to60_se ap_60to80_se ap_last20_se ap_drop_se
    ap_overall_bias ap_first20_bias ap_20to40_bias ap_40to60_bias ap_60to80_bias ap_last20_bias
    ap_drop_bias ap_counted ap_counted_se ap_gaussian_gap ap_gaussian_gap_se n_text_groups
    attn_entropy attn_entropy_se attn_sink_mass attn_sink_mass_se attn_distant_mass
    attn_distant_mass_se attn_max_logit attn_max_logit_se ap_attended ap_attended_se
    ap_attended_bias ap_attended_counted ap_attended_counted_se ap_attended_ess n_later_queries
    layer_type ap_overall_corrected ap_first20_corrected ap_20to40_corrected ap_40to60_corrected
    ap_60to80_corrected ap_last20_corrected ap_drop_corrected ap_attended_corrected ap_aligned
    ap_aligned_se ap_aligned_bias ap_aligned_corrected ap_aligned_first20 ap_aligned_first20_se
    ap_aligned_first20_bias ap_aligned_first20_corrected ap_aligned_20to40 ap_aligned_20to40_se
    ap_aligned_20to40_bias ap_aligned_20to40_corrected ap_aligned_40to60 ap_aligned_40to60_se
    ap_aligned_40to60_bias ap_aligned_40to60_corrected ap_aligned_60to80 ap_aligned_60to80_se
    ap_aligned_60to80_bias ap_aligned_60to80_corrected ap_aligned_last20 ap_aligned_last20_se
    ap_aligned_last20_bias ap_aligned_last20_corrected ap_aligned_drop ap_aligned_drop_se
    ap_aligned_drop_bias ap_aligned_drop_corrected ap_aligned_counted ap_aligned_counted_se
    ap_pooled ap_pooled_se ap_pooled_bias ap_pooled_corrected ap_phase ap_phase_se ap_phase_bias
    ap_phase_corrected attn_far_mass attn_far_mass_se q_R2_unrotated q_R2_unrotated_se
    q_R2_unrotated_bias q_R2_unrotated_corrected k_R2_unrotated k_R2_unrotated_se
    k_R2_unrotated_bias k_R2_unrotated_corrected q_mean_share q_mean_share_se q_mean_share_bias
    q_mean_share_corrected ap_attended_aligned ap_attended_aligned_se ap_attended_aligned_bias
    ap_attended_aligned_corrected ap_attended_aligned_counted ap_attended_aligned_counted_se
    kernel_R2 kernel_R2_se
"""
BINS = """
    layer q_head k_head q_bin k_bin plasticity n_pairs q_position k_position n_queries n_texts
    plasticity_se plasticity_bias plasticity_counted pooled pooled_se pooled_bias q_start q_end
    k_start k_end q_weight
"""
BUCKET_PLASTICITY = """
    layer q_head k_head q_bucket k_bucket plasticity n_pairs q_position k_position n_queries
    n_texts plasticity_se plasticity_bias plasticity_counted
"""
COMPONENT_WEIGHTS = "layer q_head k_head component weight r2"
DISTANCES = "layer q_head k_head query_distance key_distance plasticity n_pairs"
INFLUENCES = """
    layer q_head k_head quantity q_bucket value bias n_groups group_00 group_01 group_02
    group_03 group_04 group_05 group_06 group_07 group_08 group_09 group_10 group_11 group_12
    group_13 group_14 group_15
"""
ATTENTION = """
    layer q_head k_head q_bucket q_position n_queries n_groups entropy entropy_se sink_mass
    sink_mass_se max_logit max_logit_se
    mass_0 mass_1 mass_2 mass_4 mass_8 mass_16 mass_32 mass_64 mass_128 mass_256 mass_512
    mass_1024 mass_2048 mass_4096 mass_8192 mass_16384 mass_32768 mass_65536 mass_131072
    mass_262144 mass_524288 mass_1048576 mass_2097152 mass_4194304
    mass_0_se mass_1_se mass_2_se mass_4_se mass_8_se mass_16_se mass_32_se mass_64_se
    mass_128_se mass_256_se mass_512_se mass_1024_se mass_2048_se mass_4096_se mass_8192_se
    mass_16384_se mass_32768_se mass_65536_se mass_131072_se mass_262144_se mass_524288_se
    mass_1048576_se mass_2097152_se mass_4194304_se n_tokens
"""
KIND_NAMES = """
    attended attention bands by_role components distances drift fidelity frequencies heatmap
    kernel key_heads map phase plasticity predictability profile roles
"""
PLOT_LIBRARY = """
    caption_of profiles_figure save_figure scores_figure trajectory_figure
"""
PLOT_FLAGS = "run output layers layer_type model_name title footnote"
ALL_FLAGS = "run output_dir format layers layer_type model_name title footnote"
OWN_PLOT_FLAGS = """
    agg alpha attention_csv band_csv baselines bucket_csv bucket_min_size bucket_type by_position
    cmap color_by_layer color_range color_trend component_csv distance_csv fade fidelity_csv
    head kernel_csv key_head_csv layer limit line_width metric metrics_csv plasticity point_csv
    roles_csv trend_threshold vmax vmin ylabel
"""
VERBS = """
    capture verify add-rotary analyze merge atlas study baseline power plot compare report
    fidelity export push pull demo
"""


def test_names_of_the_libraries() -> None:
    assert attention_plasticity.__all__ == LIBRARY.split()
    assert qk_sniffer.__all__ == CAPTURE_LIBRARY.split()


def test_flags() -> None:
    for settings, names in ((RunnerConfig, ANALYSIS_FLAGS), (CaptureConfig, CAPTURE_FLAGS)):
        found = [name for name, field in fields_of(settings).items() if section_of(field) is None]
        assert found == names.split()


def test_figures_and_their_flags() -> None:
    assert sorted(KINDS) == sorted(FUNCTIONS) == KIND_NAMES.split()
    functions = [f"{kind}_figure" for kind in KIND_NAMES.split()]
    assert plots.__all__ == sorted([*functions, *PLOT_LIBRARY.split()])
    own = set()
    for kind in KINDS:
        names = list(KINDS[kind].model_fields)
        assert names[: len(PLOT_FLAGS.split())] == PLOT_FLAGS.split()
        own |= {*names} - {*PLOT_FLAGS.split()}
    assert sorted(own) == OWN_PLOT_FLAGS.split()
    assert list(AllPlots.model_fields) == ALL_FLAGS.split()


def test_columns_keep_their_names_and_their_order() -> None:
    """New columns come after these. `metrics.py` has all of them."""
    expected = {
        "head_metrics": HEAD_METRICS,
        "bucket_plasticity": BUCKET_PLASTICITY,
        "component_weights": COMPONENT_WEIGHTS,
        "influences": INFLUENCES,
        "distances": DISTANCES,
        "attention": ATTENTION,
        "bins": BINS,
    }
    assert set(expected) <= set(TABLES)
    for kind, names in expected.items():
        found = TABLES[kind].names
        assert list(found[: len(names.split())]) == names.split(), kind
        assert len(set(found)) == len(found), kind


def test_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert listed == VERBS.split()
