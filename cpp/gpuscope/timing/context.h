// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::timing {

// CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTALLOC_DEVICEMAP. CU_MEMHOSTREGISTER has the same values.
inline constexpr unsigned kPortableAndMapped = 0x01 | 0x02;
inline constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: no implicit waits with the legacy stream

/// Keeps a device's primary context alive. Callers push it to make it current. Any thread.
class PrimaryContext {
 public:
  /// Throws NotAvailable without a driver or such a device, CudaError if the driver refuses.
  PrimaryContext(const driver::Cuda& cuda, int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const driver::Cuda& cuda() const noexcept { return cuda_; }
  driver::CuContext handle() const noexcept { return context_; }
  /// Whether the program has reset the device (cudaDeviceReset): all objects of the context are gone, including host
  /// memory. The next work makes another context with the same handle, which drivers before CUDA 12 cannot distinguish.
  ///
  /// Also true if the driver no longer answers, at the end of the process or in a forked child: nothing can be
  /// released.
  bool was_reset() const noexcept;
  /// Calls `release(cuda)` with the context current: for destructors. No call after a reset, as there is nothing to
  /// release.
  template <class F>
  void release_in(F&& release) const noexcept {
    driver::CuContext popped = nullptr;
    if (!was_reset() && cuda_.context_push(context_) == 0) {
      release(cuda_);
      cuda_.context_pop(&popped);
    }
  }

  /// Makes the context current for a scope of the calling thread.
  class Current {
   public:
    explicit Current(const PrimaryContext& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const driver::Cuda& cuda_;
  };

 private:
  driver::Cuda cuda_;
  driver::CuDevice device_ = 0;
  driver::CuContext context_ = nullptr;
  unsigned long long id_ = 0;  // the driver's unique id of the context; 0 if the driver has none
};

/// While a stream captures in the global mode, querying an event's state on any thread fails and invalidates the
/// capture. In this scope, queries of the calling thread are allowed.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const driver::Cuda& cuda) noexcept : cuda_(cuda), relaxed_(exchange()) {}
  ~RelaxedCapture() {
    if (relaxed_) {  // otherwise the driver may have been initialised since
      exchange();
    }
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  bool exchange() noexcept {
    return cuda_.exchange_capture_mode != nullptr && cuda_.exchange_capture_mode(&mode_) == 0;
  }

  const driver::Cuda& cuda_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the thread's previous mode
  bool relaxed_;
};

/// PTX compiled by the driver for one context. Launches may come from any thread with the context current.
class Module {
 public:
  /// `kernels`: without the header, which is PTX 6.0's for compute capability 5.0. Every driver accepted by CUPTI 12
  /// compiles it. The context must outlive the module.
  Module(const PrimaryContext& context, const std::string& kernels);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  driver::CuFunction function(const char* name) const;
  /// A variable of the module, initially zero.
  driver::CuPointer variable(const char* name) const;
  void launch(driver::CuFunction function, unsigned blocks, unsigned threads, uint64_t stream, void** arguments) const;

 private:
  const PrimaryContext& context_;
  driver::CuModule module_ = nullptr;
};

/// CUDA's names for the default streams: 0, the legacy one (1), the calling thread's (2).
constexpr bool is_default_stream(uint64_t stream) noexcept { return stream <= 2; }

/// The device of a stream. For a default stream, that of the current context. 0 without a driver or a context.
int stream_device(const driver::Cuda& cuda, uint64_t stream);

/// Whether work on a stream of the current context is captured into a CUDA graph.
bool is_capturing(const driver::Cuda& cuda, driver::CuStream stream);
/// The same for a stream of a device. For its default stream, also true while a stream for which it waits captures.
/// Makes no context, and keeps every capture valid.
bool is_capturing(const driver::Cuda& cuda, uint64_t stream, int device);

/// Keeps every existing primary context until the process has ended: releases by CUDA's runtime at exit then do not
/// destroy them. No effect without a driver.
void keep_primary_contexts(const driver::Cuda& cuda) noexcept;

/// Waits for all work of a device's primary context, which CUDA's runtime and all frameworks use. Returns the seconds
/// waited. Makes no context: without one there is no work.
double synchronize(const driver::Cuda& cuda, int device);
/// Waits for one stream. Returns the seconds waited.
double synchronize_stream(const driver::Cuda& cuda, uint64_t stream, int device);

}  // namespace gpuscope::timing
