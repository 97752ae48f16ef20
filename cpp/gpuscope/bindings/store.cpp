// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/store.h"

#include <malloc.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cctype>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/reading.h"
#include "gpuscope/exporters/export.h"
#include "gpuscope/exporters/frame.h"
#include "gpuscope/exporters/links.h"
#include "gpuscope/store/gscope.h"
#include "gpuscope/store/segments.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using StorePointer = std::shared_ptr<store::Store>;

py::str text(std::string_view bytes) { return {base::to_utf8(bytes)}; }

/// A Python object that keeps C++ memory alive.
py::capsule keep(std::shared_ptr<const void> memory) {
  return {new std::shared_ptr<const void>(std::move(memory)),
          [](void* kept) { delete static_cast<std::shared_ptr<const void>*>(kept); }};
}

void set_info(store::Store& store, std::string key, std::string value) {
  settle(store);
  if (store.readers == 0) {
    store.set_info(key, value);
  } else {
    store.waiting.emplace_back(std::move(key), std::move(value));
  }
}

py::typing::Dict<py::str, py::str> info(store::Store& store) {
  settle(store);
  py::typing::Dict<py::str, py::str> facts;
  for (std::size_t row = 0; row < store.info.size(); ++row) {
    facts[text(store.strings[store.info.key[row]])] = text(store.strings[store.info.value[row]]);
  }
  for (const auto& [key, value] : store.waiting) {
    facts[text(key)] = text(value);
  }
  return facts;
}

std::vector<std::string> tables(const store::Store&) {
  std::vector<std::string> names;
  for (const store::TableInfo& table : store::kTables) {
    names.emplace_back(table.name);
  }
  return names;
}

std::size_t rows(const store::Store& store, std::string_view table) {
  std::size_t count = 0;
  store.with_table(table, [&](const auto& found) { count = found.size(); });
  return count;
}

/// Read-only, on memory that `owner` keeps alive. Copied without an owner.
template <class Kind>  // ColumnInfo, Numbers
py::array make_array(const Kind& kind, std::size_t size, const void* data, const py::object& owner) {
  const char* const letter = kind.is_float ? "f" : kind.is_signed ? "i" : "u";
  py::array array(py::dtype(letter + std::to_string(kind.bytes)), size, data, owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

/// The info table is copied, as set_info may move its memory.
py::object owner_of(const StorePointer& store, std::string_view table) {
  return table == store::Infos::kInfo.name ? py::object() : py::cast(store);
}

py::typing::Dict<py::str, py::array> columns(const StorePointer& store, std::string_view table) {
  const py::object owner = owner_of(store, table);
  py::typing::Dict<py::str, py::array> arrays;
  store->with_table(table, [&](const auto& found) {
    found.each_column([&](const store::ColumnInfo& info, const auto& column) {
      arrays[py::str(info.name)] = make_array(info, column.size(), column.data(), owner);
    });
  });
  return arrays;
}

using FrameColumn = py::typing::Tuple<py::str, py::typing::Union<py::array, py::typing::List<py::str>>,
                                      py::typing::Optional<py::array>>;

/// Name, numbers or a list of texts. For lists of distinct texts also the index of each row's text, -1 for none.
py::typing::List<FrameColumn> frame(const StorePointer& store, std::string_view table) {
  std::vector<exporters::FrameColumn> columns =
      read_unlocked(*store, [&](const store::Store& read) { return exporters::make_frame(read, table); });
  py::typing::List<FrameColumn> result;
  for (exporters::FrameColumn& column : columns) {
    py::object values;
    if (column.texts) {
      py::list texts(column.texts->size());
      for (std::size_t index = 0; index < column.texts->size(); ++index) {
        texts[index] = text((*column.texts)[index]);
      }
      values = std::move(texts);
    } else {
      exporters::Numbers& numbers = column.numbers;
      const py::object owner = numbers.owner == nullptr ? owner_of(store, table) : keep(std::move(numbers.owner));
      values = make_array(numbers, numbers.size, numbers.data, owner);
    }
    py::object codes = py::none();
    if (column.codes) {
      const auto kept = std::make_shared<const std::vector<int32_t>>(std::move(*column.codes));
      codes = make_array(exporters::Numbers{sizeof(int32_t), true}, kept->size(), kept->data(), keep(kept));
    }
    result.append(py::make_tuple(column.name, values, codes));
  }
  return result;
}

constexpr const char* kArrowStream = "arrow_array_stream";

py::capsule arrow_stream(const StorePointer& store, std::string_view table) {
  auto stream = std::make_unique<ArrowArrayStream>(
      read_unlocked(*store, [&](const store::Store&) { return exporters::make_arrow_stream(store, table); }));
  py::capsule capsule(stream.get(), kArrowStream, [](PyObject* object) {
    auto* unread = static_cast<ArrowArrayStream*>(PyCapsule_GetPointer(object, kArrowStream));
    if (unread->release != nullptr) {  // the consumer did not import it
      unread->release(unread);
    }
    delete unread;
  });
  stream.release();
  return capsule;
}

py::str string(const store::Store& store, uint32_t id) {
  if (id >= store.strings.size()) {
    throw base::InvalidArgument("id is " + std::to_string(id) + "; this recording has string ids below " +
                                std::to_string(store.strings.size()));
  }
  return text(store.strings[id]);
}

py::typing::List<py::str> strings(const store::Store& store) {
  py::typing::List<py::str> all(store.strings.size());
  for (uint32_t id = 0; id < store.strings.size(); ++id) {
    all[id] = text(store.strings[id]);
  }
  return all;
}

StorePointer merge(const std::vector<StorePointer>& stores) {
  std::deque<StoreReading> readings;
  for (const StorePointer& each : stores) {
    readings.emplace_back(*each);
  }
  const py::gil_scoped_release unlocked;
  auto all = std::make_shared<store::Store>();
  for (const StorePointer& each : stores) {
    store::append(*all, *each);
  }
  return all;
}

constexpr std::size_t kWorthTrimming = 1 << 19;  // bytes of a column

/// A recording from another source. Missing columns read as in a file that lacks them.
StorePointer make_store(const py::typing::Dict<py::str, py::typing::Dict<py::str, py::array>>& tables,
                        const std::vector<std::string>& strings,
                        const std::vector<std::pair<std::string, std::string>>& facts, bool consume) {
  auto made = std::make_shared<store::Store>();
  for (std::size_t id = 0; id < strings.size(); ++id) {
    if (made->strings.intern(strings[id]) != id) {
      throw base::InvalidArgument("strings has '" + strings[id] + "' twice; accepted are distinct ones, '' first");
    }
  }
  std::size_t known = 0;
  made->each_table([&](auto& table) {
    const py::str name(table.kInfo.name);
    if (!tables.contains(name)) {
      return;
    }
    ++known;
    const py::dict given = tables[name];
    std::size_t rows = 0;
    for (const auto& [column, values] : given) {
      rows = py::len(values);
    }
    std::size_t taken = 0;
    table.each_column([&](const store::ColumnInfo& info, auto& column) {
      using T = std::remove_reference_t<decltype(column)>::value_type;
      const py::str column_name(info.name);
      if (!given.contains(column_name)) {
        column.append_copies(rows, info.meaning.optional ? static_cast<T>(store::kNone) : T{});
        return;
      }
      ++taken;
      auto values = py::array_t<T, py::array::c_style | py::array::forcecast>::ensure(given[column_name]);
      if (!values || values.ndim() != 1 || static_cast<std::size_t>(values.size()) != rows) {
        PyErr_Clear();
        throw base::InvalidArgument("column " + std::string(info.name) + " of table " + std::string(table.kInfo.name) +
                                    " is no array of " + std::to_string(rows) + " numbers of its type");
      }
      column.append({values.data(), rows});
      if (consume) {  // so that the columns are not in memory twice
        given[column_name] = py::none();
        values = {};
        if (rows * sizeof(T) >= kWorthTrimming) {
          malloc_trim(0);  // malloc would keep it, and the next column is not malloc's
        }
      }
    });
    if (taken != given.size()) {
      throw base::InvalidArgument("table " + std::string(table.kInfo.name) + " has a column that it does not know");
    }
  });
  if (known != tables.size()) {
    throw base::InvalidArgument("tables has one that recordings do not have");
  }
  for (const auto& [key, value] : facts) {
    made->set_info(key, value);
  }
  if (const std::string bad = store::find_bad_reference(*made); !bad.empty()) {
    throw base::InvalidArgument("the tables do not fit together: " + bad);
  }
  return made;
}

py::typing::List<py::str> path_texts(const store::Store& store) {
  py::typing::List<py::str> texts;
  for (const std::string& path : exporters::path_texts(store)) {
    texts.append(text(path));
  }
  return texts;
}

/// HostToDevice in Python's spelling: HOST_TO_DEVICE.
std::string upper_case(std::string_view name) {
  std::string upper;
  for (const char letter : name) {
    if (!upper.empty() && std::isupper(static_cast<unsigned char>(letter)) != 0) {
      upper += '_';
    }
    upper += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return upper;
}

/// A C++ enumeration as a class of Python's enum. py::native_enum uses an iostream, and torch's import crashes after
/// that.
void bind_enum(py::module_& module, const char* name, const char* base, const char* doc, const py::list& members) {
  py::object type = py::module_::import("enum").attr(base)(name, members, py::arg("module") = module.attr("__name__"));
  type.attr("__doc__") = doc;
  module.attr(name) = type;
}

void bind_enums(py::module_& module) {
  module.attr("NONE") = store::kNone;
#define GPUSCOPE_VALUE(name, number) members.append(py::make_tuple(upper_case(#name), number));
#define GPUSCOPE_BIND(Name, Underlying, LIST, doc)     \
  {                                                    \
    py::list members;                                  \
    LIST(GPUSCOPE_VALUE)                               \
    bind_enum(module, #Name, "IntEnum", doc, members); \
  }
  GPUSCOPE_ENUMS(GPUSCOPE_BIND)
  GPUSCOPE_BIND(Role, uint8_t, GPUSCOPE_ROLE, "What a table holds.")
#undef GPUSCOPE_BIND
  py::list members;
  GPUSCOPE_FLAG(GPUSCOPE_VALUE)
  bind_enum(module, "Flag", "IntFlag", GPUSCOPE_FLAG_DOC, members);
#undef GPUSCOPE_VALUE
}

/// The table whose row numbers a column contains, or "string". None for other columns.
std::optional<std::string> target_name(const store::ColumnInfo& column) {
  if (column.meaning.target == store::Target::Strings) {
    return "string";
  }
  const store::TableInfo* table = store::find_table(column.meaning.target);
  return table != nullptr ? std::optional<std::string>(table->name) : std::nullopt;
}

void bind_schema(py::module_& module) {
  using store::ColumnInfo;
  using store::TableInfo;
  py::class_<ColumnInfo>(module, "ColumnInfo", "What the schema says of a column.")
      .def_readonly("name", &ColumnInfo::name)
      .def_property_readonly(
          "dtype",
          [](const ColumnInfo& column) {
            return (column.is_float ? "float" : column.is_signed ? "int" : "uint") + std::to_string(8 * column.bytes);
          },
          "As NumPy calls it.")
      .def_property_readonly("target", &target_name,
                             "The table whose row numbers it holds, or \"string\" for string ids.")
      .def_property_readonly(
          "optional", [](const ColumnInfo& column) { return column.meaning.optional; }, "Whether NONE stands for none.")
      .def_property_readonly(
          "values",
          [](const ColumnInfo& column) {
            const std::string_view name = column.meaning.enumeration;
            return name.empty() ? std::nullopt : std::optional<std::string>(name);
          },
          "The enumeration whose numbers it holds, as this module calls it.")
      .def_readonly("doc", &ColumnInfo::doc);
  py::class_<TableInfo>(module, "TableInfo", "What the schema says of a table.")
      .def_readonly("name", &TableInfo::name)
      .def_readonly("attribute", &TableInfo::attribute, "Its name as an attribute of Trace.")
      .def_property_readonly(
          "role", [](const TableInfo& table) { return static_cast<int>(table.role); }, "A Role.")
      .def_readonly("doc", &TableInfo::doc)
      .def_property_readonly("columns", [](const TableInfo& table) {
        return std::vector<ColumnInfo>(table.columns.begin(), table.columns.end());
      });
  module.def(
      "schema", [] { return std::vector<TableInfo>(store::kTables.begin(), store::kTables.end()); },
      "Every table of a recording.");
}

/// Formats without the GIL, and takes it for each `write`.
template <auto exporter>
void write_chunks(store::Store& store, const py::function& write) {
  read_unlocked(store, [&](const store::Store& read) {
    exporter(read, [&write](std::string_view chunk) {
      const py::gil_scoped_acquire acquire;
      write(py::bytes(chunk.data(), chunk.size()));
    });
  });
}

}  // namespace

void bind_store(py::module_& module) {
  bind_enums(module);
  bind_schema(module);
  py::class_<store::Store, StorePointer>(module, "Store", "One recording: its tables and strings.")
      .def("tables", &tables, "The names of all tables.")
      .def("rows", &rows, py::arg("table"), "How many rows a table has.")
      .def("columns", &columns, py::arg("table"),
           "A table's columns by name: read-only NumPy views of the store's own memory, which keep it alive.")
      .def("string", &string, py::arg("id"), "The string that an id names.")
      .def("strings", &strings, "All strings, by id.")
      .def("info", &info, "Facts about the run, by key.")
      .def("set_info", &set_info, py::arg("key"), py::arg("value"),
           "Sets one fact about the run. A file that is being written lacks it.")
      .def("path_texts", &path_texts,
           "Each row of the path table as \"outer/inner\", long ones as \"outer/.../inner\".")
      .def(
          "frame", &frame, py::arg("table"),
          "A table's columns as data frames show them, with names in place of row numbers: the name, a number a row or "
          "distinct numbers or texts, and of these which one each row has, -1 for none.")
      .def("arrow_stream", &arrow_stream, py::arg("table"),
           "The same columns as a capsule of the Arrow C stream interface, which keeps the store alive.");
  module.def("merge", &merge, py::arg("stores"),
             "One new Store with all that these hold, in their order; they are of one process.");
  module.def(
      "make_store", &make_store, py::arg("tables"), py::arg("strings"), py::arg("facts"), py::arg("consume") = false,
      "A Store of arrays by table and column, with row numbers as in a recording; ids of strings are places in "
      "`strings`, which are distinct, the first empty; `facts`: pairs of the info; `consume`: give the arrays up "
      "one by one.");
  using release = py::call_guard<py::gil_scoped_release>;
  module.def("write_gscope", &write_chunks<&store::write_gscope>, py::arg("store"), py::arg("write"),
             "Hand a store to `write` as a .gscope file, in blocks.");
  module.def(
      "read_gscope",
      [](const std::string& path, bool salvage) -> std::shared_ptr<store::Store> {
        return store::read_gscope(path, salvage ? store::Damage::Salvage : store::Damage::Refuse);
      },
      py::arg("path"), py::arg("salvage") = false, release(),
      "Open a .gscope file, up to its last whole block; what is whole of one that is damaged elsewhere, with "
      "`salvage`.");
  module.def(
      "read_segments",
      [](const std::string& folder, const std::optional<StorePointer>& last) -> StorePointer {
        return store::read_segments(folder, last.has_value() ? last->get() : nullptr);
      },
      py::arg("folder"), py::arg("last") = py::none(), release(),
      "The segments of a folder as one Store, damaged ones as far as they are whole. `last`: a segment in no file.");
  module.def("write_chrome", &write_chunks<&exporters::write_chrome>, py::arg("store"), py::arg("write"),
             "Hand a store's events to `write` as JSON, in chunks of about 1 MiB.");
  module.def("write_perfetto", &write_chunks<&exporters::write_perfetto>, py::arg("store"), py::arg("write"),
             "Hand a store's events to `write` as Perfetto packets, in chunks of about 1 MiB that split no packet.");
  module.def(
      "backward_flows",
      [](const store::Store& store) {
        return py::array_t<uint32_t>(py::cast(exporters::number_backward_flows(store)));
      },
      py::arg("store"),
      "The number of the arrow from each region to its backward operator, 0 for none; empty where there are none.");
  module.attr("BACKWARD_LINKS") = exporters::kBackwardLinks;
  module.attr("EXTERNAL_IDS") = exporters::kExternalIds;
  module.attr("ADJUSTED_STEPS") = exporters::kAdjustedSteps;
}

}  // namespace gpuscope::bindings
