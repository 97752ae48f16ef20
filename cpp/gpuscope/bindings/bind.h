// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace gpuscope::bindings {

// One function a file of this folder; module.cpp calls them in this order.
void bind_errors(pybind11::module_& module);
void bind_store(pybind11::module_& module);
void bind_analysis(pybind11::module_& module);
void bind_exporters(pybind11::module_& module);
void bind_regions(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_sampling(pybind11::module_& module);
void bind_timing(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_torch(pybind11::module_& module);
void bind_memory_history(pybind11::module_& module);
void bind_environment(pybind11::module_& module);
void bind_nvtx(pybind11::module_& module);
void bind_memory_info(pybind11::module_& module);
void bind_memory_watch(pybind11::module_& module);

/// The file of the extension module.
std::string own_file();

}  // namespace gpuscope::bindings
