// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/spool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/hooks.h"

namespace gpuscope::session {
namespace {

using namespace std::chrono_literals;

constexpr auto kEndLimit = 2s;
constexpr int64_t kRetryNs = 1'000'000'000;
// While nothing can be written, so many segments stay in memory.
constexpr uint64_t kSegmentsInMemory = 4;
constexpr int kNicer = 10;

int open_folder(const std::string& folder) {
  const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (opened < 0) {
    throw base::Error("cannot open " + folder + ": " + std::strerror(errno));
  }
  return opened;
}

}  // namespace

struct SegmentFiles::Work {
  /// A file descriptor.
  class Descriptor {
   public:
    Descriptor() = default;
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(number_, other.number_);
      return *this;
    }
    ~Descriptor() {
      if (number_ >= 0) {
        close(number_);
      }
    }
    int get() const noexcept { return number_; }

   private:
    int number_ = -1;
  };
  struct Item {
    enum class What : uint8_t { Begin, Append, End } what;
    uint64_t number;
    std::string bytes;
    uint64_t rows = 0;  // of the ended file
  };
  struct Written {
    uint64_t number;
    uint64_t bytes;
    std::chrono::steady_clock::time_point ended;
  };

  explicit Work(const SpoolOptions& with) : options(with), folder(open_folder(with.folder)) {}

  void push(Item item) {
    queued_bytes.fetch_add(item.bytes.size(), std::memory_order_relaxed);
    {
      const std::lock_guard lock(mutex);
      items.push_back(std::move(item));
      ++pending;
    }
    changed.notify_one();
  }

  void run() noexcept {
    pthread_setname_np(pthread_self(), "gpuscope-spool");
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNicer);
    while (true) {
      Item item;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return ends || !items.empty(); });
        if (items.empty()) {
          has_ended = true;
          lock.unlock();
          done.notify_all();
          return;
        }
        item = std::move(items.front());
        items.pop_front();
      }
      take(item);
      queued_bytes.fetch_sub(item.bytes.size(), std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (--pending == 0) {
        done.notify_all();
      }
    }
  }

  void take(const Item& item) noexcept {
    if (item.what == Item::What::Begin) {
      delete_old();
      offset = 0;
      file = Descriptor(openat(folder.get(), store::segment_name(item.number).c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (file.get() < 0) {
        fail(item.number);
      }
    } else if (failed.load(std::memory_order_relaxed) == item.number) {
      lost_rows += item.rows;  // they are no longer in memory
    } else if (item.what == Item::What::Append) {
      write_bytes(item);
    } else {
      file = {};
      written.push_back({item.number, offset, std::chrono::steady_clock::now()});
    }
  }

  void write_bytes(const Item& item) noexcept {
    std::string_view left = item.bytes;
    while (!left.empty()) {
      const ssize_t got = pwrite(file.get(), left.data(), left.size(), static_cast<off_t>(offset));
      if (got > 0) {
        offset += static_cast<uint64_t>(got);
        left.remove_prefix(static_cast<std::size_t>(got));
      } else if (got < 0 && (errno == ENOSPC || errno == EDQUOT) && !written.empty()) {
        delete_oldest();
      } else if (got == 0 || errno != EINTR) {
        return fail(item.number);
      }
    }
    if (struct stat status{}; fstat(file.get(), &status) != 0 || status.st_nlink == 0) {
      errno = ENOENT;  // it was deleted: the rows are kept for another file
      fail(item.number);
    }
  }

  /// With errno.
  void fail(uint64_t number) noexcept {
    const int error = errno;
    if (file.get() >= 0) {
      unlinkat(folder.get(), store::segment_name(number).c_str(), 0);
    }
    file = {};
    {
      const std::lock_guard lock(mutex);
      last_error = error;
    }
    failed.store(number, std::memory_order_release);
  }

  void delete_oldest() noexcept {
    unlinkat(folder.get(), store::segment_name(written.front().number).c_str(), 0);
    written.pop_front();
  }
  void delete_old() noexcept {
    uint64_t bytes = options.segment_bytes;
    for (const Written& each : written) {
      bytes += each.bytes;
    }
    const auto now = std::chrono::steady_clock::now();
    while (!written.empty() && (bytes > options.max_bytes ||
                                (options.max_age.count() > 0 && now - written.front().ended > options.max_age))) {
      bytes -= written.front().bytes;
      delete_oldest();
    }
  }

  const SpoolOptions options;
  const Descriptor folder;
  std::atomic<std::size_t> queued_bytes{0};
  std::atomic<uint64_t> failed{UINT64_MAX};  // the number of the file
  std::atomic<uint64_t> lost_rows{0};
  std::mutex mutex;  // guards the members up to `last_error`
  std::condition_variable changed, done;
  std::deque<Item> items;
  std::size_t pending = 0;  // with the one that is being written
  bool ends = false;
  bool has_ended = false;
  int last_error = 0;
  // Only for the thread.
  Descriptor file;
  uint64_t offset = 0;
  std::deque<Written> written;
};

SegmentFiles::SegmentFiles(const SpoolOptions& options)
    : work_(std::make_shared<Work>(options)),
      queued_bytes_(work_->queued_bytes),
      failed_(work_->failed),
      thread_(base::start_thread("segments", [work = work_] { work->run(); })) {}

SegmentFiles::~SegmentFiles() {
  std::unique_lock lock(work_->mutex);
  work_->ends = true;
  work_->changed.notify_one();
  const bool has_ended = work_->done.wait_for(lock, kEndLimit, [this] { return work_->has_ended; });
  lock.unlock();
  has_ended ? thread_.join() : thread_.detach();
}

void SegmentFiles::begin() { work_->push({Work::Item::What::Begin, ++number_, {}}); }
void SegmentFiles::append(std::string bytes) { work_->push({Work::Item::What::Append, number_, std::move(bytes)}); }
void SegmentFiles::end(uint64_t rows) { work_->push({Work::Item::What::End, number_, {}, rows}); }

bool SegmentFiles::wait(std::chrono::nanoseconds limit) {
  std::unique_lock lock(work_->mutex);
  return work_->done.wait_for(lock, limit, [this] { return work_->pending == 0; }) && !failed();
}

uint64_t SegmentFiles::take_lost_rows() noexcept { return work_->lost_rows.exchange(0); }

std::string SegmentFiles::why() const {
  const std::lock_guard lock(work_->mutex);
  return work_->last_error != 0 ? std::strerror(work_->last_error) : "";
}

Spool::Spool(const SpoolOptions& options) : options_(options), files_(options) {}

bool Spool::begin_segment(int64_t now_ns) {
  if (now_ns < retry_ns_ || !files_.has_room()) {
    return false;
  }
  files_.begin();
  segment_bytes_ = 0;
  began_ns_ = now_ns;
  writer_ = std::make_unique<store::SegmentWriter>([this](std::string_view block) { bytes_.append(block); });
  return true;
}

void Spool::hand_over() {
  segment_bytes_ += bytes_.size();
  files_.append(std::exchange(bytes_, {}));
}

Spool::State Spool::write(const store::Store& events, const store::Store& dictionaries, int64_t now_ns) {
  if (writer_ != nullptr && files_.failed()) {
    writer_.reset();
    retry_ns_ = now_ns + kRetryNs;
  }
  if (files_.has_room() && (writer_ != nullptr || begin_segment(now_ns))) {
    writer_->write(events, dictionaries);
    hand_over();
    if (segment_bytes_ >= options_.segment_bytes || now_ns - began_ns_ >= options_.segment_time.count()) {
      return State::SegmentIsFull;
    }
  }
  return attribution::event_bytes(events) > kSegmentsInMemory * options_.segment_bytes ? State::MemoryIsFull
                                                                                       : State::Writing;
}

bool Spool::finish(const store::Store& events, const store::Store& dictionaries) {
  const auto began = std::chrono::steady_clock::now();
  while (!files_.has_room() && std::chrono::steady_clock::now() - began < kEndLimit) {
    std::this_thread::sleep_for(5ms);
  }
  write(events, dictionaries, std::max(began_ns_, retry_ns_));
  return end_segment(events, dictionaries) && files_.wait(kEndLimit);
}

bool Spool::end_segment(const store::Store& events, const store::Store& dictionaries) {
  if (writer_ == nullptr || files_.failed()) {
    return false;
  }
  writer_->end(events, dictionaries);
  hand_over();
  files_.end(writer_->event_rows());
  writer_.reset();
  return true;
}

}  // namespace gpuscope::session
