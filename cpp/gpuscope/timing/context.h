// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::timing {

// CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTALLOC_DEVICEMAP, which have these values for CU_MEMHOSTREGISTER, too
inline constexpr unsigned kPortableAndMapped = 0x01 | 0x02;
inline constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: nothing else waits for it

/// Keeps a device's primary context alive and current to whoever pushes it. Any thread.
class PrimaryContext {
 public:
  /// Throws NotAvailable without a driver or such a device, CudaError when the driver refuses.
  PrimaryContext(const driver::Cuda& cuda, int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const driver::Cuda& cuda() const noexcept { return cuda_; }
  driver::CuContext handle() const noexcept { return context_; }
  /// The program has reset the device (cudaDeviceReset): all that was made in the context is gone, host memory too. Its
  /// next work makes another of the same handle, which drivers before CUDA 12 do not tell from it. So too where the
  /// driver no longer answers, as at the end of the process and in a forked child: nothing can be released there.
  bool was_reset() const noexcept;
  /// Calls `release(cuda)` with the context current: for destructors. Where the device was reset there is nothing to
  /// release.
  template <class F>
  void release_in(F&& release) const noexcept {
    driver::CuContext popped = nullptr;
    if (!was_reset() && cuda_.context_push(context_) == 0) {
      release(cuda_);
      cuda_.context_pop(&popped);
    }
  }

  /// Makes the context current for a scope. The calling thread's.
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
  unsigned long long id_ = 0;  // the driver's, no two contexts of a process have the same; 0 where it has none
};

/// While a stream captures in the global mode, a call that asks for an event's state, on any thread, is refused and
/// spoils the capture; not so within this scope. The calling thread's.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const driver::Cuda& cuda) noexcept : cuda_(cuda), relaxed_(exchange()) {}
  ~RelaxedCapture() {
    if (relaxed_) {  // otherwise the driver may only have been initialised since
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
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then what the thread had
  bool relaxed_;
};

/// PTX that the driver has compiled for one context. Launches may come from any thread that has the context current.
class Module {
 public:
  /// `kernels`: without the header, which is PTX 6.0's for compute capability 5.0: every driver that CUPTI 12 accepts
  /// compiles it. The context outlives the module.
  Module(const PrimaryContext& context, const std::string& kernels);
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

/// CUDA's names for the default streams: 0, the legacy one (1), the calling thread's (2).
constexpr bool is_default_stream(uint64_t stream) noexcept { return stream <= 2; }

/// The device of a stream; of a default stream that of the current context. 0 without a driver or a context.
int stream_device(const driver::Cuda& cuda, uint64_t stream);

/// Whether what is put on a stream of the current context goes into a CUDA graph.
bool is_capturing(const driver::Cuda& cuda, driver::CuStream stream);
/// The same of a stream of a device; of its default stream also while another stream captures that it waits for. Makes
/// no context, and leaves every capture whole.
bool is_capturing(const driver::Cuda& cuda, uint64_t stream, int device);

/// Keeps every primary context that there is until the process is gone: what CUDA's runtime releases as the process
/// exits is then not destroyed there. Without a driver it does nothing.
void keep_primary_contexts(const driver::Cuda& cuda) noexcept;

/// Waits for everything on a device's primary context, which CUDA's runtime and all frameworks use; seconds waited.
/// Makes no context: where there is none, there is nothing to wait for.
double synchronize(const driver::Cuda& cuda, int device);
/// Waits for one stream; seconds waited.
double synchronize_stream(const driver::Cuda& cuda, uint64_t stream, int device);

}  // namespace gpuscope::timing
