// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

// The layout of frames is internal to CPython: it was checked for these versions.
#if PY_VERSION_HEX < 0x030E0000 && !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED)
#define GPUSCOPE_KNOWS_FRAMES 1
#if PY_VERSION_HEX >= 0x030C0000
#define GPUSCOPE_MONITORS 1  // sys.monitoring
#endif
#if PY_VERSION_HEX >= 0x030B0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#else
#include <frameobject.h>
#endif

namespace gpuscope::bindings {

#if PY_VERSION_HEX >= 0x030B0000
using InterpreterFrame = _PyInterpreterFrame;  // without the object that Python makes of it when somebody asks
#else
using InterpreterFrame = PyFrameObject;
#endif

inline const InterpreterFrame* frame_of(const PyFrameObject* object) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return object;
#else
  return object->f_frame;
#endif
}

inline const InterpreterFrame* innermost_frame(const PyThreadState* thread) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return thread->frame;
#elif PY_VERSION_HEX < 0x030D0000
  return thread->cframe != nullptr ? thread->cframe->current_frame : nullptr;
#else
  return thread->current_frame;
#endif
}

/// The frame, or the next one out, that runs Python: some stand for a C function that called it.
inline const InterpreterFrame* python_frame(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  while (frame != nullptr && frame->owner == FRAME_OWNED_BY_CSTACK) {
    frame = frame->previous;
  }
#endif
  return frame;
}

inline const InterpreterFrame* caller_of(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_back;
#else
  return python_frame(frame->previous);
#endif
}

inline PyCodeObject* code_of(const InterpreterFrame* frame) noexcept {  // borrowed, unlike PyFrame_GetCode's
#if PY_VERSION_HEX < 0x030D0000
  return frame->f_code;
#else
  return _PyFrame_GetCode(const_cast<InterpreterFrame*>(frame));
#endif
}

/// The first argument; null where it is not there any more.
inline PyObject* first_argument(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_localsplus[0];
#else
  return frame->localsplus[0];
#endif
}

/// The number of the instruction that it is at.
inline int instruction_of(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_lasti;
#else
  return _PyInterpreterFrame_LASTI(const_cast<InterpreterFrame*>(frame));
#endif
}

/// Tells the place where a frame is from every other, also from one of a later code at the same address.
uint64_t place_of(const InterpreterFrame* frame) noexcept;

/// The functions that a thread is in whose calls it was told of. With each goes a hash of the places of its callers,
/// which stay where they are until it returns: a stack is then known by that and its innermost place, however deep it
/// is. The thread's own.
class CalledFrames {
 public:
  /// Null when memory ran out or the thread is being torn down.
  static CalledFrames* current() noexcept;
  /// Of all threads: calls and returns are told anew, or no longer. With the GIL.
  static void forget_all() noexcept { latest_.fetch_add(1, std::memory_order_relaxed); }

  /// `name`: what is to be found again by name_of. Throws std::bad_alloc.
  void enter(const InterpreterFrame* frame, uint32_t name) {
    if (told_ != latest_.load(std::memory_order_relaxed)) [[unlikely]] {
      told_ = latest_.load(std::memory_order_relaxed);
      called_.clear();
    }
    const InterpreterFrame* caller = caller_of(frame);
    called_.push_back({frame, caller, caller != nullptr ? instruction_of(caller) : 0, name, hash_of_callers(caller)});
  }
  void leave(const InterpreterFrame* frame) noexcept {
    if (!called_.empty() && called_.back().frame == frame) [[likely]] {
      called_.pop_back();
    } else {  // another stack of the thread (greenlets have their own), or a function that began before
      called_.clear();
    }
  }
  void clear() noexcept { called_.clear(); }

  /// Null where the innermost function is another.
  const uint32_t* name_of(const InterpreterFrame* frame) const noexcept {
    return !called_.empty() && called_.back().frame == frame ? &called_.back().name : nullptr;
  }
  /// The hash of all places from the frame outwards; 0 where its call was not seen.
  uint64_t hash_of(const InterpreterFrame* frame) const noexcept {
    return is_innermost(frame) ? hash_of(called_.back().callers, frame) : 0;
  }

 private:
  struct Called {
    const InterpreterFrame* frame;
    const InterpreterFrame* caller;  // null for none
    int instruction;                 // where the caller was
    uint32_t name;
    uint64_t callers;
  };

  static uint64_t hash_of(uint64_t callers, const InterpreterFrame* frame) noexcept {
    return (std::rotl(callers, 23) ^ place_of(frame)) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
  }
  bool is_innermost(const InterpreterFrame* frame) const noexcept {
    if (called_.empty() || called_.back().frame != frame || told_ != latest_.load(std::memory_order_relaxed)) {
      return false;
    }
    const Called& last = called_.back();
    return last.caller == caller_of(frame) &&
           (last.caller == nullptr || last.instruction == instruction_of(last.caller));
  }
  uint64_t hash_of_callers(const InterpreterFrame* caller) const noexcept;

  inline static std::atomic<uint32_t> latest_{1};

  std::vector<Called> called_;
  uint32_t told_ = 0;  // the value of latest_ under which these were
};

}  // namespace gpuscope::bindings

#endif
