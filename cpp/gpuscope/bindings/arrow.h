// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/store/store.h"

namespace gpuscope::bindings {

/// A table as one record batch in a capsule of the Arrow C stream interface, which keeps the store alive. Number
/// columns are the store's own memory; columns of strings are dictionary-encoded.
pybind11::capsule arrow_stream(std::shared_ptr<const store::Store> store, std::string_view table);

}  // namespace gpuscope::bindings
