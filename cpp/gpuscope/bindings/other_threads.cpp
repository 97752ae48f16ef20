// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/other_threads.h"

#ifdef GPUSCOPE_KNOWS_FRAMES

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::bindings {
namespace {

using base::MemoryReader;
using Piece = MemoryReader::Piece;

constexpr std::size_t kMaxThreads = std::size_t{1} << 14;
constexpr std::size_t kMaxText = 1024;                   // bytes of a name
constexpr std::size_t kMaxLines = std::size_t{1} << 16;  // of a line table: enough for a large function
constexpr std::size_t kKnownCodes = 4096;
constexpr std::size_t kKnownStacks = 8192;
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
constexpr uintptr_t kPage = 4096;                 // the smallest
// Before 3.12, a code has no number that distinguishes it from a later code at its address. Cached codes then expire.
constexpr int64_t kKeptNs = PY_VERSION_HEX >= 0x030C0000 ? INT64_MAX / 4 : 1'000'000'000;

template <class T>
T load(const std::byte* data, std::size_t offset) noexcept {
  T value;
  std::memcpy(&value, data + offset, sizeof(T));
  return value;
}

#define GPUSCOPE_END_OF(Type, field) (offsetof(Type, field) + sizeof(Type::field))

// -- the copied parts of Python's structures --------------------------------------------------------------------------

#if PY_VERSION_HEX >= 0x030B0000
constexpr std::size_t kThreadBytes =
    std::max({GPUSCOPE_END_OF(PyThreadState, interp), GPUSCOPE_END_OF(PyThreadState, thread_id),
              GPUSCOPE_END_OF(PyThreadState, native_thread_id), GPUSCOPE_END_OF(PyThreadState, id)});
#else
constexpr std::size_t kThreadBytes =
    std::max({GPUSCOPE_END_OF(PyThreadState, interp), GPUSCOPE_END_OF(PyThreadState, thread_id),
              GPUSCOPE_END_OF(PyThreadState, id)});
#endif

// Pointer to the innermost frame: in the thread state, or in a structure to which the thread state points.
#if PY_VERSION_HEX >= 0x030D0000
constexpr std::size_t kCurrent = offsetof(PyThreadState, current_frame);
#elif PY_VERSION_HEX >= 0x030B0000
constexpr std::size_t kCurrent = offsetof(PyThreadState, cframe);
constexpr std::size_t kCurrentInCFrame = offsetof(_PyCFrame, current_frame);
#else
constexpr std::size_t kCurrent = offsetof(PyThreadState, frame);
#endif

struct Frame {
  uintptr_t code, previous, instruction;
  bool is_python;
  bool is_generator;
};

#if PY_VERSION_HEX >= 0x030D0000
constexpr std::size_t kFrameBytes = GPUSCOPE_END_OF(InterpreterFrame, owner);
Frame frame_in(const std::byte* data) noexcept {
  auto code = load<uintptr_t>(data, offsetof(InterpreterFrame, f_executable));
#if PY_VERSION_HEX >= 0x030E0000
  code = untagged(code);
#endif
  const char owner = load<char>(data, offsetof(InterpreterFrame, owner));
  return {code, load<uintptr_t>(data, offsetof(InterpreterFrame, previous)),
          load<uintptr_t>(data, offsetof(InterpreterFrame, instr_ptr)), is_of_python(owner),
          owner == FRAME_OWNED_BY_GENERATOR};
}
#elif PY_VERSION_HEX >= 0x030B0000
constexpr std::size_t kFrameBytes = GPUSCOPE_END_OF(InterpreterFrame, owner);
Frame frame_in(const std::byte* data) noexcept {
  const char owner = load<char>(data, offsetof(InterpreterFrame, owner));
  return {load<uintptr_t>(data, offsetof(InterpreterFrame, f_code)),
          load<uintptr_t>(data, offsetof(InterpreterFrame, previous)),
          load<uintptr_t>(data, offsetof(InterpreterFrame, prev_instr)), is_of_python(owner),
          owner == FRAME_OWNED_BY_GENERATOR};
}
#else
constexpr std::size_t kFrameBytes = GPUSCOPE_END_OF(PyFrameObject, f_lasti);
Frame frame_in(const std::byte* data) noexcept {
  return {load<uintptr_t>(data, offsetof(PyFrameObject, f_code)),
          load<uintptr_t>(data, offsetof(PyFrameObject, f_back)),
          static_cast<uintptr_t>(load<int>(data, offsetof(PyFrameObject, f_lasti))), true,
          load<uintptr_t>(data, offsetof(PyFrameObject, f_gen)) != 0};
}
#endif

#if PY_VERSION_HEX >= 0x030B0000
constexpr std::size_t kName = offsetof(PyCodeObject, co_qualname);
#else
constexpr std::size_t kName = offsetof(PyCodeObject, co_name);
#endif
constexpr std::size_t kCodeBytes = std::max(
    {GPUSCOPE_END_OF(PyCodeObject, co_filename), GPUSCOPE_END_OF(PyCodeObject, co_linetable), kName + sizeof(void*)});

/// The number of the instruction within its code, -1 before the first one. None if it belongs to another code.
std::optional<int> instruction_number(uintptr_t instruction, uintptr_t code) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  constexpr intptr_t kMost = intptr_t{1} << 28;
  const auto bytes = static_cast<intptr_t>(instruction - (code + offsetof(PyCodeObject, co_code_adaptive)));
  const auto unit = static_cast<intptr_t>(sizeof(_Py_CODEUNIT));
  if (bytes < -unit || bytes > kMost) {
    return std::nullopt;
  }
  return static_cast<int>(bytes / unit);
#else
  (void)code;
  return static_cast<int>(instruction);
#endif
}

#if PY_VERSION_HEX >= 0x030B0000

/// Reads CPython's location table (Objects/locations.md).
int line_in(const std::vector<uint8_t>& table, int first_line, int number) noexcept {
  std::size_t at = 0;
  const auto next_number = [&] {  // six bits per byte, lowest first. Signed: the lowest bit is the sign
    uint32_t value = 0;
    for (int shift = 0; at < table.size(); shift += 6) {
      const uint8_t byte = table[at++];
      value |= shift < 32 ? static_cast<uint32_t>(byte & 63) << shift : 0;
      if ((byte & 64) == 0) {
        break;
      }
    }
    return (value & 1) != 0 ? -static_cast<int>(value >> 1) : static_cast<int>(value >> 1);
  };
  int line = first_line;
  for (int end = 0; at < table.size();) {
    const uint8_t head = table[at++];
    const int form = (head >> 3) & 15;
    end += (head & 7) + 1;
    if (form == 13 || form == 14) {
      line += next_number();
    } else if (form >= 10 && form <= 12) {
      line += form - 10;
    }
    if (number < end) {
      return form != 15 && line > 0 ? line : first_line;  // 15: an instruction without a line
    }
    while (at < table.size() && (table[at] & 128) == 0) {
      ++at;
    }
  }
  return first_line;
}

#else

/// Reads CPython's line table before 3.11 (Objects/lnotab_notes.txt): pairs of code bytes and line difference.
int line_in(const std::vector<uint8_t>& table, int first_line, int number) noexcept {
  const int byte = number * static_cast<int>(sizeof(_Py_CODEUNIT));
  int line = first_line;
  int end = 0;
  for (std::size_t at = 0; at + 1 < table.size(); at += 2) {
    const auto difference = static_cast<int8_t>(table[at + 1]);
    end += table[at];
    line += difference != -128 ? difference : 0;  // -128: code without a line
    if (byte < end) {
      return difference != -128 && line > 0 ? line : first_line;
    }
  }
  return first_line;
}

#endif

bool is_address(uintptr_t address) noexcept { return address >= kPage && address % alignof(void*) == 0; }

}  // namespace

// -- threads ----------------------------------------------------------------------------------------------------------

void ThreadList::find() {
  PyInterpreterState* interpreter = PyInterpreterState_Main();
  PyThreadState* thread = PyInterpreterState_ThreadHead(interpreter);
  while (PyThreadState_Next(thread) != nullptr) {
    thread = PyThreadState_Next(thread);
  }
  first_ = reinterpret_cast<uintptr_t>(thread);
  interpreter_ = reinterpret_cast<uintptr_t>(interpreter);
  known_.clear();
  copies_.clear();
#if PY_VERSION_HEX < 0x030B0000
  // The system's thread number has a fixed offset in pthread_t, which depends on the C library.
  const auto own_id = static_cast<int>(syscall(SYS_gettid));
  const auto* own = reinterpret_cast<const std::byte*>(pthread_self());
  for (std::size_t at = 256; system_id_at_ == 0 && at < 1024; at += sizeof(int)) {
    system_id_at_ = load<int>(own, at) == own_id ? at : 0;
  }
#endif
}

ThreadList::Copy ThreadList::read_copy(const std::byte* data) noexcept {
  Copy copy;
  copy.before = load<uintptr_t>(data, offsetof(PyThreadState, prev));
  copy.after = load<uintptr_t>(data, offsetof(PyThreadState, next));
  copy.interpreter = load<uintptr_t>(data, offsetof(PyThreadState, interp));
  copy.pthread = load<unsigned long>(data, offsetof(PyThreadState, thread_id));
  copy.number = load<uint64_t>(data, offsetof(PyThreadState, id));
#if PY_VERSION_HEX >= 0x030B0000
  copy.system_id = load<unsigned long>(data, offsetof(PyThreadState, native_thread_id));
#endif
  return copy;
}

uint32_t ThreadList::system_id_of(MemoryReader& reader, const Copy& copy) const noexcept {
  if (system_id_at_ == 0) {
    return static_cast<uint32_t>(copy.system_id);
  }
  uint32_t system_id = 0;
  return is_address(copy.pthread) && reader.read(copy.pthread + system_id_at_, system_id) ? system_id : 0;
}

void ThreadList::copy_known(MemoryReader& reader) {
  copies_.clear();
  std::array<Piece, MemoryReader::kMaxPieces> pieces;
  while (copies_.size() < known_.size()) {
    const std::size_t count =
        std::min({known_.size() - copies_.size(), pieces.size(), MemoryReader::kMaxBytes / kThreadBytes});
    for (std::size_t index = 0; index < count; ++index) {
      pieces[index] = {known_[copies_.size() + index], kThreadBytes};
    }
    const std::size_t copied = reader.copy({pieces.data(), count});
    for (std::size_t index = 0; index < copied; ++index) {
      copies_.push_back(read_copy(reader.data() + index * kThreadBytes));
    }
    if (copied < count) {
      return;  // the next one has ended
    }
  }
}

bool ThreadList::walk(MemoryReader& reader, std::vector<KnownThread>& threads) {
  threads.clear();
  copy_known(reader);
  const std::vector<uintptr_t> known = std::exchange(known_, {});
  std::size_t place = 0;  // of the next known thread
  uintptr_t from = 0;
  for (uintptr_t address = first_; address != 0;) {
    if (threads.size() == kMaxThreads || !is_address(address)) {
      return false;
    }
    // Ended threads have left the list. New threads are at its end.
    const auto last = known.begin() + static_cast<std::ptrdiff_t>(copies_.size());
    const auto found = std::find(known.begin() + static_cast<std::ptrdiff_t>(place), last, address);
    Copy copy;
    if (found != last) {
      place = static_cast<std::size_t>(found - known.begin()) + 1;
      copy = copies_[place - 1];
    } else {
      const std::array pieces{Piece{address, kThreadBytes}};
      if (reader.copy(pieces) != 1) {
        return false;
      }
      copy = read_copy(reader.data());
    }
    if (copy.interpreter != interpreter_ || (from != 0 && copy.after != from)) {
      return false;
    }
    if (const uint32_t system_id = system_id_of(reader, copy); system_id != 0) {
      threads.push_back({address, copy.number, system_id});
    }
    known_.push_back(address);
    from = address;
    address = copy.before;
  }
  return true;
}

// -- stacks -----------------------------------------------------------------------------------------------------------

StackReader::StackReader(MemoryReader& reader)
    : reader_(reader), known_codes_(kKnownCodes), known_stacks_(kKnownStacks) {
  const base::Clock& clock = base::Clock::process();
  ticks_kept_ = kKeptNs == 1'000'000'000 ? clock.to_ticks(kKeptNs) - clock.to_ticks(0) : UINT64_MAX;
  base::Names& names = base::Names::process();
  more_frames_ = base::Stacks::process().intern({0, names.intern("(more frames)"), names.intern(""), 0});
}

bool StackReader::is_recent(uint64_t ticks, uint64_t now_ticks) const noexcept {
  return now_ticks - ticks < ticks_kept_;
}

void StackReader::copy_pieces(const FramePieces& pieces) {
  const std::size_t whole = reader_.copy(pieces);
  std::size_t at = frame_data_.size();
  std::size_t bytes = 0;
  for (std::size_t index = 0; index < whole; ++index) {
    copied_.push_back({pieces[index].address, pieces[index].bytes, at + bytes});
    bytes += pieces[index].bytes;
  }
  frame_data_.insert(frame_data_.end(), reader_.data(), reader_.data() + bytes);
}

const std::byte* StackReader::find(uintptr_t address, std::size_t bytes) {
  for (int round = 0; round < 2; ++round) {
    for (const Copied& piece : copied_) {
      if (address >= piece.address && address + bytes <= piece.address + piece.bytes) {
        return frame_data_.data() + piece.at + (address - piece.address);
      }
    }
    // Copies the rest of the page too: callers' frames are mostly before this frame.
    const uintptr_t begin = address & ~(kPage - 1);
    if (round == 0) {
      copy_pieces({{begin, static_cast<uint32_t>(address + bytes - begin)}});
    }
  }
  return nullptr;
}

namespace {

/// Adds `address` to the pieces. Merges pieces less than a page apart: the gap is on their pages.
void add_piece(FramePieces& pieces, uintptr_t address, std::size_t bytes) {
  constexpr std::size_t kMaxPieces = 64;
  constexpr std::size_t kMost = 4 * kPage;
  for (Piece& piece : pieces) {
    const uintptr_t begin = std::min(piece.address, address);
    const uintptr_t end = std::max(piece.address + piece.bytes, address + bytes);
    if (address + kPage > piece.address && address < piece.address + piece.bytes + kPage && end - begin <= kMost) {
      piece = {begin, static_cast<uint32_t>(end - begin)};
      return;
    }
  }
  if (pieces.size() < kMaxPieces) {
    pieces.push_back({address, static_cast<uint32_t>(bytes)});
  }
}

}  // namespace

StackReader::Found StackReader::walk(const KnownThread& thread, FramePieces& pieces) {
  copied_.clear();
  frame_data_.clear();
  places_.clear();
  is_deeper_ = false;
  const uintptr_t current_at = thread.address + kCurrent;
  pieces.insert(pieces.begin(), {current_at, sizeof(uintptr_t)});
  copy_pieces(pieces);
  pieces.clear();
  const std::byte* current = find(current_at, sizeof(uintptr_t));
  if (current == nullptr) {
    return Found::Torn;
  }
  auto address = load<uintptr_t>(current, 0);
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
  if (!is_address(address)) {
    return address == 0 ? Found::Nothing : Found::Torn;
  }
  constexpr std::size_t kCFrameBytes = kCurrentInCFrame + sizeof(uintptr_t);
  add_piece(pieces, address, kCFrameBytes);
  const std::byte* cframe = find(address, kCFrameBytes);
  if (cframe == nullptr) {
    return Found::Torn;
  }
  address = load<uintptr_t>(cframe, kCurrentInCFrame);
#endif
  bool is_generator = false;  // the outermost frame
  for (std::size_t seen = 0; address != 0; ++seen) {
    if (places_.size() == kMaxFrames) {
      is_deeper_ = true;
      break;
    }
    const std::byte* data = is_address(address) && seen < 4 * kMaxFrames ? find(address, kFrameBytes) : nullptr;
    if (data == nullptr) {
      return Found::Torn;
    }
    add_piece(pieces, address, kFrameBytes);
    const Frame frame = frame_in(data);
    if (frame.is_python) {
      if (!is_address(frame.code)) {
        return Found::Torn;
      }
      places_.push_back({frame.code, frame.instruction});
      is_generator = frame.is_generator;
    }
    address = frame.previous;
  }
  if (places_.empty()) {
    return Found::Nothing;
  }
  return is_generator && !is_deeper_ ? Found::Uncalled : Found::Frames;
}

uint64_t StackReader::Code::identity(uintptr_t address) const noexcept {
  uint64_t value = address;
  for (const uint64_t part :
       {uint64_t{file}, uint64_t{name}, uint64_t{lines}, uint64_t{version} << 32 | static_cast<uint32_t>(first_line)}) {
    value = (std::rotl(value, 23) ^ part) * kOdd;
  }
  return base::mix(value) | 1;  // 0 is none
}

/// Copies the codes of the places. False if a place has no code.
bool StackReader::read_codes() {
  codes_.clear();
  std::array<Piece, kMaxFrames> pieces;
  std::size_t count = 0;
  for (const Place& place : places_) {
    if (count == 0 || pieces[count - 1].address != place.code) {  // recursion
      pieces[count++] = {place.code, kCodeBytes};
    }
  }
  if (reader_.copy({pieces.data(), count}) != count) {
    return false;
  }
  std::size_t at = 0;
  for (const Place& place : places_) {
    at += pieces[at].address != place.code ? 1 : 0;
    const std::byte* data = reader_.data() + at * kCodeBytes;
    Code code{};
    code.type = load<uintptr_t>(data, offsetof(PyObject, ob_type));
    code.file = load<uintptr_t>(data, offsetof(PyCodeObject, co_filename));
    code.name = load<uintptr_t>(data, kName);
    code.lines = load<uintptr_t>(data, offsetof(PyCodeObject, co_linetable));
    code.first_line = load<int>(data, offsetof(PyCodeObject, co_firstlineno));
#if PY_VERSION_HEX >= 0x030C0000
    code.version = load<uint32_t>(data, offsetof(PyCodeObject, co_version));
#endif
    if (code.type != reinterpret_cast<uintptr_t>(&PyCode_Type)) {
      return false;
    }
    codes_.push_back(code);
  }
  return true;
}

bool StackReader::read_text(uintptr_t address, std::string& text) {
  alignas(PyCompactUnicodeObject) std::array<std::byte, sizeof(PyCompactUnicodeObject)> copy;
  if (!is_address(address) || !reader_.read(address, copy)) {
    return false;
  }
  PyASCIIObject head;
  std::memcpy(&head, copy.data(), sizeof(head));
  const auto kind = static_cast<std::size_t>(head.state.kind);
  if (head.ob_base.ob_type != &PyUnicode_Type || head.state.compact == 0 || head.length < 0 ||
      (kind != 1 && kind != 2 && kind != 4)) {
    return false;
  }
  const std::size_t length = std::min(static_cast<std::size_t>(head.length), kMaxText);
  const bool is_ascii = head.state.ascii != 0;
  const uintptr_t at = address + (is_ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject));
  const std::array pieces{Piece{at, static_cast<uint32_t>(length * kind)}};
  if (length != 0 && reader_.copy(pieces) != 1) {
    return false;
  }
  text.clear();
  for (std::size_t index = 0; index < length; ++index) {
    uint32_t letter = 0;
    std::memcpy(&letter, reader_.data() + index * kind, kind);  // little-endian: the lowest byte is first
    base::append_utf8(text, letter);
  }
  return true;
}

bool StackReader::read_lines(uintptr_t address, std::vector<uint8_t>& lines) {
  alignas(PyBytesObject) std::array<std::byte, offsetof(PyBytesObject, ob_sval)> head;
  if (!is_address(address) || !reader_.read(address, head) ||
      load<uintptr_t>(head.data(), offsetof(PyObject, ob_type)) != reinterpret_cast<uintptr_t>(&PyBytes_Type)) {
    return false;
  }
  const auto size = load<Py_ssize_t>(head.data(), offsetof(PyVarObject, ob_size));
  if (size < 0) {
    return false;
  }
  const std::size_t bytes = std::min(static_cast<std::size_t>(size), kMaxLines);
  const std::array pieces{Piece{address + head.size(), static_cast<uint32_t>(bytes)}};
  if (bytes != 0 && reader_.copy(pieces) != 1) {
    return false;
  }
  lines.resize(bytes);
  std::memcpy(lines.data(), reader_.data(), bytes);
  return true;
}

/// The cached or newly read entry of a code. Null if the code could not be read.
const StackReader::KnownCode* StackReader::know(uintptr_t address, const Code& code, uint64_t now_ticks) {
  const uint64_t identity = code.identity(address);
  KnownCode& known = known_codes_[(identity >> 1) % known_codes_.size()];
  if (known.identity == identity && is_recent(known.read_ticks, now_ticks)) {
    return &known;
  }
  known.identity = 0;
  std::string file;
  std::string function;
  if (!read_text(code.file, file) || !read_text(code.name, function) || !read_lines(code.lines, known.lines)) {
    return nullptr;
  }
  base::Names& names = base::Names::process();
  // Python 3.12 runs a code of its own between C and Python.
  known.is_own = file.starts_with(own_folder()) || function == "<interpreter trampoline>";
  known.is_launcher = file.starts_with(own_folder() + "cli/");
  known.file = names.intern(file);
  known.function = names.intern(function);
  known.first_line = code.first_line;
  known.read_ticks = now_ticks;
  known.identity = identity;
  return &known;
}

std::optional<uint32_t> StackReader::intern(uint64_t now_ticks) {
  base::Stacks& stacks = base::Stacks::process();
  uint32_t stack = is_deeper_ ? more_frames_ : 0;
  for (std::size_t index = places_.size(); index-- != 0;) {
    const Place& place = places_[index];
    const KnownCode* code = know(place.code, codes_[index], now_ticks);
    const std::optional<int> number = instruction_number(place.instruction, place.code);
    if (code == nullptr || !number.has_value()) {
      return std::nullopt;
    }
    if (code->is_own) {
      stack = code->is_launcher ? 0 : stack;  // the program begins inside the launcher
      continue;
    }
    const int line = line_in(code->lines, code->first_line, std::max(*number, 0));
    const bool is_innermost = index == 0 && *number >= 0;
    const uint32_t instruction = is_innermost ? static_cast<uint32_t>(*number) : base::Frame::kNoInstruction;
    const uint32_t inner = stacks.intern({stack, code->function, code->file, static_cast<uint32_t>(line), instruction});
    if (inner == 0) {
      return more_frames_;  // too many stacks
    }
    stack = inner;
  }
  return stack;
}

std::optional<uint32_t> StackReader::stack_of(const KnownThread& thread, FramePieces& pieces, uint64_t now_ticks) {
  constexpr int kTries = 3;
  for (int tries = 0; tries < kTries; ++tries) {
    const Found found = walk(thread, pieces);
    if (found == Found::Nothing) {
      return 0;
    }
    // A generator without a caller has just yielded, unless C calls it.
    const bool is_cut = found == Found::Uncalled && tries + 1 < kTries;
    if (found == Found::Torn || is_cut || !read_codes()) {
      continue;
    }
    uint64_t hash = is_deeper_ ? kOdd : 1;
    for (std::size_t index = places_.size(); index-- != 0;) {
      const uint64_t place = codes_[index].identity(places_[index].code) ^ places_[index].instruction << 20;
      hash = (std::rotl(hash, 23) ^ place) * kOdd;
    }
    const uint64_t key = base::mix(hash) | 1;
    KnownStack& known = known_stacks_[(key >> 1) % known_stacks_.size()];
    if (known.key != key || !is_recent(known.made_ticks, now_ticks)) {
      const std::optional<uint32_t> stack = intern(now_ticks);
      if (!stack.has_value()) {
        continue;
      }
      known = {key, now_ticks, *stack};
    }
    return known.stack;
  }
  return std::nullopt;
}

}  // namespace gpuscope::bindings

#endif
