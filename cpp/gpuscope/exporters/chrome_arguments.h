// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "gpuscope/exporters/output.h"
#include "gpuscope/exporters/region_links.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Arguments that only some events have, under torch.profiler's names; each put with a comma before it.
class ChromeArguments {
 public:
  ChromeArguments(const store::Store& store, const RegionLinks& links) : store_(store), links_(links) {}

  /// An operator's sequence number, its forward operator's thread, input shapes and types, and call stack.
  void put_details(Output& out, uint32_t region);
  /// The payloads of the region; nothing for kNone.
  void put_payloads(Output& out, uint32_t region) const;
  /// A row of `stack`; nothing for kNone.
  void put_stack(Output& out, uint32_t stack);

 private:
  std::string_view shapes(uint32_t text);
  std::string_view types(uint32_t text);

  const store::Store& store_;
  const RegionLinks& links_;
  std::unordered_map<uint32_t, std::string> shapes_, types_, stacks_;  // made when first asked for
};

}  // namespace gpuscope::exporters
