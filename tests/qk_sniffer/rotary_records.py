"""What a layout must tell about the rotary embedding of its layers."""

from dataclasses import replace

from qk_dump.layers import check_rotary
from qk_sniffer.capture.description import layer_record, rope_parameters
from qk_sniffer.engines.hf.layout import text_config

INTERLEAVED = {"cohere", "cohere2", "deepseek_v2", "ernie4_5", "glm", "glm4", "llama4_text"}
AT_THE_TAIL = {  # first rotary dimension
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "longcat_flash"), 16),
    "deepseek_v4": 14,
}
INPUT_UNKNOWN = {"deepseek_v32", "minimax_m3_vl_text"}  # pre_rope captures are refused
PERMUTED = {"deepseek_v3", "longcat_flash"}  # the rotary function rearranges its input


def assert_records(name, model, layout):
    """Every layer with a rotary embedding has a record, which its config does not contradict."""
    rope = rope_parameters(text_config(model))
    for facts in layout.layers:
        rotation, before = facts.rotations.after, facts.rotations.before
        assert rotation.problem is None
        assert (rotation.record is not None) == facts.rope
        if rotation.record is None:
            continue
        pairing = "interleaved" if name in INTERLEAVED else "halves"
        pairs = len(rotation.record.frequencies)
        assert rotation.record.pairing == pairing or pairs == 1
        assert rotation.record.start == AT_THE_TAIL.get(name, 0)
        assert rotation.record.end <= facts.width
        if name in INPUT_UNKNOWN and before.record is None:
            assert before.problem == "the input of the rotary function is not known"
        else:
            assert before.record is not None
            expected = "interleaved" if name in PERMUTED else rotation.record.pairing
            assert before.record == replace(rotation.record, pairing=expected)
        check_rotary([layer_record(facts, pre_rope=False)], rope)
