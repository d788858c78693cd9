// Fields as JSON values, for what is built from the project's source.
#pragma once

#include "unpack/fields.h"
#include "unpack/json.h"

namespace unpack {

// Of an object that did not come as JSON there is only its kind: InternalError.
OrderedJson field_json(const Field& field);
OrderedJson fields_json(const Fields& fields);
Fields fields_of(const OrderedJson& object);  // a member that is an object keeps its text

}  // namespace unpack
