// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gpuscope/base/event_log.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// What a row's store::Flag bits say against it, as "no timestamps, incomplete"; empty when there is nothing.
std::string flag_label(uint16_t flags);

/// A row of `stack` as torch writes it, "file(line): function" from the innermost frame on, joined by ";".
std::string stack_label(const store::Store& store, uint32_t stack);

/// A thread's own name, or one that has its number.
std::string thread_label(const store::Store& store, uint32_t thread);

/// The category torch.profiler gives a region: `user_annotation`, `cpu_op`, or `python_function` for a module.
std::string_view region_category(base::RegionKind kind);

}  // namespace gpuscope::exporters
