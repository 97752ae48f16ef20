// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <string>
#include <vector>

#include "gpuscope/bindings/bind.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// libcupti files from Python wheels, CUDA 13 first.
std::vector<std::string> cupti_wheels() {
  std::vector<std::string> found;
  for (const char* relative : {"/nvidia/cu13/lib/libcupti.so.13", "/nvidia/cuda_cupti/lib/libcupti.so.13",
                               "/nvidia/cuda_cupti/lib/libcupti.so.12"}) {
    for (const py::handle folder : py::module_::import("sys").attr("path")) {
      if (py::isinstance<py::str>(folder)) {
        const std::string path = folder.cast<std::string>() + relative;
        if (access(path.c_str(), R_OK) == 0) {
          found.push_back(path);
        }
      }
    }
  }
  return found;
}

}  // namespace

session::Vendor& vendor() {
  static auto* libraries = new session::Vendor(cupti_wheels());  // leaked: CUPTI's callbacks may come at any time
  return *libraries;
}

}  // namespace gpuscope::bindings
