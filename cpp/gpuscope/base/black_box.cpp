// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/black_box.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <unordered_map>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/file.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::base {
namespace {

using File = BlackBoxFile;

constexpr uint64_t kMagic = 0x584F424B4C425347;  // "GSBLKBOX"
constexpr std::size_t kLongestName = 1024;
constexpr int64_t kMomentNs = 10'000'000'000;

// Never unmapped: without an open file it is memory of no file, so a late write harms nothing.
File* file = nullptr;

struct State {
  std::array<uint32_t, File::kThreads> owners{};  // ids of the system, 0 for a free slot
  std::unordered_map<std::string, uint32_t> ids;
  struct Known {
    uint32_t name;
    uint32_t period;  // of Names
    uint32_t id;
  };
  std::array<Known, 1024> known{};
  std::atomic<int64_t> moment_ns{0};
  std::atomic<uint32_t> moments{0};
};
State* state = nullptr;
uint32_t numbers = 0;  // of files made by this process

struct Place {
  uint32_t number = 0;  // of the file
  File::Thread* slot = nullptr;
};
constinit thread_local Place place;

/// Maps memory of no file. Async-signal-safe, for the child of a fork.
void* map_nothing(void* at) noexcept {
  return mmap(at, sizeof(File), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0),
              -1, 0);
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw NotAvailable("the black box " + path, std::strerror(error),
                     "it needs 1 MiB in a folder of a local file system, as /dev/shm");
}

/// A file of allocated blocks.
int make_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    refuse(path, errno);
  }
  int error = 0;
  do {
    error = posix_fallocate(descriptor, 0, sizeof(File));
  } while (error == EINTR);
  if (error != 0) {
    close(descriptor);
    unlink(path.c_str());
    refuse(path, error);
  }
  return descriptor;
}

uint64_t process_start() {
  const std::string line = read_file("/proc/self/stat");
  std::size_t at = line.rfind(')');  // a program's name may contain blanks
  for (int field = 2; field < 22 && at != std::string::npos; ++field) {
    at = line.find(' ', at + 1);
  }
  return at == std::string::npos ? 0 : std::strtoull(line.c_str() + at, nullptr, 10);
}

template <std::size_t size>
void copy_text(std::array<char, size>& into, std::string_view text) {
  std::copy_n(text.data(), std::min(text.size(), size - 1), into.data());
}

void fill(File::Header& header, int32_t rank) {
  header.version = File::kVersion;
  header.bytes = File::kBytes;
  header.pid = static_cast<uint32_t>(getpid());
  header.rank = rank;
  header.start_ticks = process_start();
  header.created_ns = Clock::process().now_ns();
  struct stat status {};
  header.pid_namespace = stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
  const std::string boot = read_file("/proc/sys/kernel/random/boot_id");
  copy_text(header.boot, std::string_view(boot).substr(0, boot.find('\n')));
  std::array<char, 72> host{};
  gethostname(host.data(), host.size() - 1);
  header.host = host;
  header.crc = crc32c(&header.version, offsetof(File::Header, crc) - offsetof(File::Header, version));
}

}  // namespace

BlackBox::BlackBox(const std::string& path, int32_t rank) {
  if (current_ != 0) {
    throw NotAvailable("the black box " + path, "this process already has one", "close the other one first");
  }
  if (file == nullptr) {
    void* made = map_nothing(nullptr);
    if (made == MAP_FAILED) {
      throw std::bad_alloc();
    }
    file = static_cast<File*>(made);
    state = new State;
    pthread_atfork(nullptr, nullptr, [] {
      if (current_ != 0) {
        drop();
      }
    });
  }
  const int descriptor = make_file(path);
  void* const made = mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (made == MAP_FAILED || mremap(made, sizeof(File), sizeof(File), MREMAP_MAYMOVE | MREMAP_FIXED, file) != file) {
    unlink(path.c_str());
    refuse(path, error);
  }
  state->owners = {};
  state->ids.clear();
  state->known = {};
  state->moment_ns = 0;
  fill(file->header, rank);
  current_ = number_ = ++numbers;
  note_moment(file->header.created_ns);
  file->header.magic.store(kMagic, std::memory_order_release);
  OpenRegions::watch(&BlackBox::show);
}

void BlackBox::close() noexcept {
  if (is_open()) {
    file->header.closed.store(1, std::memory_order_release);
    drop();
  }
  number_ = 0;
}

void BlackBox::drop() noexcept {
  OpenRegions::watch(nullptr);
  current_ = 0;
  map_nothing(file);
}

void BlackBox::step(uint64_t number, bool begins) const noexcept {
  if (is_open()) {
    add(file->steps, {.kind = begins ? kBegin : kEnd, .number = number});
  }
}

void BlackBox::collective(std::string_view communicator, uint64_t number, std::string_view kind, uint64_t bytes,
                          uint64_t ranks, bool begins) const noexcept {
  if (is_open()) {
    add(file->collectives, {.kind = begins ? kBegin : kEnd,
                            .number = number,
                            .bytes = bytes,
                            .name = id_of(communicator),
                            .what = id_of(kind),
                            .ranks = ranks});
  }
}

void BlackBox::trigger(std::string_view name) const noexcept {
  if (is_open()) {
    add(file->triggers, {.kind = kTrigger, .name = id_of(name)});
  }
}

void BlackBox::beat() const noexcept {
  if (is_open()) {
    const int64_t now = Clock::process().now_ns();
    file->header.beat_ns.store(now, std::memory_order_relaxed);
    note_moment(now);
  }
}

bool BlackBox::has_room() noexcept {
  return current_ != 0 && file->header.names_bytes.load(std::memory_order_relaxed) + kLongestName < sizeof(File::names);
}

template <std::size_t count>
void BlackBox::add(File::Ring<count>& ring, File::Entry entry) noexcept {
  entry.sequence = ring.added.fetch_add(1, std::memory_order_relaxed) + 1;
  entry.ns = Clock::process().now_ns();
  entry.thread = thread_id();
  entry.crc = crc32c(&entry, offsetof(File::Entry, crc));
  // Readers ignore an entry whose CRC does not fit: a death or another thread has torn it.
  ring.entries[(entry.sequence - 1) % count] = entry;
  note_moment(entry.ns);
}

void BlackBox::note_moment(int64_t ns) noexcept {
  int64_t last = state->moment_ns.load(std::memory_order_relaxed);
  if (ns - last < kMomentNs || !state->moment_ns.compare_exchange_strong(last, ns)) {
    return;
  }
  const Anchor anchor = take_anchor();
  File::Header::Moment moment{Clock::process().to_ns(anchor.ticks), anchor.realtime_ns, 0, 0};
  moment.crc = crc32c(&moment, offsetof(File::Header::Moment, crc));
  file->header.moments[state->moments.fetch_add(1) % 2] = moment;
}

void BlackBox::show(std::span<OpenRegions::Open> open, std::size_t deeper) noexcept {
  File::Thread* const to = slot(open);
  if (to == nullptr) {
    return;
  }
  const std::size_t count = std::min(open.size(), File::kLevels);
  const std::span<OpenRegions::Open> inner = open.last(count);
  for (OpenRegions::Open& region : inner) {
    if (region.began_ticks == 0) {
      region.began_ticks = ticks();
      region.shown = id_of(region.region - 1);
    }
  }
  const uint64_t change = to->begun.fetch_add(1, std::memory_order_acq_rel) + 1;
  to->id = thread_id();
  to->count = static_cast<uint32_t>(count);
  to->depth = open.size() + deeper;
  for (std::size_t level = 0; level < count; ++level) {
    to->levels[level] = {Clock::process().to_ns(inner[level].began_ticks), inner[level].shown};
  }
  to->ended.store(change, std::memory_order_release);
}

File::Thread* BlackBox::slot(std::span<OpenRegions::Open> open) noexcept {
  if (place.number == current_) [[likely]] {
    return place.slot;
  }
  place = {current_, nullptr};
  for (OpenRegions::Open& region : open) {
    region.began_ticks = 0;  // of an earlier file
  }
  const uint32_t own = thread_id();
  auto& owners = state->owners;
  auto* found = std::ranges::find(owners, 0U);
  if (found == owners.end()) {  // slots of ended threads
    found = std::ranges::find_if(
        owners, [](uint32_t id) { return syscall(SYS_tgkill, getpid(), id, 0) != 0 && errno == ESRCH; });
  }
  if (found == owners.end()) {
    file->header.threads_lost.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  *found = own;
  return place.slot = &file->threads[static_cast<std::size_t>(found - owners.begin())];
}

uint32_t BlackBox::id_of(uint32_t name) noexcept {
  const uint32_t period = Names::period();
  State::Known& known = state->known[name % state->known.size()];
  if (known.name != name || known.period != period || known.id == 0) [[unlikely]] {
    try {
      known = {name, period, id_of(Names::process().text(name))};
    } catch (const std::exception&) {  // no memory
      return 0;
    }
  }
  return known.id;
}

uint32_t BlackBox::id_of(std::string_view name) noexcept {
  try {
    name = name.substr(0, kLongestName);
    auto& [text, id] = *state->ids.try_emplace(std::string(name), 0).first;
    File::Header& header = file->header;
    const uint64_t at = header.names_bytes.load(std::memory_order_relaxed);
    const uint64_t bytes = (2 * sizeof(uint32_t) + name.size() + 7) / 8 * 8;
    if (id == 0 && at + bytes <= sizeof(File::names)) {
      const std::array<uint32_t, 2> head{static_cast<uint32_t>(name.size()), crc32c(name.data(), name.size())};
      std::memcpy(file->names.data() + at, head.data(), sizeof(head));
      std::memcpy(file->names.data() + at + sizeof(head), name.data(), name.size());
      header.names_bytes.store(at + bytes, std::memory_order_release);
      id = static_cast<uint32_t>(at / 8 + 1);
    } else if (id == 0) {
      header.names_lost.fetch_add(1, std::memory_order_relaxed);
      state->ids.erase(text);  // generated names do not fill the memory
      return 0;
    }
    return id;
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace gpuscope::base
