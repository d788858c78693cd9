#include "backend/host/host_backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "backend/host/kernels.h"
#include "backend/question_tables.h"
#include "backend/rotary.h"

// The parts of the class, in an order that matters.
// clang-format off
#include "backend/host/host_forward.inl"
#include "backend/host/host_scores.inl"
#include "backend/host/host_neurons.inl"
#include "backend/host/host_products.inl"
#include "backend/host/host_credit.inl"
// clang-format on

namespace unpack {

template class HostBackend<float>;
template class HostBackend<double>;

}  // namespace unpack
