// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpuscope::bindings {

/// The base::Names ids of the strings seen last, by the string's address. With the GIL.
class NameIds {
 public:
  /// False with a Python error set.
  static bool find(PyObject* text, uint32_t* id) {
    const auto address = reinterpret_cast<uintptr_t>(text);
    Known& known = known_[(address >> 4 ^ address >> 14) % known_.size()];
    if (known.text != text && !learn(text, known)) [[unlikely]] {
      return false;
    }
    *id = known.id;
    return true;
  }

 private:
  // Owns its string, so that an address stays its own.
  struct Known {
    PyObject* text;
    uint32_t id;
  };
  static bool learn(PyObject* text, Known& known);

  static std::array<Known, 1024> known_;
};

}  // namespace gpuscope::bindings
