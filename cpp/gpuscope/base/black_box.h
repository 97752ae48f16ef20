// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "gpuscope/base/hooks.h"

namespace gpuscope::base {

/// The layout of the file, little endian. python/gpuscope/watching/black_box.py reads it.
struct BlackBoxFile {
  static constexpr uint32_t kBytes = 1U << 20;
  static constexpr uint32_t kVersion = 1;
  static constexpr std::size_t kThreads = 256;
  static constexpr std::size_t kLevels = 8;

  /// Written once. `magic` comes last: a file without it was never complete.
  struct Header {
    std::atomic<uint64_t> magic;
    uint32_t version;
    uint32_t bytes;
    uint32_t pid;
    int32_t rank;               // -1 for none
    uint64_t start_ticks;       // of the process, as in /proc/PID/stat
    int64_t created_ns;         // of Clock
    uint64_t pid_namespace;     // inode
    std::array<char, 40> boot;  // /proc/sys/kernel/random/boot_id
    std::array<char, 72> host;
    uint32_t crc;  // from `version` on
    std::array<uint32_t, 7> reserved;
    // These change.
    std::atomic<uint32_t> closed;
    std::atomic<uint32_t> names_lost;    // names that found no room
    std::atomic<uint64_t> names_bytes;   // of complete records
    std::atomic<int64_t> beat_ns;        // 0 before the first beat
    std::atomic<uint64_t> threads_lost;  // threads that found no slot
    std::array<uint64_t, 4> reserved_too;
    /// One moment on Clock and on the wall clock. Written in turns, so that one of two is always whole.
    struct Moment {
      int64_t ns;
      int64_t realtime_ns;
      uint32_t crc;
      uint32_t reserved;
    };
    std::array<Moment, 2> moments;
  };
  /// The open regions of a thread, whole where `begun` equals `ended`.
  struct alignas(64) Thread {
    std::atomic<uint64_t> begun;  // changes
    uint32_t id;                  // the system's
    uint32_t count;               // of levels
    uint64_t depth;               // of all open regions
    struct Level {
      int64_t began_ns;
      uint64_t name;
    };
    std::array<Level, kLevels> levels;  // the innermost, outermost first
    std::atomic<uint64_t> ended;
  };
  struct Entry {
    uint64_t sequence = 0;  // from 1 on
    int64_t ns = 0;         // of Clock
    uint32_t kind = 0;
    uint32_t thread = 0;
    uint64_t number = 0;  // of the step or the collective
    uint64_t bytes = 0;
    uint32_t name = 0;   // of the communicator or the trigger
    uint32_t what = 0;   // name of the collective's kind
    uint64_t ranks = 0;  // of the communicator, 0 if unknown
    uint32_t reserved = 0;
    uint32_t crc = 0;  // of all before it
  };
  static_assert(sizeof(Entry) == 64);
  template <std::size_t count>
  struct Ring {
    alignas(64) std::atomic<uint64_t> added;
    alignas(64) std::array<Entry, count> entries;
  };

  union {
    Header header;
    std::array<std::byte, 4096> page;
  };
  std::array<Thread, kThreads> threads;
  Ring<1024> steps;
  Ring<4096> collectives;
  Ring<256> triggers;
  static constexpr std::size_t kBefore = 4096 + kThreads * 192 + (3 + 1024 + 4096 + 256) * sizeof(Entry);
  std::array<char, kBytes - kBefore> names;  // records of length, crc and text. A name's id is its place / 8 + 1
};
static_assert(sizeof(BlackBoxFile::Thread) == 192 && sizeof(BlackBoxFile) == BlackBoxFile::kBytes);

/// A file of 1 MiB with the last steps, the last collectives and the open regions of each thread. It survives any death
/// of the process, and is readable while the process runs.
///
/// Its blocks are allocated at creation, so a full disk raises no SIGBUS later. Writing needs no system call and no
/// lock. One file at a time per process; a forked child leaves it to the parent. With the GIL.
class BlackBox {
 public:
  /// `rank`: -1 for none. Throws NotAvailable if the file exists or cannot be made, or if the process has one.
  BlackBox(const std::string& path, int32_t rank);
  ~BlackBox() { close(); }
  BlackBox(const BlackBox&) = delete;
  BlackBox& operator=(const BlackBox&) = delete;

  // Without effect after close, and in a forked child.
  void step(uint64_t number, bool begins) const noexcept;
  void collective(std::string_view communicator, uint64_t number, std::string_view kind, uint64_t bytes, uint64_t ranks,
                  bool begins) const noexcept;
  void trigger(std::string_view name) const noexcept;
  /// To be called each second by a thread that needs the GIL. A late beat shows that another thread keeps the GIL.
  void beat() const noexcept;
  void close() noexcept;
  bool is_open() const noexcept { return number_ != 0 && number_ == current_; }

  /// Whether names of regions still find room in the open file.
  static bool has_room() noexcept;

 private:
  enum Kind : uint32_t { kBegin = 1, kEnd = 2, kTrigger = 3 };
  template <std::size_t count>
  static void add(BlackBoxFile::Ring<count>& ring, BlackBoxFile::Entry entry) noexcept;
  static void note_moment(int64_t ns) noexcept;
  static void show(std::span<OpenRegions::Open> open, std::size_t deeper) noexcept;
  static BlackBoxFile::Thread* slot(std::span<OpenRegions::Open> open) noexcept;
  static uint32_t id_of(uint32_t name) noexcept;
  static uint32_t id_of(std::string_view name) noexcept;
  static void drop() noexcept;

  inline static uint32_t current_ = 0;  // the number of the open one, 0 for none
  uint32_t number_ = 0;
};

}  // namespace gpuscope::base
