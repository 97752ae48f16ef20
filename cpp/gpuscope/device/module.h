// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpuscope/device/primary_context.h"
#include "gpuscope/device/stream_handle.h"
#include "gpuscope/driver/cuda.h"

namespace gpuscope::device {

/// PTX that the driver has compiled for one context. Launches may come from any thread that has the context current.
class Module {
 public:
  /// The context outlives the module.
  Module(const PrimaryContext& context, const char* ptx);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  driver::CuFunction function(const char* name) const;
  /// A variable of the module's, which is zero at first.
  driver::CuPointer variable(const char* name) const;
  void launch(driver::CuFunction function, unsigned blocks, unsigned threads, uint64_t stream, void** arguments) const;

 private:
  const PrimaryContext& context_;
  driver::CuModule module_ = nullptr;
};

}  // namespace gpuscope::device
