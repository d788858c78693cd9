// Endpoints that look closer: what a node reads and writes, attention patterns, the logit lens,
// spellings of a token, a trace in words, the tokens of an answer.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api.h"
#include "questions.h"
#include "unpack/json.h"

namespace unpack::server {

// The row of a head's attention at a node; nothing of an MLP.
std::vector<double> pattern_of(const Prepared& prepared, const Node& node);

class InspectApi {
 public:
  // From token ids to the prepared prompt, kept where there is room.
  using Prepare =
      std::function<Prepared(const std::string& model_name, const Model& model,
                             const std::vector<TokenId>& ids, const RunContext& context)>;
  InspectApi(Prepare prepare, Limits limits) : prepare_(std::move(prepare)), limits_(limits) {}

  static const std::vector<std::string>& names();
  // Nothing where the name is not one of these.
  std::optional<Answer> ask(const std::string& name, const std::string& model_name,
                            const Model& model, const Fields& body) const;

 private:
  Answer reads(const std::string& model_name, const Model& model, const Fields& body) const;
  Answer writes(const std::string& model_name, const Model& model, const Fields& body) const;
  Answer attention(const std::string& model_name, const Model& model, const Fields& body) const;
  Answer lens(const std::string& model_name, const Model& model, const Fields& body) const;
  Answer suggest(const std::string& model_name, const Model& model, const Fields& body) const;
  Answer words(const std::string& model_name, const Model& model, const Fields& body) const;
  Answer attribute(const Model& model, const Fields& body) const;

  Prepare prepare_;
  Limits limits_;
};

}  // namespace unpack::server
