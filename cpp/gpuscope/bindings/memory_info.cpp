// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/device/memory_info.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/readers.h"
#include "gpuscope/bindings/vendor.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

py::dict process_memory(int ordinal) {
  const device::MemoryInfo info = reader_of<device::MemoryReader>(ordinal).read(static_cast<unsigned>(getpid()));
  py::dict facts;
  facts["process"] = info.process;
  facts["used"] = info.used;
  facts["free"] = info.free;
  facts["total"] = info.total;
  facts["name"] = info.name;
  facts["context"] = info.context;
  facts["why"] = info.why;
  return facts;
}

py::list memory_pools(int ordinal) {
  py::list pools;
  for (const device::MemoryPool& pool : device::read_memory_pools(vendor().cuda, ordinal)) {
    py::dict facts;
    facts["pool"] = pool.handle;
    facts["reserved"] = pool.reserved;
    facts["used"] = pool.used;
    facts["peak_reserved"] = pool.peak_reserved;
    facts["peak_used"] = pool.peak_used;
    pools.append(facts);
  }
  return pools;
}

}  // namespace

void bind_memory_info(py::module_& module) {
  module.def("process_memory", &process_memory, py::arg("device") = 0,
             "A GPU's memory in bytes, as NVML tells it now: process (this process, its context and all), used (by all "
             "processes), free (less than total - used: the driver keeps some), total; name; context: whether this "
             "process has a primary context there. What is None is "
             "explained in why. Makes no context.");
  module.def("memory_pools", &memory_pools, py::arg("device") = 0,
             "The driver's default and current pool of a device (cuMemAllocAsync), in bytes: pool (its handle), "
             "reserved, used, peak_reserved, peak_used. Empty without a context; makes none.");
  module.def(
      "devices_in_use", [] { return device::devices_in_use(vendor().cuda); },
      "Ordinals of the GPUs on which this process has a primary context. Makes none; raises NotAvailable without a "
      "GPU.");
}

}  // namespace gpuscope::bindings
