// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

// The frame layout is internal to CPython. It was checked for these versions.
#if PY_VERSION_HEX < 0x03100000 && !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED)
#define GPUSCOPE_KNOWS_FRAMES 1
#if PY_VERSION_HEX >= 0x030C0000
#define GPUSCOPE_MONITORS 1  // sys.monitoring
#endif
#if PY_VERSION_HEX >= 0x030B0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#endif
#undef Py_BUILD_CORE
#else
#include <frameobject.h>
#endif

namespace gpuscope::bindings {

#if PY_VERSION_HEX >= 0x030B0000
using InterpreterFrame = _PyInterpreterFrame;  // not the frame object, which Python makes on demand
#else
using InterpreterFrame = PyFrameObject;
#endif

// A pointer fits the static TLS block of a library loaded late, and saves the hot path a call.
#if defined(__x86_64__) || defined(__aarch64__)
#define GPUSCOPE_INITIAL_EXEC [[gnu::tls_model("initial-exec")]]
#else
#define GPUSCOPE_INITIAL_EXEC
#endif

inline const InterpreterFrame* frame_of(const PyFrameObject* object) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return object;
#else
  return object->f_frame;
#endif
}

inline PyThreadState* running_thread() noexcept {  // the one with the GIL, else null
#if PY_VERSION_HEX < 0x030D0000
  return _PyThreadState_UncheckedGet();
#else
  return PyThreadState_GetUnchecked();
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

/// Whether a frame with that owner runs Python. Some frames stand for the C function that called Python.
constexpr bool is_of_python([[maybe_unused]] char owner) noexcept {
#if PY_VERSION_HEX >= 0x030E0000
  return owner < FRAME_OWNED_BY_INTERPRETER;
#elif PY_VERSION_HEX >= 0x030C0000
  return owner != FRAME_OWNED_BY_CSTACK;
#else
  return true;
#endif
}

/// The frame, or the nearest one around it that runs Python.
inline const InterpreterFrame* python_frame(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  while (frame != nullptr && !is_of_python(frame->owner)) {
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

#if PY_VERSION_HEX >= 0x030E0000
/// The pointer in a stack reference. The lowest bits hold the reference counting mode (pycore_stackref.h).
constexpr uintptr_t untagged(uintptr_t reference) noexcept { return reference & ~uintptr_t{3}; }
#endif

inline PyCodeObject* code_of(const InterpreterFrame* frame) noexcept {  // borrowed, unlike PyFrame_GetCode's
#if PY_VERSION_HEX < 0x030D0000
  return frame->f_code;
#elif PY_VERSION_HEX < 0x030E0000
  return _PyFrame_GetCode(const_cast<InterpreterFrame*>(frame));
#else
  return reinterpret_cast<PyCodeObject*>(untagged(frame->f_executable.bits));
#endif
}

/// The first argument. Null if the function deleted it.
inline PyObject* first_argument(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_localsplus[0];
#elif PY_VERSION_HEX < 0x030E0000
  return frame->localsplus[0];
#else
  return reinterpret_cast<PyObject*>(untagged(frame->localsplus[0].bits));
#endif
}

/// The number of the frame's current instruction.
inline int instruction_of(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_lasti;
#elif PY_VERSION_HEX < 0x030E0000
  return _PyInterpreterFrame_LASTI(const_cast<InterpreterFrame*>(frame));
#else
  return static_cast<int>(frame->instr_ptr - reinterpret_cast<const _Py_CODEUNIT*>(code_of(frame)->co_code_adaptive));
#endif
}

class ModuleCalls;

/// The open functions of a thread whose calls were reported. Owned by that thread.
///
/// A stack is identified by its innermost place and a hash of the callers' places. Callers stay in place until the
/// function returns, so the hash is computed once, on demand. Lookups then do not depend on the depth of the stack.
class CalledFrames {
 public:
  struct Called {
    const InterpreterFrame* frame;
    bool is_own;         // a function of this package
    bool in_built_in;    // inside a C function with a logged call
    bool is_module;      // the last of `modules` belongs to it
    int at = -1;         // instruction of the latest stack lookup, and its result
    uint32_t stack = 0;  // Stacks id
    // The hash of the callers' places, 0 until computed. The fields below show whether it is still valid.
    uint64_t callers = 0;
    const InterpreterFrame* caller = nullptr;  // null for none
    int instruction = 0;                       // of the caller
  };

  /// The open calls of torch.nn.Module.__call__. Null until the first one, and if modules are not recorded. Owned by
  /// the thread, for this recording.
  ModuleCalls* modules = nullptr;

  /// Null if memory ran out or the thread is ending.
  static CalledFrames* current() noexcept { return current_ != nullptr ? current_ : make(); }
  /// Null if no call was reported on this thread.
  static CalledFrames* existing() noexcept { return current_; }
  /// Invalidates the state of all threads: calls and returns will be reported afresh, or no longer. With the GIL.
  static void forget_all() noexcept { latest_.fetch_add(1, std::memory_order_relaxed); }
  /// Called when a thread ends.
  static void end() noexcept;

  /// Whether this state is from before forget_all.
  bool is_outdated() const noexcept { return told_ != latest_.load(std::memory_order_relaxed); }
  void renew() noexcept {
    told_ = latest_.load(std::memory_order_relaxed);
    depth_ = 0;
    modules = nullptr;
  }

  /// Throws std::bad_alloc.
  void enter(const InterpreterFrame* frame, bool is_own) {
    if (depth_ == called_.size()) [[unlikely]] {
      grow();
    }
    called_[depth_++] = {frame, is_own, false, false};
  }
  /// Removes the innermost function.
  void leave() noexcept { --depth_; }
  /// For another stack of the same thread (greenlets), or a function that began before recording.
  void clear() noexcept { depth_ = 0; }

  /// The innermost function. Null if it has a different frame.
  Called* find(const InterpreterFrame* frame) noexcept {
    return depth_ != 0 && called_[depth_ - 1].frame == frame ? &called_[depth_ - 1] : nullptr;
  }
  static bool knows_callers(const Called& called) noexcept {
    return called.callers != 0 && called.caller == caller_of(called.frame) &&
           called.instruction == instruction_of(called.caller);
  }
  /// Computes the hash of the innermost function's callers.
  void find_callers() noexcept;

 private:
  static CalledFrames* make() noexcept;
  void grow();

  inline static std::atomic<uint32_t> latest_{1};
  GPUSCOPE_INITIAL_EXEC static constinit thread_local CalledFrames* current_;

  std::vector<Called> called_;  // the first `depth_` of them
  std::size_t depth_ = 0;
  uint32_t told_ = 0;  // value of latest_ at the last renew
};

}  // namespace gpuscope::bindings

#endif
