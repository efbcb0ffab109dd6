"""What a tiny capture reads: texts of known lengths, a tokenizer of single characters, and models
with it, as folders, as GGUF, and with eyes.
"""

import random
import string

import gguf
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

from tiny_models import ARCHITECTURES, VOCABULARY

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # pad, bos and eos as the tiny configs number them
CHARACTERS = string.ascii_letters + string.digits + " .,\n"


def tiny_tokenizer():
    """One token per character, after a begin token."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def save_tiny_model(folder, model_type="llama"):
    """A random model and the tokenizer, as `from_pretrained` reads them."""
    ARCHITECTURES[model_type].model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def some_text(length, seed=0):
    """Random characters that the tokenizer knows."""
    return "".join(random.Random(seed).choices(string.ascii_lowercase + " ", k=length))


def save_texts(folder, lengths):
    """A folder of text files of these numbers of characters, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, length in enumerate(lengths):
        (folder / f"{number:03d}.txt").write_text(some_text(length, seed=number))
    return folder


_TEXT_PART = {
    "gemma3": "gemma3_text",
    "mistral3": "ministral3",
    "mllama": "mllama_text_model",
    "paligemma": "gemma",
}


def vision_language_model(model_type="gemma3"):
    """A random model that reads images beside text; token 5 stands for an image."""
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    options = {"image_token_index": 5}
    if model_type == "gemma3":
        options |= {"mm_tokens_per_image": 4, "boi_token_index": 6, "eoi_token_index": 7}
    elif model_type == "paligemma":
        vision |= {"model_type": "siglip_vision_model"}
        options |= {"projection_dim": 64}
    elif model_type == "mistral3":
        vision |= {"model_type": "pixtral", "head_dim": 16}
    else:
        vision |= {"attention_heads": 2, "num_global_layers": 1, "max_num_tiles": 1}
        vision |= {"supported_aspect_ratios": [[1, 1]], "intermediate_layers_indices": [0]}
        vision |= {"vision_output_dim": 64}
    part = _TEXT_PART[model_type]
    text = {**ARCHITECTURES.get(part, ARCHITECTURES["llama"]).config, "model_type": part}
    text["head_dim"] = 16
    if model_type == "paligemma":
        text["use_bidirectional_attention"] = False  # else it is no causal model
    config = AutoConfig.for_model(model_type, text_config=text, vision_config=vision, **options)
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(config).eval()


def save_gguf(model, path, kind=gguf.GGMLQuantizationType.F32, name=None, **flags):
    """A llama as GGUF holds it: rotary pairs side by side, names of its own.

    `add_bos_token` and `add_eos_token` are written into the header as they are given.
    """
    config, weights = model.config, {name: w.numpy() for name, w in model.state_dict().items()}
    writer = gguf.GGUFWriter(path, "llama")
    if name is not None:
        writer.add_name(name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    known = ["<unk>", "<s>", "</s>", "\u2581", *CHARACTERS.replace(" ", "").replace("\n", "")]
    writer.add_token_list([*known, *(f"\u2581w{n}" for n in range(VOCABULARY - len(known)))])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3] + [1] * (VOCABULARY - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, flag in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", flag)
    names = {
        "embed_tokens": "token_embd",
        "norm": "output_norm",
        "lm_head": "output",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in weights.items():
        own = name.removeprefix("model.").removesuffix(".weight")
        place = ""
        if own.startswith("layers."):
            _, layer, own = own.split(".", 2)
            place = f"blk.{layer}."
        if names[own] in heads:  # (heads, 2, half, in) → (heads, half, 2, in)
            halves = weight.reshape(heads[names[own]], 2, -1, weight.shape[1])
            weight = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
        data = gguf.quants.quantize(weight, kind) if weight.ndim > 1 else weight
        raw = None if weight.ndim == 1 else kind
        writer.add_tensor(f"{place}{names[own]}.weight", data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
