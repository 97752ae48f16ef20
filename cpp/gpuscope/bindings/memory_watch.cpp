// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/activity/cubin.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/frames.h"
#include "gpuscope/bindings/region_column.h"
#include "gpuscope/bindings/vendor.h"
#include "gpuscope/memory/ledger.h"
#include "gpuscope/memory/native_library.h"
#include "gpuscope/session/allocation_watch.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using Nogil = py::gil_scoped_release;
using memory::Piece;

// By the numbers of base::AllocationKind.
constexpr const char* kKinds[] = {"device", "pool", "managed", "pinned", "virtual", "array"};
static_assert(std::size(kKinds) == base::kAllocationKinds);

constexpr std::pair<activity::DeviceService, const char*> kServices[] = {
    {activity::kAssert, "assert"}, {activity::kPrintf, "printf"}, {activity::kMalloc, "malloc"}};

session::AllocationWatch& allocation_watch() {
  static auto* watch = new session::AllocationWatch(vendor());  // leaked, as the vendor's libraries are
  return *watch;
}

std::string watch(bool stacks) {
  const bool with_stacks = stacks && watch_stacks();
  session::AllocationWatch& watch = allocation_watch();
  const Nogil nogil;
  return watch.watch(with_stacks);
}

void unwatch() {
  session::AllocationWatch& watch = allocation_watch();
  const Nogil nogil;
  watch.unwatch();
}

void pause(const std::string& why) {
  session::AllocationWatch& watch = allocation_watch();
  const Nogil nogil;
  watch.pause(why);
}

std::string resume() {
  session::AllocationWatch& watch = allocation_watch();
  const Nogil nogil;
  return watch.resume();
}

template <class T, class F>
py::array_t<T> column(const std::vector<Piece>& pieces, F&& value) {
  py::array_t<T> values(static_cast<py::ssize_t>(pieces.size()));
  T* next = values.mutable_data();
  for (const Piece& piece : pieces) {
    *next++ = static_cast<T>(value(piece));
  }
  return values;
}

py::dict live() {
  std::vector<Piece> pieces;
  std::vector<std::string> libraries;
  session::AllocationWatch& watch = allocation_watch();
  {
    const Nogil nogil;
    pieces = watch.live();
    libraries = memory::NativeLibraries::process().names();
  }
  py::dict columns;
  columns["address"] = column<uint64_t>(pieces, [](const Piece& piece) { return piece.address; });
  columns["bytes"] = column<int64_t>(pieces, [](const Piece& piece) { return piece.bytes; });
  columns["kind"] = column<uint8_t>(pieces, [](const Piece& piece) { return piece.kind; });
  columns["device"] = column<int32_t>(pieces, [](const Piece& piece) { return piece.device; });
  columns["pool"] = column<uint64_t>(pieces, [](const Piece& piece) { return piece.pool; });
  columns["library"] = column<uint32_t>(pieces, [](const Piece& piece) { return piece.author.library; });
  columns["stack"] = column<uint32_t>(pieces, [](const Piece& piece) { return piece.author.stack; });
  RegionColumn regions;
  columns["region"] =
      column<uint32_t>(pieces, [&](const Piece& piece) { return regions.number_of(piece.author.region); });
  columns["regions"] = regions.names();
  columns["thread"] = column<uint64_t>(pieces, [](const Piece& piece) { return piece.author.thread; });
  columns["time_ns"] = column<int64_t>(pieces, [](const Piece& piece) { return piece.time_ns; });
  columns["libraries"] = libraries;
  return columns;
}

py::dict state() {
  session::AllocationWatch::State state;
  std::vector<std::string> libraries;
  session::AllocationWatch& watch = allocation_watch();
  {
    const Nogil nogil;
    state = watch.state();
    libraries = memory::NativeLibraries::process().names();
  }
  py::list failed;
  for (const memory::Failure& failure : state.failures) {
    py::dict one;
    one["bytes"] = failure.bytes;
    one["kind"] = kKinds[static_cast<std::size_t>(failure.kind)];
    one["device"] = failure.device;
    one["library"] = libraries[failure.author.library];
    one["stack"] = failure.author.stack;
    one["time_ns"] = failure.time_ns;
    one["live_bytes"] = failure.live_bytes;
    one["result"] = failure.result;
    failed.append(std::move(one));
  }
  py::dict facts;
  facts["watching"] = state.watching;
  facts["why"] = state.why;
  facts["from_start"] = state.from_start;
  facts["gaps"] = state.gaps;
  facts["unknown_releases"] = state.counts.unknown_releases;
  facts["missed"] = state.counts.missed;
  facts["failed"] = failed;
  facts["contexts"] = state.loaded.contexts;
  facts["modules"] = state.loaded.modules;
  facts["code_bytes"] = state.loads_whole_modules ? std::optional(state.loaded.code_bytes) : std::nullopt;
  py::list services;
  for (const auto& [service, name] : kServices) {
    if ((state.loaded.services & service) != 0) {
      services.append(name);
    }
  }
  facts["services"] = services;
  facts["cupti_path"] = vendor().collector.cupti().library.path();
  return facts;
}

}  // namespace

void bind_memory_watch(py::module_& module) {
  module.attr("ALLOCATION_KINDS") = py::make_tuple(kKinds[0], kKinds[1], kKinds[2], kKinds[3], kKinds[4], kKinds[5]);
  module.def("watch_allocations", &watch, py::arg("stacks") = true,
             "Keeps a ledger of what the driver gives out from now on. Returns why that cannot be had; after '', call "
             "unwatch_allocations once.");
  module.def("unwatch_allocations", &unwatch, "One user less; the ledger is given up with the last.");
  module.def("pause_allocation_watch", &pause, py::arg("why"),
             "Gives CUPTI up to somebody who needs it; `why` is told as the reason until the watch is resumed.");
  module.def("resume_allocation_watch", &resume, "Goes on after a pause; returns why that cannot be had.");
  module.def("live_allocations", &live,
             "Columns, a row for each piece of memory that lives, and the names that the columns library and region "
             "count; the first is '', one that is not known. Device -1 is the host, -2 one that is not known.");
  module.def(
      "allocation_watch", &state,
      "How the watch stands, the last 16 allocations that the driver refused, and what was loaded since; code_bytes "
      "is None where functions are loaded one by one, services what kernels call of the driver.");
}

}  // namespace gpuscope::bindings
