// Quantised checkpoints in safetensors whose layout config.json names: FP8, bitsandbytes' 4 bit,
// AWQ and GPTQ. Weights stay as they are stored and are widened a run at a time.
#pragma once

#include <string>

#include "base/index.h"
#include "model/checkpoint.h"
#include "model/config_reader.h"

namespace unpack::model {

enum class QuantMethod { none, fp8, bitsandbytes, awq, gptq };

struct Quantisation {
  QuantMethod method = QuantMethod::none;
  Index group = 0;               // AWQ, GPTQ: inputs that share a scale; 0: all
  bool stored_less_one = false;  // GPTQ: zero points as the first format stores them
  Index block[2] = {0, 0};       // FP8: outputs and inputs of a block; 0: none
  std::string name() const;      // "GPTQ 4 bit", ...; empty for none
};

// What quantization_config says. Throws InputError that names the scheme where it is not read.
// MXFP4 of gpt_oss is none of these: its family reads it.
Quantisation read_quantisation(const ConfigReader& config, const std::string& family);
Quantisation read_quantisation(std::string_view config_json, const std::string& origin);

// Puts an entry NAME.weight of plain shape [out, in] in place of the tensors that hold its parts.
void unfold_quantised(Checkpoint& checkpoint, const Quantisation& quantisation);

}  // namespace unpack::model
