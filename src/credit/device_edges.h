// Edges computed where the backend's arrays are, for backends that can (backend/device_credit.h): everything is queued, then fetched at once.
#pragma once

#include <span>
#include <vector>

#include "credit/edges.h"

namespace unpack {

// Both return false, and do nothing, where the backend cannot.
bool edges_on_device(const Decomposition& d, const Options& options, const RunContext& context, std::vector<LayerEdges<float>>& out);
bool direct_on_device(const Decomposition& d, const Options& options, std::span<const int> layers, int query, const Array& direction,
                      std::vector<DirectEdges>& out);

}  // namespace unpack
