#pragma once

#include "report/svg_parts.h"

namespace unpack::report {

// Rows: tokens of the continuation; columns: the tokens before.
Extent draw_attribution(SvgCanvas& canvas, const AttributeResult& result, double x, double y);

}  // namespace unpack::report
