// The options of an experiment as JSON and back: a merge looks at the same models and files once
// more.
#pragma once

#include "experiments/records.h"
#include "unpack/experiments.h"

namespace unpack::experiments {

Json source_json(const ExperimentOptions& options);  // files by their whole path
ExperimentOptions options_from(const Json& source);

}  // namespace unpack::experiments
