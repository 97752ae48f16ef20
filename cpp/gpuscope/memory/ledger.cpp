// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/ledger.h"

#include <link.h>
#include <pthread.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/memory/history.h"

namespace gpuscope::memory {

namespace {

constexpr unsigned kMaxFrames = 32;

// Prefixes of the names of files that pass calls on.
constexpr std::string_view kPassOn[] = {"libcuda.", "libcudart",  "libcupti",   "libnvidia-", "libc.",      "libc-",
                                        "libm.",    "libdl.",     "libpthread", "librt.",     "libstdc++.", "libgcc_s",
                                        "ld-",      "linux-vdso", "libffi",     "_ctypes."};

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string_view folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

/// The package of a Python extension: its folder under site-packages, otherwise its own folder.
std::string_view package_of(std::string_view path) {
  for (const std::string_view root : {"/site-packages/", "/dist-packages/"}) {
    if (const std::size_t at = path.rfind(root); at != std::string_view::npos) {
      const std::string_view inside = path.substr(at + root.size());
      const std::size_t slash = inside.find('/');
      return slash == std::string_view::npos ? std::string_view() : inside.substr(0, slash);
    }
  }
  return last_part(folder_of(path));
}

/// The loaded file that contains an address. The loader's texts are valid only under its lock, where no memory may be
/// allocated. So the end of the path, which has the names, is copied.
struct Search {
  uint64_t address;
  bool found = false;
  std::array<char, 1024> path{};
};

int look(dl_phdr_info* file, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  for (int index = 0; index < file->dlpi_phnum; ++index) {
    const auto& part = file->dlpi_phdr[index];
    const uint64_t start = file->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && search->address >= start && search->address - start < part.p_memsz) {
      search->found = true;
      const std::size_t size = file->dlpi_name != nullptr ? std::strlen(file->dlpi_name) : 0;
      const std::size_t kept = std::min(size, search->path.size() - 1);
      std::memcpy(search->path.data(), file->dlpi_name + (size - kept), kept);
      return 1;
    }
  }
  return 0;
}

int count_unloads(dl_phdr_info* file, size_t, void* data) {
  *static_cast<uint64_t*>(data) = file->dlpi_subs;
  return 1;  // the count is the same for every file
}

}  // namespace

std::string library_name(std::string_view path) {
  const std::string_view file = last_part(path);
  for (const std::string_view start : kPassOn) {
    if (file.starts_with(start)) {
      return {};
    }
  }
  const bool is_extension = file.find(".cpython-") != std::string_view::npos ||
                            (!file.starts_with("lib") && file.find(".so") != std::string_view::npos);
  if (!is_extension) {
    const bool is_interpreter = file.starts_with("python") || file.starts_with("libpython");
    return std::string(is_interpreter ? "python" : file);
  }
  const std::string_view package = package_of(path);
  if (package == "gpuscope") {
    return {};
  }
  std::string name(package);
  return name.append(package.empty() ? "" : "/").append(file);
}

NativeLibraries& NativeLibraries::process() {
  static auto* libraries = new NativeLibraries;  // leaked: the driver is called until process exit
  return *libraries;
}

struct NativeLibraries::Walk {
  NativeLibraries& libraries;
  unsigned frames = 0;
  uint32_t found = 0;

  static _Unwind_Reason_Code step(_Unwind_Context* context, void* data) {
    auto* walk = static_cast<Walk*>(data);
    int at_instruction = 0;  // set for interrupted frames; otherwise the address is after the call
    const uint64_t address = _Unwind_GetIPInfo(context, &at_instruction);
    if (address != 0) {
      walk->found = walk->libraries.of_address(address - (at_instruction != 0 ? 0 : 1));
    }
    return walk->found != 0 || ++walk->frames == kMaxFrames ? _URC_END_OF_STACK : _URC_NO_REASON;
  }
};

uint32_t NativeLibraries::caller() noexcept {
  forget_unloaded();
  Walk walk{*this};
  _Unwind_Backtrace(&Walk::step, &walk);
  return walk.found;
}

void NativeLibraries::forget_unloaded() noexcept {
  uint64_t unloads = 0;
  dl_iterate_phdr(&count_unloads, &unloads);
  if (unloads_.exchange(unloads, std::memory_order_acq_rel) != unloads) {
    for (std::atomic<uint64_t>& slot : known_) {
      slot.store(0, std::memory_order_relaxed);
    }
  }
}

uint32_t NativeLibraries::of_address(uint64_t address) noexcept {
  std::atomic<uint64_t>& slot = known_[base::mix(address) % kSlots];
  const uint64_t known = slot.load(std::memory_order_relaxed);
  if (known >> kNumberBits == address) {
    return static_cast<uint32_t>(known & ((1U << kNumberBits) - 1));
  }
  Search search{address};
  dl_iterate_phdr(&look, &search);
  uint32_t number = 0;
  try {
    std::string path = search.path.data();
    if (search.found && path.empty()) {  // the program itself
      path.resize(search.path.size());
      path.resize(static_cast<std::size_t>(std::max<ssize_t>(readlink("/proc/self/exe", path.data(), path.size()), 0)));
    }
    if (const std::string name = library_name(path); !name.empty()) {
      number = intern(name);
    }
  } catch (const std::exception&) {
    return 0;  // not cached: there may be memory next time
  }
  if (address >> (64 - kNumberBits) == 0) {
    slot.store(address << kNumberBits | number, std::memory_order_relaxed);
  }
  return number;
}

uint32_t NativeLibraries::intern(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(names_, name);
  if (found != names_.end()) {
    return static_cast<uint32_t>(found - names_.begin());
  }
  if (names_.size() >> kNumberBits != 0) {
    return 0;
  }
  names_.push_back(name);
  return static_cast<uint32_t>(names_.size() - 1);
}

std::vector<std::string> NativeLibraries::names() {
  const std::lock_guard lock(mutex_);
  return names_;
}

using base::AllocationKind;
using base::AllocationStep;
using base::DriverAllocation;

namespace {

// Allocations with an address are also part of the memory history, while it is recorded.
void record_in_history(const Allocation& allocation, bool taken) noexcept {
  if (allocation.address != 0 && History::process().recording()) {
    const auto bytes = static_cast<int64_t>(allocation.bytes);
    History::process().record({allocation.address, taken ? bytes : -bytes, 0, 0, allocation.device, Source::Driver});
  }
}

}  // namespace

Ledger& Ledger::process() {
  static Ledger* ledger = [] {
    base::survive_forks();
    static auto* made = new Ledger;  // leaked: the driver is called until process exit
    static std::mutex& libraries = NativeLibraries::process().mutex_;
    static constexpr auto kUnlock = [] {
      libraries.unlock();
      made->mutex_.unlock();
    };
    pthread_atfork(
        [] {
          made->mutex_.lock();
          libraries.lock();
        },
        kUnlock,
        [] {
          base::allocation_sink.store(nullptr);
          base::OpenRegions::end(base::OpenRegions::kLedger);
          made->clear();  // the parent's memory
          kUnlock();
        });
    return made;
  }();
  return *ledger;
}

void Ledger::begin(bool stacks) {
  const std::lock_guard lock(mutex_);
  clear();
  failures_.clear();
  unknown_releases_ = 0;
  missed_ = 0;
  stacks_ = stacks;
  base::OpenRegions::begin(base::OpenRegions::kLedger);
}

void Ledger::forget() noexcept {
  base::OpenRegions::end(base::OpenRegions::kLedger);
  const std::lock_guard lock(mutex_);
  clear();
}

void Ledger::clear() noexcept {
  by_address_.clear();
  virtual_.clear();
  arrays_.clear();
  mappings_.clear();
}

Caller Ledger::find_caller() const noexcept {
  Caller caller;
  caller.library = NativeLibraries::process().caller();
  caller.thread = base::thread_id();
  caller.stack = stacks_.load(std::memory_order_relaxed) ? base::current_stack() : 0;
  caller.region = base::current_region();
  return caller;
}

void Ledger::record(const DriverAllocation& event) noexcept {
  const Caller caller = event.step == AllocationStep::Allocated ? find_caller() : Caller{};
  try {
    const std::lock_guard lock(mutex_);
    switch (event.step) {
      case AllocationStep::Allocated:
        return event.result == 0 ? take(event, caller) : refuse(event, caller);
      case AllocationStep::Released:
        return release(event);
      case AllocationStep::Mapped:
        return map(event);
      case AllocationStep::Unmapped:
        return unmap(event);
      case AllocationStep::Retained:
        if (const auto found = virtual_.find(event.handle); found != virtual_.end()) {
          ++found->second.holders;
        }
        return;
      case AllocationStep::ContextDestroyed:
        return forget_context(event.context);
    }
  } catch (const std::exception&) {
    missed_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Ledger::take(const DriverAllocation& event, const Caller& caller) {
  Entry entry;
  entry.allocation = {
      event.address, event.bytes, event.pool, event.context, base::Clock::process().to_ns(event.ended_ticks),
      event.device,  event.kind,  caller};
  entry.taken_ticks = event.ended_ticks;
  // A previous entry was released: its release is yet to come, or was missed.
  switch (event.kind) {
    case AllocationKind::Virtual:
      virtual_[event.handle] = entry;
      return;
    case AllocationKind::Array:
      arrays_[event.handle] = entry;
      return;
    default:
      by_address_[event.address] = entry;
      record_in_history(entry.allocation, true);
  }
}

void Ledger::refuse(const DriverAllocation& event, const Caller& caller) {
  Failure failure{event.bytes, 0,     base::Clock::process().to_ns(event.ended_ticks), event.device, event.result,
                  event.kind,  caller};
  for (const Entries* entries : {&by_address_, &virtual_, &arrays_}) {
    for (const auto& [key, entry] : *entries) {
      failure.live_bytes += entry.allocation.device == event.device ? entry.allocation.bytes : 0;
    }
  }
  failures_.push_back(failure);
  if (failures_.size() > kFailures) {
    failures_.pop_front();
  }
}

void Ledger::release(const DriverAllocation& event) {
  Entries& entries = event.kind == AllocationKind::Virtual ? virtual_
                     : event.kind == AllocationKind::Array ? arrays_
                                                           : by_address_;
  const auto found = entries.find(
      event.kind == AllocationKind::Virtual || event.kind == AllocationKind::Array ? event.handle : event.address);
  if (found == entries.end()) {
    ++unknown_releases_;
    return;
  }
  // The driver may reuse an address on another thread before the releasing call has returned.
  if (found->second.taken_ticks > event.began_ticks) {
    return;
  }
  if (found->second.holders > 0) {
    --found->second.holders;
  }
  if (found->second.holders == 0 && found->second.mappings == 0) {
    record_in_history(found->second.allocation, false);
    entries.erase(found);
  }
}

void Ledger::map(const DriverAllocation& event) {
  const auto found = virtual_.find(event.handle);
  if (found == virtual_.end()) {
    return;
  }
  mappings_[event.address] = {event.handle, event.ended_ticks};
  if (found->second.mappings++ == 0) {
    found->second.allocation.address = event.address;
    record_in_history(found->second.allocation, true);
  }
}

void Ledger::unmap(const DriverAllocation& event) {
  // One call may unmap adjacent mappings that were made separately.
  auto next = mappings_.lower_bound(event.address);
  while (next != mappings_.end() && next->first - event.address < event.bytes) {
    if (next->second.mapped_ticks > event.began_ticks) {
      ++next;
      continue;
    }
    const auto found = virtual_.find(next->second.handle);
    next = mappings_.erase(next);
    if (found == virtual_.end() || found->second.mappings == 0) {
      continue;
    }
    if (--found->second.mappings == 0) {
      record_in_history(found->second.allocation, false);
      found->second.allocation.address = 0;
      if (found->second.holders == 0) {
        virtual_.erase(found);
      }
    }
  }
}

void Ledger::forget_context(uint64_t context) {
  // Virtual memory belongs to no context.
  for (Entries* entries : {&by_address_, &arrays_}) {
    std::erase_if(*entries, [context](const auto& entry) {
      const bool gone = entry.second.allocation.context == context;
      if (gone) {
        record_in_history(entry.second.allocation, false);
      }
      return gone;
    });
  }
}

std::vector<Allocation> Ledger::live() {
  const std::lock_guard lock(mutex_);
  std::vector<Allocation> allocations;
  allocations.reserve(by_address_.size() + virtual_.size() + arrays_.size());
  for (const Entries* entries : {&by_address_, &virtual_, &arrays_}) {
    for (const auto& [key, entry] : *entries) {
      allocations.push_back(entry.allocation);
    }
  }
  return allocations;
}

std::vector<Failure> Ledger::failures() {
  const std::lock_guard lock(mutex_);
  return {failures_.begin(), failures_.end()};
}

Ledger::Counts Ledger::counts() {
  const std::lock_guard lock(mutex_);
  return {unknown_releases_, missed_.load()};
}

}  // namespace gpuscope::memory
