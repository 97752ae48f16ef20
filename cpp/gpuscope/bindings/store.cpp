// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/store.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/arrow.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/store/append.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using StorePointer = std::shared_ptr<store::Store>;

py::str text(std::string_view bytes) { return {base::to_utf8(bytes)}; }

py::typing::Dict<py::str, py::str> info(const store::Store& store) {
  py::typing::Dict<py::str, py::str> facts;
  for (std::size_t row = 0; row < store.info.size(); ++row) {
    facts[text(store.strings[store.info.key[row]])] = text(store.strings[store.info.value[row]]);
  }
  return facts;
}

std::vector<std::string> tables(const store::Store& store) {
  std::vector<std::string> names;
  store.each_table([&](const char* name, const auto&) { names.emplace_back(name); });
  return names;
}

template <class F>
void with_table(const store::Store& store, std::string_view wanted, F&& take) {
  bool found = false;
  store.each_table([&](const char* name, const auto& table) {
    if (wanted == name) {
      take(table);
      found = true;
    }
  });
  if (!found) {
    std::string known;
    store.each_table([&](const char* name, const auto&) { known += (known.empty() ? "" : ", ") + std::string(name); });
    throw base::InvalidArgument("table is \"" + std::string(wanted) + "\"; the tables are " + known);
  }
}

std::size_t rows(const store::Store& store, std::string_view table) {
  std::size_t count = 0;
  with_table(store, table, [&](const auto& found) { count = found.size(); });
  return count;
}

py::typing::Dict<py::str, py::array> columns(const StorePointer& store, std::string_view table) {
  // The info table is the one that set_info may still move in memory: it is copied.
  const py::object owner = table == "info" ? py::object() : py::cast(store);
  py::typing::Dict<py::str, py::array> arrays;
  with_table(*store, table, [&](const auto& found) {
    found.each_column([&](const char* name, const auto& column) {
      using T = typename std::remove_cvref_t<decltype(column)>::value_type;
      py::array_t<T> array(static_cast<py::ssize_t>(column.size()), column.data(), owner);
      array.attr("setflags")(py::arg("write") = false);
      arrays[name] = std::move(array);
    });
  });
  return arrays;
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
  auto all = std::make_shared<store::Store>();
  for (const StorePointer& each : stores) {
    store::append(*all, *each);
  }
  return all;
}

}  // namespace

void bind_store(py::module_& module) {
  py::class_<store::Store, StorePointer>(module, "Store", "One recording: its tables and strings.")
      .def("tables", &tables, "The names of all tables.")
      .def("rows", &rows, py::arg("table"), "How many rows a table has.")
      .def("columns", &columns, py::arg("table"),
           "A table's columns by name: read-only NumPy views of the store's own memory, which keep it alive.")
      .def("string", &string, py::arg("id"), "The string that an id names.")
      .def("strings", &strings, "All strings, by id.")
      .def("info", &info, "Facts about the run, by key.")
      .def("set_info", &store::Store::set_info, py::arg("key"), py::arg("value"), "Sets one fact about the run.")
      .def(
          "arrow_stream", [](const StorePointer& store, std::string_view table) { return arrow_stream(store, table); },
          py::arg("table"), "A table as a capsule of the Arrow C stream interface, which keeps the store alive.");
  module.def("merge", &merge, py::arg("stores"), py::call_guard<py::gil_scoped_release>(),
             "One new Store with all that these hold, in their order; they are of one process.");
}

}  // namespace gpuscope::bindings
