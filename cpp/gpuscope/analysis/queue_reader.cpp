// SPDX-License-Identifier: Apache-2.0
// Which call launched which work, which waits occurred, and the latencies between them without other delays.
#include "gpuscope/analysis/queue_reader.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "gpuscope/store/values.h"

namespace gpuscope::analysis {
namespace {

using store::CallKind;

// The maximum difference of the GPU's and the host's clocks.
constexpr int64_t kClocks = 2'000;
// Work that begins this much later than all known reasons was held back by another stream.
constexpr int64_t kLate = 3'000;
// The work there ended at most this long before.
constexpr int64_t kHeldGap = 20'000;
// The maximum distance back to the awaited work.
constexpr std::size_t kLookBack = 64;
// Defaults without samples: launch to start, work to work, end of work to end of the call.
constexpr int32_t kLatency = 2'000;
constexpr int32_t kGap = 1'000;
constexpr int32_t kWake = 4'000;
// Default duration of a waiting call without its wait.
constexpr int64_t kOwn = 4'000;
// Copies from pageable memory of up to 64 KiB return before they run.
constexpr uint64_t kStaged = 65'536;
// A call waits for its copy if this share of copies of the kind ended within their call.
constexpr double kBlockingShare = 0.9;
// A thread waited for another one that, after a long silence, made at least this many calls meanwhile.
constexpr std::size_t kBurst = 4;
constexpr int64_t kSilence = 3;  // times the usual distance of those calls
// The quantile of call durations that is taken as free of waiting, if many calls may have waited.
constexpr double kShort = 0.1;
// A queue of fewer launches does not fill.
constexpr std::size_t kLeastQueue = 256;

/// Samples and their representative value: the mean of the middle half. It is robust against outliers and adds up like
/// a mean.
class Samples {
 public:
  void add(int64_t value) {
    if (++seen_ % every_ != 0) {
      return;
    }
    values_.push_back(static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX)));
    if (values_.size() == kMost) {  // from now on every second sample
      for (std::size_t at = 0; at < kMost / 2; ++at) {
        values_[at] = values_[2 * at + 1];
      }
      values_.resize(kMost / 2);
      every_ *= 2;
    }
  }
  bool empty() const { return values_.empty(); }
  int32_t middle(int32_t otherwise) {
    if (values_.empty()) {
      return otherwise;
    }
    std::sort(values_.begin(), values_.end());
    const std::size_t cut = values_.size() / 4;
    int64_t sum = 0;
    for (std::size_t at = cut; at < values_.size() - cut; ++at) {
      sum += values_[at];
    }
    return static_cast<int32_t>(sum / static_cast<int64_t>(values_.size() - 2 * cut));
  }
  int32_t median() { return quantile(0.5); }
  int32_t quantile(double share) {
    const auto rank = static_cast<std::ptrdiff_t>(share * static_cast<double>(values_.size()));
    std::nth_element(values_.begin(), values_.begin() + rank, values_.end());
    return values_[static_cast<std::size_t>(rank)];
  }

 private:
  static constexpr std::size_t kMost = 65'536;

  std::size_t seen_ = 0;
  std::size_t every_ = 1;
  std::vector<int32_t> values_;
};

std::vector<int32_t> middles(std::vector<Samples>& kinds, int32_t otherwise) {
  std::vector<int32_t> found(kinds.size());
  std::transform(kinds.begin(), kinds.end(), found.begin(),
                 [otherwise](Samples& each) { return each.middle(otherwise); });
  return found;
}

int32_t to_int32(int64_t value) { return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX)); }

template <class Rows, class Before>
void sort_rows(Rows& rows, Before before) {
  if (!std::is_sorted(rows.begin(), rows.end(), before)) {
    std::stable_sort(rows.begin(), rows.end(), before);
  }
}

// The wait of a call. Free: all work, if the recording shows the wait.
enum class Waits : uint8_t { No, Stream, Device, Event, Free };

class QueueReader {
 public:
  explicit QueueReader(const store::Store& store) : store_(store) {}

  Queues read() {
    read_calls();
    read_work();
    chain_work();
    learn_latencies();
    find_held();
    find_waits();
    find_limits();
    find_hand_overs();
    queues_.done.assign(calls().size() + 1, -kFar);
    for (std::size_t at = 0; at < calls().size(); ++at) {
      queues_.done[at + 1] = queues_.done[at];
      for (std::size_t each = calls()[at].first_work; each < end_of_works(at); ++each) {
        queues_.done[at + 1] = std::max(queues_.done[at + 1], works()[each].end);
      }
    }
    return std::move(queues_);
  }

 private:
  static constexpr uint32_t kNone = Queues::kNone;
  static constexpr int64_t kFar = Queues::kFar;
  using Call = Queues::Call;
  using Work = Queues::Work;

  /// Facts about work, used while reading.
  struct About {
    uint16_t track;
    uint16_t kind;  // selects its latency and gap
    bool copies = false;
    bool pageable = false;
    bool big = false;
  };

  Queues::Rows<Call>& calls() { return queues_.calls; }
  Queues::Rows<Work>& works() { return queues_.works; }
  const store::Calls& functions() const { return store_.call; }
  uint16_t function_of(const Call& call) const { return store_.api.call[call.row]; }
  CallKind kind_of(const Call& call) const {
    const uint16_t function = function_of(call);
    return function < functions().size() ? static_cast<CallKind>(functions().kind[function]) : CallKind::Other;
  }
  std::string_view name_of(uint16_t function) const {
    const uint32_t id = function < functions().size() ? functions().name[function] : kNone;
    return id < store_.strings.size() ? std::string_view(store_.strings[id]) : std::string_view();
  }
  std::size_t end_of_works(std::size_t call) const { return queues_.works_before(call + 1); }

  void read_calls() {
    const store::Apis& api = store_.api;
    Queues::Rows<uint32_t> rows(api.size());
    for (uint32_t row = 0; row < rows.size(); ++row) {
      rows[row] = row;
    }
    sort_rows(rows, [&](uint32_t a, uint32_t b) { return api.start_ns[a] < api.start_ns[b]; });
    queues_.base = rows.empty() ? 0 : api.start_ns[rows.front()];
    queues_.call_of_row.resize(rows.size());
    calls().reserve(rows.size());
    last_of_thread_.assign(std::size_t{UINT16_MAX} + 1, kNone);
    previous_.assign(rows.size(), kNone);
    for (uint32_t at = 0; at < rows.size(); ++at) {
      const uint32_t row = rows[at];
      const uint16_t thread = api.thread[row];
      const uint32_t before = last_of_thread_[thread];
      const int64_t start = queues_.after_base(api.start_ns[row]);
      const int64_t free = before == kNone ? 0 : calls()[before].end;
      // A call inside another call ends with it, and has no own time.
      const int64_t end = std::max(free, start + std::clamp<int64_t>(api.duration_ns[row], 0, kFar));
      queues_.call_of_row[row] = at;
      calls().push_back({.start = start,
                         .end = end,
                         .piece = std::max<int64_t>(0, start - free),
                         .own = end - std::max(start, free),
                         .row = row,
                         .after = before,
                         .thread = thread});
      previous_[at] = before;
      last_of_thread_[thread] = at;
    }
  }

  template <class Table>
  void add_works(const Table& table, store::Work kind, Queues::Rows<uint32_t>* index) {
    if (index != nullptr) {
      index->assign(table.size(), kNone);
    }
    const auto& api = store_.api;
    if (by_correlation_.empty()) {
      by_correlation_.reserve(calls().size());
      for (uint32_t at = 0; at < calls().size(); ++at) {
        by_correlation_.emplace_back(api.correlation[calls()[at].row], at);
      }
      sort_rows(by_correlation_, [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    std::size_t hint = 0;
    for (uint32_t row = 0; row < table.size(); ++row) {
      const uint32_t correlation = table.correlation[row];
      if (hint >= by_correlation_.size() || by_correlation_[hint].first != correlation) {
        if (hint + 1 < by_correlation_.size() && by_correlation_[hint + 1].first == correlation) {
          ++hint;
        } else {
          hint = static_cast<std::size_t>(
              std::lower_bound(by_correlation_.begin(), by_correlation_.end(), std::pair{correlation, uint32_t{0}}) -
              by_correlation_.begin());
        }
      }
      const bool known =
          correlation != 0 && hint < by_correlation_.size() && by_correlation_[hint].first == correlation;
      if (!known || (table.flags[row] & store::kZeroTime) != 0) {
        ++queues_.unlaunched;
        continue;
      }
      found_.push_back({queues_.after_base(table.start_ns[row]), std::clamp<int64_t>(table.duration_ns[row], 0, kFar),
                        by_correlation_[hint].second, row, kind});
    }
  }

  void read_work() {
    found_.reserve(store_.kernel.size() + store_.memcpy.size() + store_.memset.size() + store_.graph_launch.size());
    add_works(store_.kernel, store::Work::Kernel, &queues_.work_of_kernel);
    add_works(store_.memcpy, store::Work::Memcpy, &queues_.work_of_copy);
    add_works(store_.memset, store::Work::Memset, nullptr);
    add_works(store_.graph_launch, store::Work::GraphLaunch, nullptr);
    sort_rows(found_,
              [](const Found& a, const Found& b) { return std::tie(a.call, a.start) < std::tie(b.call, b.start); });
    std::map<uint32_t, uint16_t> devices;
    std::vector<uint16_t> device_of_track;
    for (std::size_t track = 0; track <= store_.track.size(); ++track) {
      const uint32_t device = track < store_.track.size() ? store_.track.device[track] : kNone;
      const auto number = static_cast<uint16_t>(devices.size());
      device_of_track.push_back(devices.try_emplace(device, number).first->second);
    }
    queues_.devices = devices.size();
    works().reserve(found_.size());
    about_.reserve(found_.size());
    uint32_t call = 0;
    for (const Found& each : found_) {
      const auto at = static_cast<uint32_t>(works().size());
      for (; call <= each.call; ++call) {
        calls()[call].first_work = at;
      }
      About about = describe(each);
      works().push_back({.start = each.start,
                         .end = each.start + each.duration,
                         .call = each.call,
                         .device = device_of_track[std::min<std::size_t>(about.track, store_.track.size())]});
      about_.push_back(about);
      if (each.kind == store::Work::Kernel) {
        queues_.work_of_kernel[each.row] = at;
      } else if (each.kind == store::Work::Memcpy) {
        queues_.work_of_copy[each.row] = at;
      }
    }
    for (; call < calls().size(); ++call) {
      calls()[call].first_work = static_cast<uint32_t>(works().size());
    }
    found_ = {};
    by_correlation_ = {};
  }

  struct Found {
    int64_t start;
    int64_t duration;
    uint32_t call;
    uint32_t row;
    store::Work kind;
  };

  About describe(const Found& found) {
    uint16_t function = 0;
    uint16_t flags = 0;
    uint16_t track = 0;
    uint32_t what = 0;
    About about{};
    const auto common = [&](const auto& table) {
      track = table.track[found.row];
      flags = table.flags[found.row];
    };
    switch (found.kind) {
      case store::Work::Kernel:
        common(store_.kernel);
        break;
      case store::Work::Memset:
        common(store_.memset);
        break;
      case store::Work::GraphLaunch:
        common(store_.graph_launch);
        break;
      default: {
        const store::Memcpys& copies = store_.memcpy;
        common(copies);
        function = function_of(calls()[found.call]);
        const auto pageable = static_cast<uint8_t>(store::MemoryKind::Pageable);
        about.copies = (flags & store::kInGraph) == 0;
        about.pageable = copies.source[found.row] == pageable || copies.destination[found.row] == pageable;
        about.big = copies.bytes[found.row] > kStaged;
        what = uint32_t{copies.kind[found.row]} << 24 | uint32_t{copies.source[found.row]} << 16 |
               uint32_t{copies.destination[found.row]} << 8 | (about.big ? 1U : 0U);
      }
    }
    const bool in_graph = (flags & store::kInGraph) != 0;
    const uint64_t key =
        uint64_t{static_cast<uint16_t>(found.kind)} << 56 | uint64_t{in_graph} << 48 | uint64_t{function} << 32 | what;
    about.track = track;
    about.kind =
        kinds_.try_emplace(key, static_cast<uint16_t>(std::min<std::size_t>(kinds_.size(), kKinds - 1))).first->second;
    return about;
  }

  // Finds the previous work on the stream. Graph nodes may run concurrently, as may kernels whose launch does not wait
  // for the previous kernel's end.
  void chain_work() {
    struct Track {
      uint32_t last = kNone;
      uint32_t latest = kNone;  // the work that ends last
    };
    std::vector<Track> tracks(std::size_t{UINT16_MAX} + 1);
    const auto before = [&](const Work& work, uint32_t other) {  // allows some overlap
      const Work& it = works()[other];
      return it.end - work.start <= (it.end - it.start) / 2;
    };
    for (uint32_t at = 0; at < works().size(); ++at) {
      Work& work = works()[at];
      Track& track = tracks[about_[at].track];
      if (track.latest != kNone) {
        if (before(work, track.latest)) {
          work.after = track.latest;
        } else {
          if (works()[track.latest].start <= work.start) {
            work.beside = track.latest;
          }
          if (track.last != track.latest && before(work, track.last)) {
            work.after = track.last;
          }
        }
      }
      track.last = at;
      if (track.latest == kNone || work.end >= works()[track.latest].end) {
        track.latest = at;
      }
    }
  }

  bool in_one_call(const Work& work) { return work.after != kNone && works()[work.after].call == work.call; }

  void learn_latencies() {
    std::vector<std::pair<std::size_t, std::size_t>> ended_in_call(kKinds);  // of copies: those, all
    for (uint32_t at = 0; at < works().size(); ++at) {
      if (about_[at].copies) {
        const Work& work = works()[at];
        auto& [those, all] = ended_in_call[about_[at].kind];
        those += calls()[work.call].end >= work.start + (work.end - work.start) / 2 ? 1 : 0;
        ++all;
      }
    }
    for (uint32_t at = 0; at < works().size(); ++at) {
      const auto& [those, all] = ended_in_call[about_[at].kind];
      const bool may_wait = about_[at].pageable || !name_of(function_of(calls()[works()[at].call])).ends_with("Async");
      works()[at].from_start =
          about_[at].copies && may_wait && static_cast<double>(those) >= kBlockingShare * static_cast<double>(all);
    }
    std::vector<Samples> latencies(kKinds);
    std::vector<Samples> gaps(2 * kKinds);
    Samples all_latencies;
    for (uint32_t at = 0; at < works().size(); ++at) {
      const Work& work = works()[at];
      const Call& call = calls()[work.call];
      const int64_t from = work.from_start ? call.start : call.end;
      if (call.first_work == at && (work.after == kNone || works()[work.after].end <= from) && !seems_held(at, from)) {
        latencies[about_[at].kind].add(work.start - from);
        if (!work.from_start) {
          all_latencies.add(work.start - from);
        }
      }
    }
    const int32_t usual = all_latencies.middle(kLatency);
    const std::vector<int32_t> latency = middles(latencies, usual);
    Samples all_gaps;
    for (uint32_t at = 0; at < works().size(); ++at) {
      Work& work = works()[at];
      const Call& call = calls()[work.call];
      // Of one call, only the first work depends on the call.
      const bool inside = in_one_call(work);
      work.latency = inside ? INT32_MIN : latency[about_[at].kind];
      if (work.after == kNone) {
        continue;
      }
      const int64_t end = works()[work.after].end;
      if (inside || ((work.from_start ? call.start : call.end) + work.latency < end && !seems_held(at, end))) {
        gaps[2U * about_[at].kind + (inside ? 1U : 0U)].add(work.start - end);
        if (!inside) {
          all_gaps.add(work.start - end);
        }
      }
    }
    const int32_t usual_gap = all_gaps.middle(kGap);
    const std::vector<int32_t> gap = middles(gaps, usual_gap);
    for (uint32_t at = 0; at < works().size(); ++at) {
      Work& work = works()[at];
      if (work.after != kNone) {
        const int64_t recorded = work.start - works()[work.after].end;
        const int32_t learned = gap[2U * about_[at].kind + (in_one_call(work) ? 1U : 0U)];
        work.gap = recorded < 0 ? to_int32(std::min<int64_t>(recorded, learned)) : learned;
      }
    }
  }

  /// The work before a call that ended last by `time`, on another stream than `track` if given.
  uint32_t ended_before(int64_t time, uint32_t call, uint32_t track) {
    if (by_end_.empty()) {
      by_end_.resize(works().size());
      for (uint32_t at = 0; at < by_end_.size(); ++at) {
        by_end_[at] = at;
      }
      sort_rows(by_end_, [&](uint32_t a, uint32_t b) { return works()[a].end < works()[b].end; });
    }
    auto next =
        std::partition_point(by_end_.begin(), by_end_.end(), [&](uint32_t at) { return works()[at].end <= time; });
    for (std::size_t back = 0; back < kLookBack && next != by_end_.begin(); ++back) {
      const uint32_t at = *--next;
      if (works()[at].call < call && about_[at].track != track) {
        return at;
      }
    }
    return kNone;
  }

  // Whether work may have waited for another stream: it began long after `from`, right after work there had ended.
  bool seems_held(uint32_t at, int64_t from) {
    const Work& work = works()[at];
    if (store_.track.size() < 2 || work.start <= from + kLate) {
      return false;
    }
    const uint32_t other = ended_before(work.start, work.call, about_[at].track);
    return other != kNone && works()[other].device == work.device && works()[other].end > from &&
           work.start - works()[other].end <= kHeldGap;
  }

  // Finds such work, if neither its call nor its own stream explains its late start.
  void find_held() {
    if (store_.track.size() < 2) {
      return;
    }
    Samples gaps;
    for (Work& work : works()) {
      const auto at = static_cast<uint32_t>(&work - works().data());
      const Call& call = calls()[work.call];
      int64_t explained = (work.from_start ? call.start : call.end) + work.latency;
      if (work.after != kNone) {
        explained = std::max(explained, works()[work.after].end + work.gap);
      }
      if (work.beside == kNone && work.start > explained + kLate && seems_held(at, explained - kLate)) {
        work.held = ended_before(work.start, work.call, about_[at].track);
        gaps.add(work.start - works()[work.held].end);
      }
    }
    queues_.held_gap = gaps.middle(kGap);
    find_events();
  }

  // Finds work behind a cuStreamWaitEvent that came too late to show a wait. The event is assumed to be the end of the
  // latest launch on another stream.
  void find_events() {
    std::vector<bool> waits;
    waits.reserve(functions().size());
    for (std::size_t function = 0; function < functions().size(); ++function) {
      waits.push_back(name_of(static_cast<uint16_t>(function)).starts_with("cuStreamWaitEvent"));
    }
    std::vector<bool> pending(std::size_t{UINT16_MAX} + 1);
    for (std::size_t at = 0; at < calls().size(); ++at) {
      const Call& call = calls()[at];
      const std::size_t first = call.first_work;
      if (function_of(call) < waits.size() && waits[function_of(call)]) {
        pending[call.thread] = true;
      } else if (first < end_of_works(at) && pending[call.thread]) {
        pending[call.thread] = false;
        Work& work = works()[first];
        for (std::size_t back = 1; work.held == kNone && back <= std::min(first, kLookBack); ++back) {
          const std::size_t other = first - back;
          if (about_[other].track != about_[first].track && works()[other].device == work.device) {
            if (works()[other].end <= work.start) {
              work.held = static_cast<uint32_t>(other);
            }
            break;
          }
        }
      }
    }
  }

  Waits waits_of(uint16_t function) const {
    const std::string_view name = name_of(function);
    const auto kind = static_cast<CallKind>(functions().kind[function]);
    if (kind == CallKind::Free && !name.ends_with("Async")) {
      return Waits::Free;
    }
    if (kind != CallKind::Sync) {
      return Waits::No;
    }
    if (name.starts_with("cuCtxSynchronize")) {
      return Waits::Device;
    }
    if (name.starts_with("cuStreamSynchronize")) {
      return Waits::Stream;
    }
    return name.starts_with("cuStreamWaitEvent") ? Waits::No : Waits::Event;
  }

  void find_waits() {
    std::vector<Waits> waits;
    waits.reserve(functions().size());
    for (std::size_t function = 0; function < functions().size(); ++function) {
      waits.push_back(waits_of(static_cast<uint16_t>(function)));
    }
    std::unordered_map<uint32_t, uint16_t> asked;  // the awaited streams, if recorded
    for (std::size_t row = 0; row < store_.sync.size(); ++row) {
      if (static_cast<store::SyncKind>(store_.sync.kind[row]) == store::SyncKind::Stream) {
        asked.try_emplace(store_.sync.correlation[row], store_.sync.track[row]);
      }
    }
    std::vector<uint32_t> last_of_track(std::size_t{UINT16_MAX} + 1, kNone);
    std::vector<uint32_t> last_of_thread(std::size_t{UINT16_MAX} + 1, kNone);
    std::vector<int64_t> device_ends(queues_.devices, -kFar);
    Queues::Rows<int64_t> waited_until(calls().size(), INT64_MIN);
    const std::size_t functions_and_none = functions().size() + 1;
    std::vector<Samples> wakes(functions_and_none + kKinds);
    std::vector<Samples> unwaited(functions_and_none);
    std::vector<uint16_t> groups(calls().size());
    Samples launches;
    for (uint32_t at = 0; at < calls().size(); ++at) {
      Call& call = calls()[at];
      const uint16_t function = std::min<uint16_t>(function_of(call), static_cast<uint16_t>(functions().size()));
      const Waits what = function < waits.size() ? waits[function] : Waits::No;
      std::size_t group = function;
      int64_t until = INT64_MIN;
      const auto wait_for = [&](uint32_t work) {
        call.wait = work;
        until = works()[work].end;
      };
      if ((what == Waits::Device || what == Waits::Free) && last_of_thread[call.thread] != kNone) {
        const uint16_t device = works()[last_of_thread[call.thread]].device;
        if (device_ends[device] <= call.end + kClocks && (what == Waits::Device || device_ends[device] > call.start)) {
          call.wait_device = static_cast<uint16_t>(device + 1);
          until = device_ends[device];
        }
      } else if (what == Waits::Stream) {
        uint32_t work =
            last_of_thread[call.thread] == kNone ? kNone : last_of_track[about_[last_of_thread[call.thread]].track];
        if (const auto found = asked.find(store_.api.correlation[call.row]); found != asked.end()) {
          work = last_of_track[found->second];
        }
        if (work != kNone && works()[work].end <= call.end + kClocks) {
          wait_for(work);
        }
      }
      if (what != Waits::No && what != Waits::Free && until == INT64_MIN) {
        if (const uint32_t work = ended_before(call.end + kClocks, at, kNone); work != kNone) {
          wait_for(work);
        }
      }
      for (std::size_t each = call.first_work; each < end_of_works(at); ++each) {
        if (works()[each].from_start) {
          wait_for(static_cast<uint32_t>(each));
          group = functions_and_none + about_[each].kind;
        }
        last_of_track[about_[each].track] = static_cast<uint32_t>(each);
        last_of_thread[call.thread] = static_cast<uint32_t>(each);
        device_ends[works()[each].device] = std::max(device_ends[works()[each].device], works()[each].end);
      }
      groups[at] = static_cast<uint16_t>(std::min<std::size_t>(group, UINT16_MAX));
      if (until > call.start) {
        wakes[group].add(call.end - until);
        waited_until[at] = until;
      } else {
        unwaited[function].add(call.end - call.start);
        if (kind_of(call) == CallKind::Launch) {
          launches.add(call.end - call.start);
        }
      }
    }
    Samples all;
    for (Samples& each : wakes) {
      if (!each.empty()) {
        all.add(each.middle(kWake));
      }
    }
    const int32_t usual = all.empty() ? kWake : all.median();
    const std::vector<int32_t> wake = middles(wakes, usual);
    // Launches into a full queue may be the majority, and take longer.
    const int64_t other = launches.empty() ? kOwn : launches.quantile(kShort);
    own_.clear();
    for (Samples& each : unwaited) {
      own_.push_back(each.empty() ? other : each.median());
    }
    for (uint32_t at = 0; at < calls().size(); ++at) {
      Call& call = calls()[at];
      call.wake = wake[groups[at]];
      if (waited_until[at] != INT64_MIN) {
        const std::size_t function = std::min<std::size_t>(function_of(call), functions().size());
        call.own = std::min(call.own, own_[function]);
      }
    }
  }

  // Finds the limit of a stream's queue: a launch into a full queue waits. The signs are many queued launches, and most
  // calls then much slower than others.
  void find_limits() {
    std::vector<std::vector<uint32_t>> launches(store_.track.size() + 1);  // the first work of each launch
    for (uint32_t at = 0; at < calls().size(); ++at) {
      const std::size_t first = calls()[at].first_work;
      if (first < end_of_works(at) && kind_of(calls()[at]) != CallKind::Memcpy) {
        launches[std::min<std::size_t>(about_[first].track, store_.track.size())].push_back(
            static_cast<uint32_t>(first));
      }
    }
    for (const std::vector<uint32_t>& track : launches) {
      if (track.size() > kLeastQueue) {
        limit(track);
      }
    }
  }

  void limit(const std::vector<uint32_t>& launches) {
    std::vector<std::size_t> queued(launches.size());
    std::size_t begun = 0;
    std::size_t most = 0;
    for (std::size_t at = 0; at < launches.size(); ++at) {
      const int64_t end = calls()[works()[launches[at]].call].end;
      while (begun < at && works()[launches[begun]].start <= end) {
        ++begun;
      }
      queued[at] = at - begun + 1;
      most = std::max(most, queued[at]);
    }
    if (most < kLeastQueue) {
      return;
    }
    // The usual duration of a function's calls with room in the queue. If there never is room, that of its short calls.
    std::unordered_map<uint16_t, std::pair<Samples, Samples>> durations;
    for (std::size_t at = 0; at < launches.size(); ++at) {
      const Call& call = calls()[works()[launches[at]].call];
      auto& [with_room, all] = durations[function_of(call)];
      all.add(call.end - call.start);
      if (2 * queued[at] < most) {
        with_room.add(call.end - call.start);
      }
    }
    std::unordered_map<uint16_t, int64_t> usual_of;
    for (auto& [function, samples] : durations) {
      auto& [with_room, all] = samples;
      usual_of[function] = with_room.empty() ? all.quantile(kShort) : with_room.median();
    }
    const auto usual = [&](const Call& call) { return usual_of[function_of(call)]; };
    // Several launches get room at once.
    const auto is_full = [&](std::size_t at) { return 20 * queued[at] >= 19 * most; };
    const auto slow = [&](const Call& call) { return call.end - call.start > 2 * usual(call); };
    std::size_t full = 0;
    std::size_t slow_when_full = 0;
    std::size_t slow_otherwise = 0;
    for (std::size_t at = 0; at < launches.size(); ++at) {
      const bool is_slow = slow(calls()[works()[launches[at]].call]);
      if (is_full(at)) {
        ++full;
        slow_when_full += is_slow ? 1 : 0;
      } else {
        slow_otherwise += is_slow ? 1 : 0;
      }
    }
    // Often full, and then slow more often than otherwise.
    if (full < 16 || 4 * slow_when_full < full ||
        slow_when_full * (launches.size() - full) <= 2 * slow_otherwise * full) {
      return;
    }
    Samples wakes;
    for (std::size_t at = most; at < launches.size(); ++at) {
      Call& call = calls()[works()[launches[at]].call];
      call.queue_wait = launches[at - most];
      if (is_full(at) && slow(call)) {
        wakes.add(call.end - works()[call.queue_wait].start);
      }
    }
    const int32_t wake = wakes.middle(0);
    for (std::size_t at = most; at < launches.size(); ++at) {
      Call& call = calls()[works()[launches[at]].call];
      call.queue_wake = wake;
      if (is_full(at) && slow(call)) {
        call.own = std::min(call.own, usual(call));
      }
    }
  }

  // Finds hand-overs: a thread without calls, while another thread, silent before, made many calls. The other thread
  // began after the thread's last call, and the thread continued after the other's calls.
  void find_hand_overs() {
    std::vector<uint32_t> place(calls().size());
    for (uint32_t at = 0; at < calls().size(); ++at) {
      std::vector<uint32_t>& rows = queues_.calls_of_thread[calls()[at].thread];
      place[at] = static_cast<uint32_t>(rows.size());
      rows.push_back(at);
    }
    for (uint32_t at = 1; at < calls().size(); ++at) {
      Call& call = calls()[at];
      const Call& last = calls()[at - 1];
      if (last.thread == call.thread) {
        continue;
      }
      if (previous_[at] == kNone) {
        follow(call, latest_ended(at));
        continue;
      }
      const Call& before = calls()[previous_[at]];
      const std::vector<uint32_t>& others = queues_.calls_of_thread[last.thread];
      const std::size_t behind = std::size_t{place[at - 1]} + 1;
      const auto first = std::partition_point(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(behind),
                                              [&](uint32_t each) { return calls()[each].start < before.end; });
      const std::size_t from = static_cast<std::size_t>(first - others.begin());
      if (behind - from < kBurst || last.end > call.start) {
        continue;
      }
      if (previous_[at] >= others[from]) {
        continue;
      }
      Call& burst = calls()[others[from]];
      const int64_t length = last.end - burst.start;
      if (2 * length < call.start - before.end) {
        continue;
      }
      const int64_t distance = (last.start - burst.start) / static_cast<int64_t>(behind - from - 1);
      if (from > 0 && burst.start - calls()[others[from - 1]].end < kSilence * distance) {
        continue;
      }
      follow(call, at - 1);
      follow(burst, previous_[at]);
    }
  }
  uint32_t latest_ended(uint32_t call) {
    uint32_t found = kNone;
    for (uint32_t back = 1; back <= std::min<uint32_t>(call, kLookBack); ++back) {
      const Call& other = calls()[call - back];
      if (other.end <= calls()[call].start && (found == kNone || other.end > calls()[found].end)) {
        found = call - back;
      }
    }
    return found;
  }
  void follow(Call& call, uint32_t other) {
    call.after = other;
    call.piece = other == kNone ? call.start : std::max<int64_t>(0, call.start - calls()[other].end);
  }

  static constexpr std::size_t kKinds = 256;

  Queues queues_;
  const store::Store& store_;
  std::vector<uint32_t> last_of_thread_;
  Queues::Rows<uint32_t> previous_;  // the previous call on each call's thread
  Queues::Rows<std::pair<uint32_t, uint32_t>> by_correlation_;
  Queues::Rows<Found> found_;
  Queues::Rows<About> about_;
  Queues::Rows<uint32_t> by_end_;
  std::vector<int64_t> own_;  // of each function, its usual duration without waiting
  std::unordered_map<uint64_t, uint16_t> kinds_;
};

}  // namespace

int64_t Queues::after_base(int64_t time_ns) const noexcept {
  const auto distance = [](int64_t from, int64_t to) {
    return static_cast<int64_t>(std::min(static_cast<uint64_t>(to) - static_cast<uint64_t>(from), uint64_t{kFar}));
  };
  return time_ns >= base ? distance(base, time_ns) : -distance(time_ns, base);
}

Queues read_queues(const store::Store& store) { return QueueReader(store).read(); }

}  // namespace gpuscope::analysis
