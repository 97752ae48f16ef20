// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpuscope/base/memory_reader.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/frames.h"

#ifdef GPUSCOPE_KNOWS_FRAMES

// The Python frames of other threads, read while they run and without the GIL. Requesting the GIL would make a Python
// thread release it, and could wait as long as a call in C lasts.
//
// No lock protects the memory. So the kernel copies it (base::MemoryReader). Copies are validated before use, and
// inconsistent ones are discarded. For a thread that calls or returns meanwhile, the stack may mix two moments some
// hundred ns apart.

namespace gpuscope::bindings {

/// A thread known to Python.
struct KnownThread {
  uintptr_t address;  // of its PyThreadState
  uint64_t number;    // unique, never reused
  uint32_t system_id;
};

/// The threads of the main interpreter. `find` needs the GIL. The reading thread calls the rest.
class ThreadList {
 public:
  /// Finds the start of the walk: the thread that lives as long as Python.
  void find();

  /// Lists all threads. False if the list changed meanwhile: then only the threads read before the change are there.
  bool walk(base::MemoryReader& reader, std::vector<KnownThread>& threads);

 private:
  struct Copy {
    uintptr_t before = 0, after = 0, interpreter = 0, pthread = 0;
    uint64_t number = 0;
    uint64_t system_id = 0;
  };
  static Copy read_copy(const std::byte* data) noexcept;
  uint32_t system_id_of(base::MemoryReader& reader, const Copy& copy) const noexcept;
  void copy_known(base::MemoryReader& reader);

  uintptr_t first_ = 0;  // the oldest, at the end of the list: new threads are inserted at the front
  uintptr_t interpreter_ = 0;
  std::vector<uintptr_t> known_;  // of the last walk, in order
  std::vector<Copy> copies_;      // of those
  std::size_t system_id_at_ = 0;  // offset in pthread_t, for versions of Python that do not store the number
};

/// The memory of a thread's latest frames. Its next frames are likely there too.
using FramePieces = std::vector<base::MemoryReader::Piece>;

/// Reads call stacks. One thread.
class StackReader {
 public:
  static constexpr std::size_t kMaxFrames = 256;  // innermost ones

  explicit StackReader(base::MemoryReader& reader);

  /// The stack of a thread, as a base::Stacks id. 0 if the thread runs no Python, or only this package. None if the
  /// thread ran on and could not be read. Throws std::bad_alloc.
  std::optional<uint32_t> stack_of(const KnownThread& thread, FramePieces& pieces, uint64_t now_ticks);

 private:
  struct Place {
    uintptr_t code;
    uintptr_t instruction;  // address; before 3.11: number
  };
  /// The copied fields of a code.
  struct Code {
    uintptr_t type, file, name, lines;
    int first_line;
    uint32_t version;
    uint64_t identity(uintptr_t address) const noexcept;
  };
  /// The cached facts of a code.
  struct KnownCode {
    uint64_t identity = 0;
    uint64_t read_ticks = 0;
    uint32_t function = 0, file = 0;  // base::Names ids
    bool is_own = false;              // of this package
    bool is_launcher = false;         // of this package, runs the program: frames around it are not the program's
    int first_line = 0;
    std::vector<uint8_t> lines;
  };
  struct KnownStack {
    uint64_t key = 0;
    uint64_t made_ticks = 0;
    uint32_t stack = 0;
  };
  struct Copied {
    uintptr_t address;
    std::size_t bytes, at;
  };

  enum class Found { Nothing, Frames, Torn, Uncalled };
  Found walk(const KnownThread& thread, FramePieces& pieces);
  void copy_pieces(const FramePieces& pieces);
  const std::byte* find(uintptr_t address, std::size_t bytes);
  bool read_codes();
  std::optional<uint32_t> intern(uint64_t now_ticks);
  const KnownCode* know(uintptr_t address, const Code& code, uint64_t now_ticks);
  bool read_text(uintptr_t address, std::string& text);
  bool read_lines(uintptr_t address, std::vector<uint8_t>& lines);
  bool is_recent(uint64_t ticks, uint64_t now_ticks) const noexcept;

  base::MemoryReader& reader_;
  std::vector<Copied> copied_;  // the contents of frame_data_
  std::vector<std::byte> frame_data_;
  std::vector<Place> places_;  // innermost first
  bool is_deeper_ = false;     // there are more frames
  std::vector<Code> codes_;    // of the places
  std::vector<KnownCode> known_codes_;
  std::vector<KnownStack> known_stacks_;
  uint64_t ticks_kept_;
  uint32_t more_frames_;  // a stack
};

}  // namespace gpuscope::bindings

#endif
