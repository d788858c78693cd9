// Published sizes of well-known models, as config.json texts.
#include <fmt/format.h>

#include <algorithm>

#include "base/message.h"
#include "model/load.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

struct Shape {
  std::string_view name;
  std::string_view config;
};

constexpr Shape kShapes[] = {
    {"gpt2-small",
     R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_head": 12,
 "n_embd": 768, "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new",
 "layer_norm_epsilon": 1e-05, "bos_token_id": 50256, "eos_token_id": 50256})"},
    {"gpt2-medium",
     R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 24, "n_head": 16,
 "n_embd": 1024, "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new",
 "layer_norm_epsilon": 1e-05, "bos_token_id": 50256, "eos_token_id": 50256})"},
    {"pythia-160m",
     R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
 "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768,
 "intermediate_size": 3072, "max_position_embeddings": 2048, "vocab_size": 50304,
 "hidden_act": "gelu", "layer_norm_eps": 1e-05, "rotary_pct": 0.25, "rotary_emb_base": 10000,
 "use_parallel_residual": true, "tie_word_embeddings": false, "bos_token_id": 0,
 "eos_token_id": 0})"},
    {"pythia-1.4b",
     R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
 "num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 2048,
 "intermediate_size": 8192, "max_position_embeddings": 2048, "vocab_size": 50304,
 "hidden_act": "gelu", "layer_norm_eps": 1e-05, "rotary_pct": 0.25, "rotary_emb_base": 10000,
 "use_parallel_residual": true, "tie_word_embeddings": false, "bos_token_id": 0,
 "eos_token_id": 0})"},
    {"pythia-6.9b",
     R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
 "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
 "intermediate_size": 16384, "max_position_embeddings": 2048, "vocab_size": 50432,
 "hidden_act": "gelu", "layer_norm_eps": 1e-05, "rotary_pct": 0.25, "rotary_emb_base": 10000,
 "use_parallel_residual": true, "tie_word_embeddings": false, "bos_token_id": 0,
 "eos_token_id": 0})"},
    {"llama-3.2-1b",
     R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 16,
 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2048,
 "intermediate_size": 8192, "max_position_embeddings": 131072, "vocab_size": 128256,
 "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
 "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "tie_word_embeddings": true,
 "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "bfloat16"})"},
    {"llama-3.1-8b",
     R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32,
 "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
 "intermediate_size": 14336, "max_position_embeddings": 131072, "vocab_size": 128256,
 "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
 "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
 "tie_word_embeddings": false, "bos_token_id": 128000, "eos_token_id": 128001,
 "torch_dtype": "bfloat16"})"},
    {"qwen3-0.6b",
     R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28,
 "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 1024,
 "intermediate_size": 3072, "max_position_embeddings": 40960, "vocab_size": 151936,
 "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null,
 "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28,
 "attention_bias": false, "tie_word_embeddings": true, "bos_token_id": 151643,
 "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
    {"gemma-2-2b",
     R"({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 26,
 "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2304,
 "intermediate_size": 9216, "max_position_embeddings": 8192, "vocab_size": 256000,
 "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
 "sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
 "final_logit_softcapping": 30.0, "attention_bias": false, "bos_token_id": 2, "eos_token_id": 1,
 "torch_dtype": "bfloat16"})"},
    {"gemma-3-4b",
     R"({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
 "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
 "hidden_size": 2560, "intermediate_size": 10240, "max_position_embeddings": 131072,
 "vocab_size": 262208, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06,
 "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
 "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 1024,
 "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "attention_bias": false,
 "bos_token_id": 2, "eos_token_id": 1, "torch_dtype": "bfloat16"})"},
    {"olmo-2-7b",
     R"({"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "num_hidden_layers": 32,
 "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 4096,
 "intermediate_size": 11008, "max_position_embeddings": 4096, "vocab_size": 100352,
 "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 500000.0, "attention_bias": false,
 "tie_word_embeddings": false, "eos_token_id": 100257})"},
    {"phi-3-mini",
     R"({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "num_hidden_layers": 32,
 "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 3072,
 "intermediate_size": 8192, "max_position_embeddings": 4096,
 "original_max_position_embeddings": 4096, "vocab_size": 32064, "hidden_act": "silu",
 "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 2047, "attention_bias": false,
 "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 32000,
 "torch_dtype": "bfloat16"})"},
    {"mixtral-8x7b",
     R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
 "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
 "hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8,
 "num_experts_per_tok": 2, "max_position_embeddings": 32768, "vocab_size": 32000,
 "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
 "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"})"},
    {"qwen3-30b-a3b",
     R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
 "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
 "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
 "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
 "mlp_only_layers": [], "max_position_embeddings": 40960, "vocab_size": 151936,
 "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null,
 "use_sliding_window": false, "sliding_window": null, "attention_bias": false,
 "tie_word_embeddings": false, "bos_token_id": 151643, "eos_token_id": 151645,
 "torch_dtype": "bfloat16"})"},
    {"gpt-oss-20b",
     R"({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"],
 "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
 "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
 "num_experts_per_tok": 4, "max_position_embeddings": 131072, "vocab_size": 201088,
 "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 150000,
 "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
 "truncate": false, "original_max_position_embeddings": 4096}, "sliding_window": 128,
 "attention_bias": true, "tie_word_embeddings": false, "eos_token_id": 200002,
 "torch_dtype": "bfloat16"})"},
};

}  // namespace

std::vector<std::string> known_shapes() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::string known_shape(std::string_view name) {
  const auto it = std::find_if(std::begin(kShapes), std::end(kShapes),
                               [&](const Shape& shape) { return shape.name == name; });
  if (it == std::end(kShapes))
    throw InputError(fmt::format("no known shape {} (known: {})", base::shown(name),
                                 base::joined(known_shapes())));
  return std::string(it->config);
}

}  // namespace unpack::model
