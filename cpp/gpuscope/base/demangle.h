// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpuscope::base {

/// A symbol as its source spells it; anything that is not a mangled C++ name comes back as it is. Any thread.
std::string demangle(std::string_view symbol);

/// A demangled name without return type, template arguments and parameters: `at::native::reduce_kernel`.
///
/// Namespaces stay, for they tell libraries apart. Names that are not C++ (Triton's, XLA's) come back as they are, and
/// CUTLASS's `cutlass::Kernel2<cutlass_80_...>` keeps its argument, which says all there is to say.
std::string short_name(std::string_view demangled);

}  // namespace gpuscope::base
