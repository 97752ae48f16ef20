// SPDX-License-Identifier: Apache-2.0
// The Python frames of the calling thread, read without the GIL.
//
// Torch operators run without the GIL. Driver calls run under locks of the allocator, and another thread may wait for
// such a lock while it holds the GIL. So waiting for the GIL here could deadlock. While a thread is inside C code, no
// other thread changes its frames. Frames keep their code alive, and the fields read from a code never change.

#include "gpuscope/bindings/frames.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"

#ifdef GPUSCOPE_KNOWS_FRAMES

namespace gpuscope::bindings {
namespace {

constexpr std::size_t kMaxFrames = 64;            // innermost ones
constexpr std::size_t kMaxKnown = 1U << 16;       // per thread: 2 MiB
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio

uint64_t ends_of(PyObject* bytes) noexcept {
  uint64_t first = 0;
  uint64_t last = 0;
  const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(bytes));
  if (size >= sizeof(first)) [[likely]] {  // constant size: one load each
    std::memcpy(&first, PyBytes_AS_STRING(bytes), sizeof(first));
    std::memcpy(&last, PyBytes_AS_STRING(bytes) + size - sizeof(last), sizeof(last));
  } else {
    std::memcpy(&first, PyBytes_AS_STRING(bytes), size);
    last = first;
  }
  return first ^ std::rotl(last, 29) ^ std::rotl(static_cast<uint64_t>(size), 53);
}

PyObject* name_of(PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030B0000
  return code->co_qualname;
#else
  return code->co_name;
#endif
}

uint64_t hash_of(PyObject* text) noexcept {
  const Py_hash_t known = reinterpret_cast<PyASCIIObject*>(text)->hash;
  return known != -1 ? static_cast<uint64_t>(known) : reinterpret_cast<uintptr_t>(text);
}

// Identifies a code, also against a later one at the same address. Python 3.12 and later number codes. Before, two
// codes with equal address, name, file and first line still differ in the ends of their line tables.
uint64_t identity(PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  if (code->co_version != 0) [[likely]] {
    return code->co_version;
  }
#endif
  uint64_t value = reinterpret_cast<uintptr_t>(code);
  value = (value ^ static_cast<uint64_t>(code->co_firstlineno)) * kOdd;
  value = (std::rotl(value, 23) ^ hash_of(name_of(code))) * kOdd;
  value = (std::rotl(value, 23) ^ hash_of(code->co_filename)) * kOdd;
  return std::rotl(value, 23) ^ ends_of(code->co_linetable);
}

/// Identifies the place of a frame, also against a place in a later code at the same address.
uint64_t place_of(const InterpreterFrame* frame) noexcept {
  return identity(code_of(frame)) ^ static_cast<uint64_t>(instruction_of(frame)) << 40;
}

}  // namespace

void append_utf8(std::string& utf8, PyObject* text) {
  const auto kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  if (PyUnicode_IS_ASCII(text)) {
    utf8.append(static_cast<const char*>(data), static_cast<std::size_t>(length));
    return;
  }
  for (Py_ssize_t index = 0; index < length; ++index) {
    base::append_utf8(utf8, PyUnicode_READ(kind, data, index));  // surrogates: the file name was not UTF-8
  }
}

const std::string& own_folder() {
  static const auto* folder = [] {
    const auto package = pybind11::module_::import("gpuscope").attr("__file__").cast<std::string>();
    return new std::string(package.substr(0, package.rfind('/') + 1));
  }();
  return *folder;
}

namespace {

uint32_t more_stacks = 0;  // set before the source, constant afterwards

// Python's line number. Instructions without a line get the function's first line.
uint32_t line_of(const InterpreterFrame* frame) noexcept {
  const int instruction = std::max(instruction_of(frame), 0);
  const int line = PyCode_Addr2Line(code_of(frame), instruction * static_cast<int>(sizeof(_Py_CODEUNIT)));
  return static_cast<uint32_t>(line > 0 ? line : code_of(frame)->co_firstlineno);
}

uint32_t intern(const InterpreterFrame* innermost) {
  std::array<const InterpreterFrame*, kMaxFrames> frames;
  std::size_t count = 0;
  for (const InterpreterFrame* frame = innermost; frame != nullptr && count < kMaxFrames; frame = caller_of(frame)) {
    frames[count++] = frame;
  }
  base::Names& names = base::Names::process();
  base::Stacks& stacks = base::Stacks::process();
  uint32_t stack = 0;
  std::string text;
  while (count-- != 0) {
    PyCodeObject* code = code_of(frames[count]);
    text.clear();
    append_utf8(text, code->co_filename);
    if (text.starts_with(own_folder())) {
      continue;
    }
    const uint32_t file = names.intern(text);
    text.clear();
    append_utf8(text, name_of(code));
    stack = stacks.intern({stack, names.intern(text), file, line_of(frames[count])});
    if (stack == 0) {
      return more_stacks;
    }
  }
  return stack;
}

// Stacks ids by the hash of their places. Programs visit the same places repeatedly, and building a stack takes as long
// as hundreds of lookups: finding a line reads the table from its beginning.
using Known = base::FlatMap<uint32_t>;

// Freed when the thread ends.
GPUSCOPE_INITIAL_EXEC constinit thread_local Known* cache = nullptr;
GPUSCOPE_INITIAL_EXEC constinit thread_local bool ended = false;
struct ThreadEnd {
  bool armed = false;
  ~ThreadEnd() {
    ended = true;
    delete std::exchange(cache, nullptr);
    CalledFrames::end();
  }
};
thread_local ThreadEnd thread_end;

Known& known_stacks() {
  if (cache == nullptr) {
    cache = new Known;
    thread_end.armed = true;
  }
  if (cache->size() == kMaxKnown) {  // bounds the memory of programs that make code without end
    cache->clear();
  }
  return *cache;
}

uint64_t add_place(uint64_t callers, const InterpreterFrame* frame) noexcept {
  return (std::rotl(callers, 23) ^ place_of(frame)) * kOdd;
}

/// Of the innermost frames. 0 if no frame runs.
uint64_t hash_of(const InterpreterFrame* frame) noexcept {
  uint64_t hash = 0;
  for (std::size_t seen = 0; frame != nullptr && seen < kMaxFrames; frame = caller_of(frame), ++seen) {
    hash = add_place(hash, frame);
  }
  return hash;
}

uint32_t stack_of(const InterpreterFrame* frame, uint64_t hash) noexcept {
  const uint64_t key = base::mix(hash);
  if (const uint32_t* known = cache != nullptr ? cache->find(key) : nullptr; known != nullptr) [[likely]] {
    return *known;
  }
  try {
    return ended ? 0 : known_stacks().find_or_make(key, [frame] { return intern(frame); });
  } catch (const std::exception&) {  // out of memory: this event gets no stack
    return 0;
  }
}

/// The place of the thread when the call began to which base::known_call points.
struct KnownPlace {
  const InterpreterFrame* frame = nullptr;
  uint32_t stack = 0;
};
GPUSCOPE_INITIAL_EXEC constinit thread_local KnownPlace known_place;

/// Whether the thread's functions cannot return until `call` ends.
///
/// This holds for C code that released the GIL: its callbacks run in other frames, which come and go meanwhile. A
/// Python object could end the call at any time. Two checks identify C code: the thread does not hold the GIL, and
/// `call` is further up in the C stack.
bool stands_still_in(const void* call, const PyThreadState* thread) noexcept {
  constexpr uintptr_t kMostStack = uintptr_t{1} << 20;
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return call != nullptr && reinterpret_cast<uintptr_t>(call) - here < kMostStack && running_thread() != thread;
}

uint32_t stack_at(const InterpreterFrame* frame) noexcept {
  CalledFrames* functions = CalledFrames::existing();
  CalledFrames::Called* called = functions != nullptr && !functions->is_outdated() ? functions->find(frame) : nullptr;
  if (called == nullptr) {
    return stack_of(frame, hash_of(frame));
  }
  const int instruction = instruction_of(frame);
  const bool knows_callers = CalledFrames::knows_callers(*called);
  if (!knows_callers || called->at != instruction) {
    if (!knows_callers) {
      functions->find_callers();
    }
    called->at = instruction;
    called->stack = stack_of(frame, add_place(called->callers, frame));
  }
  return called->stack;
}

uint32_t current_stack(const void* call) noexcept {
  const PyThreadState* thread = this_thread();
  const InterpreterFrame* frame = thread != nullptr ? python_frame(innermost_frame(thread)) : nullptr;
  if (frame == nullptr) {
    return 0;
  }
  if (base::known_call != nullptr && known_place.frame == frame) {
    return known_place.stack;
  }
  const uint32_t stack = stack_at(frame);
  if (base::known_call == nullptr && stands_still_in(call, thread)) {
    known_place = {frame, stack};
    base::known_call = call;
  }
  return stack;
}

}  // namespace

bool knows_stacks() noexcept { return true; }

bool runs_python(const PyThreadState* thread) noexcept { return python_frame(innermost_frame(thread)) != nullptr; }

constinit thread_local CalledFrames* CalledFrames::current_ = nullptr;

CalledFrames* CalledFrames::make() noexcept {
  if (!ended) {
    thread_end.armed = true;
    current_ = new (std::nothrow) CalledFrames;
  }
  return current_;
}

void CalledFrames::end() noexcept { delete std::exchange(current_, nullptr); }

void CalledFrames::grow() { called_.resize(std::max<std::size_t>(2 * depth_, 64)); }

void CalledFrames::find_callers() noexcept {
  std::size_t known = depth_ - 1;  // the callers of the innermost frame are known, or only its frame leads to them
  while (known != 0 && !knows_callers(called_[known]) && caller_of(called_[known].frame) == called_[known - 1].frame) {
    --known;
  }
  for (std::size_t index = known; index != depth_; ++index) {
    Called& called = called_[index];
    if (index != known || !knows_callers(called)) {
      called.caller = caller_of(called.frame);
      called.instruction = called.caller != nullptr ? instruction_of(called.caller) : 0;
      called.callers = index != known ? add_place(called_[index - 1].callers, called.caller) : hash_of(called.caller);
    }
  }
}

bool watch_stacks() {
  if (more_stacks == 0) {
    own_folder();
    base::Names& names = base::Names::process();
    more_stacks = base::Stacks::process().intern({0, names.intern("(more stacks)"), names.intern(""), 0});
  }
  base::stack_source.store(current_stack, std::memory_order_release);
  return true;
}

}  // namespace gpuscope::bindings

#else

namespace gpuscope::bindings {

bool knows_stacks() noexcept { return false; }
bool watch_stacks() { return false; }
bool runs_python(const PyThreadState*) noexcept { return true; }

}  // namespace gpuscope::bindings

#endif

namespace gpuscope::bindings {

const PyThreadState* this_thread() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  const bool ends = Py_IsFinalizing() != 0;
#else
  const bool ends = _Py_IsFinalizing() != 0;
#endif
  return ends ? nullptr : PyGILState_GetThisThreadState();
}

}  // namespace gpuscope::bindings
