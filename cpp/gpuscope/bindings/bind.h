// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

#include "gpuscope/driver/nvml.h"
#include "gpuscope/session/session.h"

namespace gpuscope::bindings {

// One function a file of this folder; module.cpp calls them in this order.
void bind_store(pybind11::module_& module);
void bind_analysis(pybind11::module_& module);
void bind_exporters(pybind11::module_& module);
void bind_regions(pybind11::module_& module);
void bind_nvml(pybind11::module_& module);
void bind_timing(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_torch(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_environment(pybind11::module_& module);

/// The process's libcuda and libcupti, opened at the first call, never closed. With the GIL.
session::Vendor& vendor();
/// Likewise libnvidia-ml.
const driver::Nvml& libnvidia_ml();

/// A copy of the values.
template <class T>
pybind11::array_t<T> to_array(const std::vector<T>& values) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

}  // namespace gpuscope::bindings
