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

// The Python frames of other threads, read while they run and without the GIL: to ask for it would make a thread that
// runs Python give it up, and wait as long as a call in C lasts.
//
// Nothing that is read here is held by anybody. So memory is copied by the kernel (base::MemoryReader), what was copied
// is judged before it is used, and what does not hold together is thrown away. A thread that calls and returns while it
// is read may be seen in a mixture of two moments some hundred ns apart.

namespace gpuscope::bindings {

/// A thread that Python knows.
struct KnownThread {
  uintptr_t address;  // of its PyThreadState
  uint64_t number;    // no other one has or had it
  uint32_t system_id;
};

/// The threads of the main interpreter. `find` needs the GIL; the rest is the reading thread's.
class ThreadList {
 public:
  /// Looks for what the walk begins at: the thread that lives as long as Python does.
  void find();

  /// All threads; those before the list was seen to change, and false, where it is being changed.
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

  uintptr_t first_ = 0;  // the oldest: younger ones are before it
  uintptr_t interpreter_ = 0;
  std::vector<uintptr_t> known_;  // of the last walk, in order
  std::vector<Copy> copies_;      // of those
  std::size_t system_id_at_ = 0;  // in the C library's structure of a thread, where Python does not keep it
};

/// What a thread's frames were read from last: what its next ones are likely to lie in.
using FramePieces = std::vector<base::MemoryReader::Piece>;

/// Reads call stacks. One thread.
class StackReader {
 public:
  static constexpr std::size_t kMaxFrames = 256;  // innermost ones

  explicit StackReader(base::MemoryReader& reader);

  /// Where a thread is, as a base::Stacks id; 0: in no Python, or in this package alone. Nothing where it could not be
  /// read, as it went on meanwhile. Throws std::bad_alloc.
  std::optional<uint32_t> stack_of(const KnownThread& thread, FramePieces& pieces, uint64_t now_ticks);

 private:
  struct Place {
    uintptr_t code;
    uintptr_t instruction;  // its address; before 3.11 its number
  };
  /// What is copied of a code.
  struct Code {
    uintptr_t type, file, name, lines;
    int first_line;
    uint32_t version;
    uint64_t identity(uintptr_t address) const noexcept;
  };
  /// What is known of a code.
  struct KnownCode {
    uint64_t identity = 0;
    uint64_t read_ticks = 0;
    uint32_t function = 0, file = 0;  // base::Names ids
    bool is_own = false;              // of this package
    bool is_launcher = false;         // of this package, and runs the program: nothing around it is the program's
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
  std::vector<Copied> copied_;  // what frame_data_ has
  std::vector<std::byte> frame_data_;
  std::vector<Place> places_;  // innermost first
  bool is_deeper_ = false;     // there are more frames than these
  std::vector<Code> codes_;    // of the places
  std::vector<KnownCode> known_codes_;
  std::vector<KnownStack> known_stacks_;
  uint64_t ticks_kept_;
  uint32_t more_frames_;  // a stack
};

}  // namespace gpuscope::bindings

#endif
