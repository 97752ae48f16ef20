// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <utility>

#include "gpuscope/store/store.h"

namespace gpuscope::bindings {

/// Sets the pending facts, unless the store is being read. With the GIL.
inline void settle(store::Store& store) {
  if (store.readers == 0) {
    for (const auto& [key, value] : std::exchange(store.waiting, {})) {
      store.set_info(key, value);
    }
  }
}

/// While a store is read without the GIL, set_info is deferred: it would move strings and rows under the reader. No
/// thread waits for a lock, so the program may set facts anywhere, also in a signal handler. Begins and ends with the
/// GIL.
class StoreReading {
 public:
  explicit StoreReading(store::Store& store) : store_(store) {
    settle(store);
    ++store.readers;
  }
  ~StoreReading() { --store_.readers; }
  StoreReading(const StoreReading&) = delete;
  StoreReading& operator=(const StoreReading&) = delete;

 private:
  store::Store& store_;
};

/// The result of `read(store)`, called without the GIL.
template <class F>
auto read_unlocked(store::Store& store, F&& read) {
  const StoreReading reading(store);
  const pybind11::gil_scoped_release unlocked;
  return read(std::as_const(store));
}

}  // namespace gpuscope::bindings
