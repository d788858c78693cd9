// A part of a stored matrix, read.
#pragma once

#include "base/index.h"
#include "model/weights.h"

namespace unpack::model {

struct WeightBlock {
  Index row, rows, column, columns;
};

// Whether an element takes fewer bits than half precision does. What is encoded may also be plain
// numbers in another order.
bool is_quantised(const WeightView& w);

// With rows of `out` ld apart; row i of the view times row_scale[i] where that is given.
void read_block(const WeightView& w, const WeightBlock& block, const float* row_scale, float* out,
                Index ld);
void read_block(const WeightView& w, const WeightBlock& block, const double* row_scale, double* out,
                Index ld);

}  // namespace unpack::model
