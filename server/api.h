// The endpoints: from a request to the work it asks for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model_worker.h"
#include "prepared_cache.h"
#include "questions.h"
#include "unpack/json.h"

namespace unpack::server {

struct Answer {
  Work work;
  std::string type = "application/json";
  bool quick = false;  // cheap enough to be done without waiting for the model's queue
};

class InspectApi;

class Api {
 public:
  Api(PreparedCache& cache, Limits limits);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  static const std::vector<std::string>& names();  // "trace" stands for POST /api/trace
  // Reads and checks the request (InputError, UsageError); nothing is computed yet.
  Answer ask(const std::string& name, const std::string& model_name, const Model& model,
             const Fields& body) const;

 private:
  Answer tokenize(const Model& model, const Fields& body) const;
  Answer predict(const Model& model, const Fields& body) const;
  Answer trace(const std::string& name, const std::string& model_name, const Model& model,
               const Fields& body) const;
  Answer interactions(const std::string& model_name, const Model& model, const Fields& body) const;
  Answer intervention(const Model& model, const Fields& body) const;
  Answer proof(const Model& model, const Fields& body) const;
  Answer sources(const Model& model, const Fields& body) const;
  Answer cost(const Model& model, const Fields& body) const;
  Prepared prepare(const std::string& model_name, const Model& model,
                   const std::vector<TokenId>& ids, const RunContext& context) const;

  PreparedCache& cache_;
  Limits limits_;
  std::unique_ptr<const InspectApi> inspect_;
};

JsonValue describe(const Model& model);
JsonValue method_options(const std::string& preset);
JsonValue preset_list();  // the options of each

}  // namespace unpack::server
