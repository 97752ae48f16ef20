// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/history.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <new>
#include <unordered_map>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/hooks.h"

namespace gpuscope::memory {
namespace {

// A slot's state: 2 * event + 1 while the event is being written, 2 * event + 2 when it is complete.
constexpr uint64_t writing(uint64_t event) noexcept { return 2 * event + 1; }
constexpr uint64_t whole(uint64_t event) noexcept { return 2 * event + 2; }

// A region is at most 2^20 + 1, the limit of base::Names.
constexpr uint32_t kSourceBits = 8;
constexpr uint32_t pack(Source source, uint32_t region) noexcept {
  return region << kSourceBits | static_cast<uint32_t>(source);
}

// A peak: the device in the upper bits, the bytes plus one below, 0 before any report.
constexpr uint32_t kDeviceShift = 48;
constexpr uint64_t kBytes = (uint64_t{1} << kDeviceShift) - 1;

constexpr uint64_t tag(int32_t device) noexcept { return uint64_t{static_cast<uint16_t>(device)} << kDeviceShift; }
constexpr uint64_t bit(uint32_t scope) noexcept { return uint64_t{1} << scope; }

}  // namespace

// One cache line, of memory that is initially zero.
struct alignas(64) History::Slot {
  /// A field that may be read while it is written: the reader then sees a changed slot state.
  template <class T>
  class Field {
   public:
    void set(T value) noexcept { value_.store(value, std::memory_order_release); }
    T get() const noexcept { return value_.load(std::memory_order_acquire); }

   private:
    std::atomic<T> value_;
  };

  std::atomic<uint64_t> state;
  Field<uint64_t> ticks;
  Field<uint64_t> address;
  Field<int64_t> bytes;
  Field<int64_t> allocated;
  Field<int64_t> reserved;
  Field<int32_t> device;
  Field<uint32_t> stack;
  Field<uint32_t> thread;
  Field<uint32_t> origin;  // packed: source and region
};

// Precedes its slots.
struct alignas(64) History::Ring {
  explicit Ring(uint64_t slots) noexcept : size(slots) {}

  const uint64_t size;
  std::atomic<uint64_t> mask{0};  // of the slots in use, a power of two, which avoids a division

  Slot* slots() noexcept { return reinterpret_cast<Slot*>(this + 1); }
  Slot& at(uint64_t event) noexcept { return slots()[event & mask.load(std::memory_order_relaxed)]; }

  static Ring* make(uint64_t size) {
    void* memory =
        mmap(nullptr, bytes(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    return new (memory) Ring(size);
  }
  /// Returns its memory to the system, except the first page: a delayed writer then still finds zeros.
  void retire() noexcept {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (bytes(size) > page) {
      madvise(reinterpret_cast<char*>(this) + page, bytes(size) - page, MADV_DONTNEED);
    }
  }

 private:
  static std::size_t bytes(uint64_t slots) noexcept { return sizeof(Ring) + slots * sizeof(Slot); }
};

History& History::process() noexcept {
  static constinit History history;
  return history;
}

void History::start(uint64_t capacity, bool stacks) {
  stop();
  base::Clock::process();
  const uint64_t size = std::bit_ceil(std::max<uint64_t>(capacity, 1));
  static_assert(sizeof(Slot) == 64 && sizeof(Ring) == 64);
  // A smaller history uses a part of the existing ring. Rings are never freed, so there are few.
  if (ring_ == nullptr || ring_->size < size) {
    Ring* ring = Ring::make(size);
    if (ring_ != nullptr) {
      ring_->retire();
    }
    ring_ = ring;
    ring_first_ = next_.load();
  }
  ring_->mask.store(size - 1, std::memory_order_relaxed);
  capacity_ = capacity;
  first_ = next_.load();
  stacks_.store(stacks, std::memory_order_relaxed);
  base::OpenRegions::begin(base::OpenRegions::kHistory);
  recording_.store(ring_, std::memory_order_release);
}

void History::stop() noexcept {
  recording_.store(nullptr, std::memory_order_release);
  base::OpenRegions::end(base::OpenRegions::kHistory);
}

void History::record(const Report& report) noexcept {
  Ring* ring = recording_.load(std::memory_order_acquire);
  if (ring == nullptr) {
    return;
  }
  const uint32_t stack = stacks_.load(std::memory_order_relaxed) ? base::current_stack() : 0;
  const uint32_t region = base::current_region();
  const uint64_t event = next_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = ring->at(event);
  uint64_t state = slot.state.load(std::memory_order_relaxed);
  // A delayed writer that was overtaken by a whole ring still uses the slot, or this writer was. This event is lost.
  const bool taken = state % 2 != 0 || state > whole(event);
  if (taken || !slot.state.compare_exchange_strong(state, writing(event), std::memory_order_acquire,
                                                   std::memory_order_relaxed)) [[unlikely]] {
    return;
  }
  slot.ticks.set(base::ticks());
  slot.address.set(report.address);
  slot.bytes.set(report.bytes);
  slot.allocated.set(report.allocated);
  slot.reserved.set(report.reserved);
  slot.device.set(report.device);
  slot.stack.set(stack);
  slot.thread.set(base::thread_id());
  slot.origin.set(pack(report.source, region));
  slot.state.store(whole(event), std::memory_order_release);
}

HistoryColumns History::read(uint64_t since) const {
  HistoryColumns columns;
  const uint64_t end = next_.load(std::memory_order_acquire);
  const uint64_t kept = std::min(end - std::min(first_ + since, end), capacity_);
  const auto each_column = [&](auto&& visit) {
    visit(columns.time_ns), visit(columns.address), visit(columns.bytes), visit(columns.allocated);
    visit(columns.reserved), visit(columns.device), visit(columns.stack), visit(columns.thread);
    visit(columns.region), visit(columns.source);
  };
  each_column([&](auto& column) { column.reserve(kept); });
  const base::Clock& clock = base::Clock::process();
  for (uint64_t event = end - kept; event != end; ++event) {
    const Slot& slot = ring_->at(event);
    if (slot.state.load(std::memory_order_acquire) != whole(event)) {
      continue;
    }
    const uint64_t ticks = slot.ticks.get();
    const uint32_t origin = slot.origin.get();
    const auto source = static_cast<Source>(origin & ((1U << kSourceBits) - 1));
    const Report report{slot.address.get(),  slot.bytes.get(),  slot.allocated.get(),
                        slot.reserved.get(), slot.device.get(), source};
    const uint32_t stack = slot.stack.get();
    const uint32_t thread = slot.thread.get();
    if (slot.state.load(std::memory_order_relaxed) != whole(event)) {
      continue;  // overwritten while it was read
    }
    columns.time_ns.push_back(clock.to_ns(ticks));
    columns.address.push_back(report.address);
    columns.bytes.push_back(report.bytes);
    columns.allocated.push_back(report.allocated);
    columns.reserved.push_back(report.reserved);
    columns.device.push_back(report.device);
    columns.stack.push_back(stack);
    columns.region.push_back(origin >> kSourceBits);
    columns.thread.push_back(thread);
    columns.source.push_back(static_cast<uint8_t>(report.source));
  }
  columns.lost = end - first_ - columns.time_ns.size();
  return columns;
}

Largest History::largest(uint64_t since, int32_t device) const {
  const HistoryColumns columns = read(since);
  std::unordered_map<uint64_t, std::size_t> live;  // rows by address
  for (std::size_t row = 0; row != columns.address.size(); ++row) {
    if (columns.device[row] != device || columns.source[row] == static_cast<uint8_t>(Source::Driver)) {
      continue;
    }
    if (columns.bytes[row] > 0) {
      live[columns.address[row]] = row;
    } else {
      live.erase(columns.address[row]);
    }
  }
  std::unordered_map<uint32_t, int64_t> by_stack;
  Largest largest;
  for (const auto& [address, row] : live) {
    const int64_t bytes = by_stack[columns.stack[row]] += columns.bytes[row];
    if (bytes > largest.bytes) {
      largest = {columns.stack[row], bytes};
    }
  }
  return largest;
}

uint64_t History::resident_bytes() const noexcept {
  const uint64_t written = next_.load(std::memory_order_relaxed) - ring_first_;
  return ring_ == nullptr ? 0 : std::min(written, ring_->size) * sizeof(Slot);
}

uint32_t Peaks::open(int32_t device) noexcept {
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  uint32_t scope = 0;
  do {
    scope = static_cast<uint32_t>(std::countr_one(taken));
    if (scope == kNone) {
      return kNone;
    }
  } while (!taken_.compare_exchange_weak(taken, taken | bit(scope), std::memory_order_acquire));
  words_[scope].store(tag(device), std::memory_order_relaxed);
  open_.fetch_or(bit(scope), std::memory_order_release);
  return scope;
}

void Peaks::close(uint32_t scope) noexcept {
  open_.fetch_and(~bit(scope), std::memory_order_relaxed);
  taken_.fetch_and(~bit(scope), std::memory_order_release);
}

std::optional<int64_t> Peaks::highest(uint32_t scope) const noexcept {
  const uint64_t bytes = words_[scope].load(std::memory_order_relaxed) & kBytes;
  return bytes != 0 ? std::optional<int64_t>(static_cast<int64_t>(bytes - 1)) : std::nullopt;
}

void Peaks::report(int32_t device, int64_t allocated) noexcept {
  const uint64_t seen = tag(device) | ((static_cast<uint64_t>(allocated) + 1) & kBytes);
  for (uint64_t open = open_.load(std::memory_order_acquire); open != 0; open &= open - 1) {
    std::atomic<uint64_t>& word = words_[static_cast<uint32_t>(std::countr_zero(open))];
    uint64_t highest = word.load(std::memory_order_relaxed);
    while ((highest & ~kBytes) == tag(device) && highest < seen &&
           !word.compare_exchange_weak(highest, seen, std::memory_order_relaxed)) {
    }
  }
}

void PeakMemory::close() noexcept {
  if (is_open()) {
    last_ = bytes();
    Peaks::process().close(scope_);
    scope_ = Peaks::kNone;
  }
}

}  // namespace gpuscope::memory
