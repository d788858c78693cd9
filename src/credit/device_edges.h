// Edges computed where the backend's arrays are, for backends that can (backend/device_credit.h):
// everything is queued, then fetched at once.
#pragma once

#include <span>
#include <vector>

#include "base/index.h"
#include "credit/edges.h"

namespace unpack::credit {

// Up to this many floats are brought to the host at once, whether they are needed there or not.
inline constexpr Index kFetchedAtOnce = Index{1} << 24;

// Both do nothing, and return null and false, where the backend cannot. The edges stay on the
// device, and are copied into `out`; entry and key_coef are left out of the copy where they are
// many, and all of the heads' where the prompt is traced layer by layer. With a target its direct
// edges are made in the same walk over the layers.
backend::DeviceCredit* edges_on_device(const decompose::Decomposition& d, const Options& options,
                                       const RunContext& context, const EdgesTarget* target,
                                       EdgesCompanion<float>* companion,
                                       std::vector<LayerEdges<float>>& out,
                                       std::vector<backend::DeviceCredit::Layer>& layers,
                                       std::vector<DirectEdges>& direct);
// Entries and key coefficients of a layer made again, to what is kept of it, where the prompt is
// traced layer by layer.
DeviceLayer remade_layer(backend::DeviceCredit& device, const decompose::Decomposition& d,
                         const Options& options, const backend::DeviceCredit::Layer& kept);
bool direct_on_device(const decompose::Decomposition& d, const Options& options,
                      std::span<const int> layers, int query, const backend::Array& direction,
                      std::vector<DirectEdges>& out);

}  // namespace unpack::credit
