// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/frame.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::exporters {
namespace {

using store::ColumnInfo;
using store::kNone;
using store::Target;

/// `id_of(row)`: below `ids`, or any other number for none. `text_of(id)`: the text of an id.
template <class IdOf, class TextOf>
FrameColumn categorize(std::string_view name, std::size_t rows, std::size_t ids, IdOf&& id_of, TextOf&& text_of) {
  constexpr int32_t kUnknown = -2;
  Texts texts;
  std::vector<int32_t> codes(rows, -1);
  std::vector<int32_t> code_of(ids, kUnknown);
  std::unordered_map<std::string, int32_t> known;  // ids may share a text
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t id = id_of(row);
    if (id >= ids) {
      continue;
    }
    if (code_of[id] == kUnknown) {
      const auto [found, is_new] = known.try_emplace(base::to_utf8(text_of(id)), static_cast<int32_t>(texts.size()));
      if (is_new) {
        if (texts.text.size() + found->first.size() > std::numeric_limits<int32_t>::max()) {
          throw base::InvalidArgument("column " + std::string(name) +
                                      " has more than 2 GiB of text; accepted are columns with less");
        }
        texts.text += found->first;
        texts.offsets.push_back(static_cast<int32_t>(texts.text.size()));
      }
      code_of[id] = found->second;
    }
    codes[row] = code_of[id];
  }
  return {std::string(name), {}, std::move(texts), std::move(codes)};
}

class Frame {
 public:
  Frame(const store::Store& store, const store::TableInfo& table, std::size_t rows)
      : store_(store), table_(table), rows_(rows) {}

  std::vector<FrameColumn> take() { return std::move(columns_); }

  template <class Column>
  void add(const ColumnInfo& info, const Column& column) {
    const auto row_of = [&](std::size_t row) { return static_cast<std::size_t>(column[row]); };
    const Target target = info.meaning.target;
    const store::TableInfo* other = store::find_table(target);
    if (target == Target::Strings) {
      add_texts(info.name, store_.strings.size(), row_of, [&](std::size_t id) { return string(id); });
      return;
    }
    // `parent` and `forward` identify a row, and a name would not.
    if (other == nullptr || other->name != info.name) {
      add_numbers(info, column);
      return;
    }
    switch (target) {
      case Target::Regions: {
        const auto path_of = [&](std::size_t row) {
          return row_of(row) < store_.region.size() ? store_.region.path[row_of(row)] : std::size_t{kNone};
        };
        add_texts("region", store_.path.size(), path_of,
                  [&](std::size_t path) { return string(store_.path.name[path]); });
        if (!has("path")) {
          add_path(path_of);
        }
        break;
      }
      case Target::Paths:
        if (!info.meaning.optional) {
          add_texts("name", store_.path.size(), row_of,
                    [&](std::size_t path) { return string(store_.path.name[path]); });
        }
        add_path(row_of);
        break;
      case Target::Threads:
        add_distinct("thread", store_.thread.system_id, row_of);
        break;
      case Target::Calls:
        add_numbers(info, column);
        add_texts("name", store_.call.size(), row_of, [&](std::size_t call) { return string(store_.call.name[call]); });
        break;
      case Target::Tracks:
        add_numbers(info, column);
        store_.track.each_column([&](const ColumnInfo& of, const auto& values) { add_taken(of.name, values, row_of); });
        break;
      case Target::Variants:
        add_numbers(info, column);
        add_variant(row_of);
        break;
      default:
        add_numbers(info, column);
    }
  }

  void add_copy_names(const store::Memcpys& table) {
    constexpr std::size_t kBits = 5;
    constexpr std::size_t kValues = std::size_t{1} << kBits;  // more than the known values; others are unknown, like 0
    const auto known = [](uint8_t value) { return value < kValues ? std::size_t{value} : 0; };
    const auto id_of = [&](std::size_t row) {
      return (known(table.kind[row]) * kValues + known(table.source[row])) * kValues + known(table.destination[row]);
    };
    add_texts("name", kValues * kValues * kValues, id_of, [](std::size_t id) {
      return store::copy_name(store::CopyKind{static_cast<uint8_t>(id / (kValues * kValues))},
                              store::MemoryKind{static_cast<uint8_t>(id / kValues % kValues)},
                              store::MemoryKind{static_cast<uint8_t>(id % kValues)});
    });
  }

 private:
  std::string_view string(std::size_t id) const { return store_.strings[static_cast<uint32_t>(id)]; }

  bool has(std::string_view name) const {
    return std::ranges::any_of(table_.columns, [&](const ColumnInfo& column) { return column.name == name; });
  }

  template <class Column>
  void add_numbers(const ColumnInfo& info, const Column& column) {
    columns_.push_back(
        {std::string(info.name), {info.bytes, info.is_signed, info.is_float, column.size(), column.data()}});
  }

  template <class IdOf, class TextOf>
  void add_texts(std::string_view name, std::size_t ids, IdOf&& id_of, TextOf&& text_of) {
    columns_.push_back(categorize(name, rows_, ids, id_of, text_of));
  }

  /// The values of another table's rows.
  template <class Column, class RowOf>
  void add_taken(std::string_view name, const Column& column, RowOf&& row_of) {
    using T = Column::value_type;
    auto values = std::make_shared<std::vector<T>>();
    values->reserve(rows_);
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::size_t other = row_of(row);
      values->push_back(other < column.size() ? column[other] : std::numeric_limits<T>::max());
    }
    columns_.push_back({std::string(name), numbers_of(values)});
  }

  /// Like add_taken, with each value stored once. For rows that always refer to the other table.
  template <class Column, class RowOf>
  void add_distinct(std::string_view name, const Column& column, RowOf&& row_of) {
    using T = Column::value_type;
    auto values = std::make_shared<std::vector<T>>();
    std::unordered_map<T, int32_t> known;
    std::vector<int32_t> code_of;
    for (const T value : column) {
      const auto [found, is_new] = known.try_emplace(value, static_cast<int32_t>(values->size()));
      if (is_new) {
        values->push_back(value);
      }
      code_of.push_back(found->second);
    }
    std::vector<int32_t> codes(rows_);
    for (std::size_t row = 0; row < rows_; ++row) {
      codes[row] = code_of.at(row_of(row));
    }
    columns_.push_back({std::string(name), numbers_of(values), std::nullopt, std::move(codes)});
  }

  template <class T>
  static Numbers numbers_of(const std::shared_ptr<std::vector<T>>& values) {
    return {sizeof(T), std::is_signed_v<T>, std::is_floating_point_v<T>, values->size(), values->data(), values};
  }

  template <class RowOf>
  void add_variant(RowOf&& row_of) {
    const store::Variants& variant = store_.variant;
    const auto axes = [](const auto& x, const auto& y, const auto& z) {
      return [&](std::size_t row) {
        return std::to_string(x[row]) + ", " + std::to_string(y[row]) + ", " + std::to_string(z[row]);
      };
    };
    add_texts("name", variant.size(), row_of,
              [&](std::size_t row) { return base::demangle(string(variant.name[row])); });
    add_texts("grid", variant.size(), row_of, axes(variant.grid_x, variant.grid_y, variant.grid_z));
    add_texts("block", variant.size(), row_of, axes(variant.block_x, variant.block_y, variant.block_z));
    add_taken("registers", variant.registers, row_of);
    store::Column<uint32_t> shared_bytes;
    for (std::size_t row = 0; row < variant.size(); ++row) {
      shared_bytes.push_back(variant.static_shared_bytes[row] + variant.dynamic_shared_bytes[row]);
    }
    add_taken("shared_bytes", shared_bytes, row_of);
  }

  template <class IdOf>
  void add_path(IdOf&& path_of) {
    if (path_texts_.empty()) {
      path_texts_ = path_texts(store_);
    }
    add_texts("path", path_texts_.size(), path_of,
              [&](std::size_t path) -> std::string_view { return path_texts_[path]; });
  }

  const store::Store& store_;
  const store::TableInfo& table_;
  const std::size_t rows_;
  std::vector<std::string> path_texts_;
  std::vector<FrameColumn> columns_;
};

}  // namespace

std::vector<FrameColumn> make_frame(const store::Store& store, std::string_view wanted) {
  std::vector<FrameColumn> columns;
  store.with_table(wanted, [&]<class Table>(const Table& table) {
    Frame frame(store, Table::kInfo, table.size());
    table.each_column([&](const ColumnInfo& info, const auto& column) { frame.add(info, column); });
    if constexpr (std::is_same_v<Table, store::Memcpys>) {
      frame.add_copy_names(table);
    }
    columns = frame.take();
  });
  return columns;
}

namespace {

/// Removes the middle of long paths.
std::string shortened(std::string path) {
  constexpr std::string_view kLeftOut = "/.../";
  constexpr std::size_t kHalf = kMostPathBytes / 2;
  if (path.size() <= kMostPathBytes) {
    return path;
  }
  const std::size_t outer = std::min({path.find(kLeftOut), path.rfind('/', kHalf), kHalf});
  const std::size_t inner = path.find('/', path.size() - kHalf);
  const std::size_t begin = inner == std::string::npos ? path.size() - kHalf : inner + 1;
  return path.substr(0, outer).append(kLeftOut).append(path, begin);
}

}  // namespace

std::vector<std::string> path_texts(const store::Store& store) {
  std::vector<std::string> texts;
  texts.reserve(store.path.size());
  for (std::size_t row = 0; row < store.path.size(); ++row) {
    const uint32_t parent = store.path.parent[row];
    std::string text = parent < row ? texts[parent] + "/" : "";
    texts.push_back(shortened(text.append(store.strings[store.path.name[row]])));
  }
  return texts;
}

}  // namespace gpuscope::exporters
