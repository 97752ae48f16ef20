// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

// The layout of frames is internal to CPython: it was checked for these versions.
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
using InterpreterFrame = _PyInterpreterFrame;  // without the object that Python makes of it when somebody asks
#else
using InterpreterFrame = PyFrameObject;
#endif

// A pointer fits the static TLS block of a library loaded late, and spares the hot path a call.
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

inline PyThreadState* running_thread() noexcept {  // that has the GIL, null for none
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

/// Whether a frame with that owner runs Python: some stand for a C function that called it.
constexpr bool is_of_python([[maybe_unused]] char owner) noexcept {
#if PY_VERSION_HEX >= 0x030E0000
  return owner < FRAME_OWNED_BY_INTERPRETER;
#elif PY_VERSION_HEX >= 0x030C0000
  return owner != FRAME_OWNED_BY_CSTACK;
#else
  return true;
#endif
}

/// The frame, or the next one out, that runs Python.
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
/// What a frame refers to, of which the lowest bits say how it is counted: pycore_stackref.h.
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

/// The first argument; null where it is not there any more.
inline PyObject* first_argument(const InterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_localsplus[0];
#elif PY_VERSION_HEX < 0x030E0000
  return frame->localsplus[0];
#else
  return reinterpret_cast<PyObject*>(untagged(frame->localsplus[0].bits));
#endif
}

/// The number of the instruction that it is at.
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

/// The functions that a thread is in whose calls it was told of. A stack is known by its innermost place and a hash of
/// the places of all callers, which stay where they are until it returns: that is made when first asked for, and is
/// then at hand however deep the stack is. The thread's own.
class CalledFrames {
 public:
  struct Called {
    const InterpreterFrame* frame;
    bool is_own;         // of this package
    bool in_built_in;    // it is in a function in C whose call was logged
    bool is_module;      // the last of `modules` is of it
    int at = -1;         // where in the function a stack was asked for last, and which it was
    uint32_t stack = 0;  // Stacks id
    // The hash of the places of its callers, 0 until it is asked for; how to see that it still holds.
    uint64_t callers = 0;
    const InterpreterFrame* caller = nullptr;  // null for none
    int instruction = 0;                       // where the caller was
  };

  /// Those of them that torch.nn.Module.__call__ is, where they are asked for and once there was one. The thread's, of
  /// this recording.
  ModuleCalls* modules = nullptr;

  /// Null when memory ran out or the thread is being torn down.
  static CalledFrames* current() noexcept { return current_ != nullptr ? current_ : make(); }
  /// Null where the thread was told of none.
  static CalledFrames* existing() noexcept { return current_; }
  /// Of all threads: calls and returns are told anew, or no longer. With the GIL.
  static void forget_all() noexcept { latest_.fetch_add(1, std::memory_order_relaxed); }
  /// For a thread that ends.
  static void end() noexcept;

  /// Whether what it holds is of before forget_all.
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
  /// The innermost one is left.
  void leave() noexcept { --depth_; }
  /// Another stack of the thread runs (greenlets have their own), or a function that began before.
  void clear() noexcept { depth_ = 0; }

  /// The innermost function; null where that is another than the frame's.
  Called* find(const InterpreterFrame* frame) noexcept {
    return depth_ != 0 && called_[depth_ - 1].frame == frame ? &called_[depth_ - 1] : nullptr;
  }
  static bool knows_callers(const Called& called) noexcept {
    return called.callers != 0 && called.caller == caller_of(called.frame) &&
           called.instruction == instruction_of(called.caller);
  }
  /// Has the hash of the innermost function's callers made.
  void find_callers() noexcept;

 private:
  static CalledFrames* make() noexcept;
  void grow();

  inline static std::atomic<uint32_t> latest_{1};
  GPUSCOPE_INITIAL_EXEC static constinit thread_local CalledFrames* current_;

  std::vector<Called> called_;  // the first `depth_` of them
  std::size_t depth_ = 0;
  uint32_t told_ = 0;  // the value of latest_ under which these were
};

}  // namespace gpuscope::bindings

#endif
