// Double-precision pieces that modified gradients share: arrays and weights on the host.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/rotary.h"
#include "base/index.h"
#include "model/weights.h"

namespace unpack::decompose {

std::vector<double> fetch(backend::Backend& backend, const backend::Array& array);
std::vector<double> fetch(
    const model::WeightView& w);  // all rows, [in, out]; empty for an empty view

// g_x += g_y W^T for rows [S]; rows of g_y that are all zero cost nothing. g_y[S, out], g_x[S, in].
void linear_back(backend::Backend& backend, const model::WeightView& w, std::span<const double> g_y,
                 std::span<double> g_x, Index rows);

// y = x W; x[S, in], y[S, out] is overwritten.
void linear(const model::WeightView& w, std::span<const double> x, std::span<double> y, Index rows);

double dot(std::span<const double> x, std::span<const double> y);

// The adjoint of rotary: turned back by the angles of its position, position * frequency(i).
void rotate_back(const Rope& rope, std::span<const double> frequencies, int position,
                 std::span<double> head);

}  // namespace unpack::decompose
