// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/gpu_annotations.h"

#include <algorithm>
#include <tuple>

#include "gpuscope/base/flat_map.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;

struct Span {
  int64_t start_ns;
  int64_t end_ns;
  uint32_t region;
  uint16_t track;
};

class Spans {
 public:
  void extend(uint32_t region, uint16_t track, int64_t start_ns, int64_t end_ns) {
    const uint64_t key = (uint64_t{region} << 16) | track;
    if (key != last_key_) {  // work comes in runs of one annotation
      last_key_ = key;
      last_ = spans_.size();
      last_ = at_.find_or_make(key, [&] {
        spans_.push_back({start_ns, end_ns, region, track});
        return last_;
      });
    }
    Span& span = spans_[last_];
    span.start_ns = std::min(span.start_ns, start_ns);
    span.end_ns = std::max(span.end_ns, end_ns);
  }
  std::vector<Span>& all() { return spans_; }

 private:
  std::vector<Span> spans_;
  base::FlatMap<std::size_t> at_;
  uint64_t last_key_ = UINT64_MAX;
  std::size_t last_ = 0;
};

template <class Table>
void extend_by(const Table& work, const RegionLinks& links, Spans& spans) {
  for (std::size_t row = 0; row < work.size(); ++row) {
    if (work.region[row] == kNone || (work.flags[row] & store::kZeroTime) != 0) {
      continue;
    }
    if (const uint32_t annotation = links.annotation(work.region[row]); annotation != kNone) {
      spans.extend(annotation, work.track[row], work.start_ns[row], work.start_ns[row] + work.duration_ns[row]);
    }
  }
}

}  // namespace

GpuAnnotations find_gpu_annotations(const store::Store& store, const RegionLinks& links) {
  Spans spans;
  extend_by(store.kernel, links, spans);
  extend_by(store.memcpy, links, spans);
  extend_by(store.memset, links, spans);
  extend_by(store.graph_launch, links, spans);
  const std::vector<Span> innermost = spans.all();
  for (const Span& span : innermost) {
    for (uint32_t outer = store.region.parent[span.region]; outer != kNone;) {
      outer = links.annotation(outer);
      if (outer != kNone) {
        spans.extend(outer, span.track, span.start_ns, span.end_ns);
        outer = store.region.parent[outer];
      }
    }
  }
  const auto order = [&](const Span& span) {
    return std::tuple(span.start_ns, -span.end_ns, store.path.depth[store.region.path[span.region]]);
  };
  std::sort(spans.all().begin(), spans.all().end(), [&](const Span& a, const Span& b) { return order(a) < order(b); });
  GpuAnnotations found;
  for (const Span& span : spans.all()) {
    found.start_ns.push_back(span.start_ns);
    found.duration_ns.push_back(span.end_ns - span.start_ns);
    found.region.push_back(span.region);
    found.track.push_back(span.track);
  }
  return found;
}

}  // namespace gpuscope::exporters
