// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gpuscope::base {

/// One frame of a call stack and, by its parent, all frames around it.
struct Frame {
  uint32_t parent = 0;    // the stack of its caller; 0 for an outermost frame
  uint32_t function = 0;  // a Names id
  uint32_t file = 0;      // a Names id
  uint32_t line = 0;
  bool operator==(const Frame&) const = default;
};

/// The call stacks of the process, as ids that the event logs carry; 0 is no stack. Any thread; never on a hot path,
/// which caches ids.
class Stacks {
 public:
  static Stacks& process() {
    static auto* stacks = new Stacks;  // leaked: logs are read until the last moment
    return *stacks;
  }
  /// 0 once there are too many.
  uint32_t intern(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    if (const auto found = ids_.find(frame); found != ids_.end()) {
      return found->second;
    }
    if (frames_.size() >= kMost) {
      return 0;
    }
    const auto id = static_cast<uint32_t>(frames_.size());
    frames_.push_back(frame);
    ids_.emplace(frame, id);
    return id;
  }
  Frame operator[](uint32_t id) {
    const std::lock_guard lock(mutex_);
    return id < frames_.size() ? frames_[id] : Frame{};
  }
  // Around a fork, so that the child does not inherit a lock that nobody will release.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Hash {
    std::size_t operator()(const Frame& frame) const noexcept {
      uint64_t value = (uint64_t{frame.parent} << 32 | frame.line) * 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio
      value ^= (uint64_t{frame.function} << 32 | frame.file) * 0xC2B2AE3D27D4EB4FULL;
      return static_cast<std::size_t>(value ^ (value >> 29));
    }
  };
  static constexpr std::size_t kMost = std::size_t{1} << 20;
  std::mutex mutex_;
  std::vector<Frame> frames_ = std::vector<Frame>(1);
  std::unordered_map<Frame, uint32_t, Hash> ids_;
};

}  // namespace gpuscope::base
