// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/readers/nesting.h"
#include "gpuscope/readers/trace_events.h"
#include "gpuscope/torch/operators.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using readers::RowNumbers;
using readers::TraceEvents;

template <class T>
using Given = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
std::span<const T> values_of(const Given<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

/// An array on the values' own memory.
template <class T>
py::array_t<T> moved_to_array(std::vector<T>&& values) {
  auto* const kept = new std::vector<T>(std::move(values));
  const py::capsule owner(kept, [](void* memory) { delete static_cast<std::vector<T>*>(memory); });
  return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

py::typing::Dict<py::str, py::array> take_events(TraceEvents& events, const std::vector<std::string>& names) {
  readers::EventColumns rows = events.take();
  py::typing::Dict<py::str, py::array> columns;
  columns["phase"] = moved_to_array(std::move(rows.phase));
  columns["category"] = moved_to_array(std::move(rows.category));
  columns["name"] = moved_to_array(std::move(rows.name));
  columns["place"] = moved_to_array(std::move(rows.place));
  columns["start_ns"] = moved_to_array(std::move(rows.start_ns));
  columns["duration_ns"] = moved_to_array(std::move(rows.duration_ns));
  columns["id"] = moved_to_array(std::move(rows.id));
  std::size_t next = 0;
  for (std::vector<int64_t>& column : rows.integers) {
    columns[py::str("args." + names[next++])] = moved_to_array(std::move(column));
  }
  for (std::vector<uint32_t>& column : rows.texts) {
    columns[py::str("args." + names[next++])] = moved_to_array(std::move(column));
  }
  return columns;
}

/// TraceEvents and the names of its argument columns.
struct EventReader {
  EventReader(std::string_view phases, const std::vector<std::string>& integers, const std::vector<std::string>& texts,
              const std::vector<std::pair<std::string, std::string>>& aliases)
      : events(phases, integers, texts, aliases), names(integers) {
    names.insert(names.end(), texts.begin(), texts.end());
  }
  TraceEvents events;
  std::vector<std::string> names;
};

py::object tag(const EventReader& reader, const TraceEvents::Tag& found) {
  switch (found.kind) {
    case TraceEvents::Tag::Kind::Number:
      return py::int_(found.value);
    case TraceEvents::Tag::Kind::Text:
      return py::str(std::string(reader.events.strings()[static_cast<uint32_t>(found.value)]));
    case TraceEvents::Tag::Kind::None:
      break;
  }
  return py::none();
}

py::tuple place(const EventReader& reader, std::size_t number) {
  const auto& [process, thread] = reader.events.places().at(number);
  return py::make_tuple(tag(reader, process), tag(reader, thread));
}

py::typing::List<py::tuple> places(const EventReader& reader) {
  py::typing::List<py::tuple> all;
  for (std::size_t number = 0; number < reader.events.places().size(); ++number) {
    all.append(place(reader, number));
  }
  return all;
}

py::typing::List<py::str> event_strings(const EventReader& reader) {
  const base::StringTable& strings = reader.events.strings();
  py::typing::List<py::str> all(strings.size());
  for (uint32_t id = 0; id < strings.size(); ++id) {
    all[id] = py::str(strings[id].data(), strings[id].size());
  }
  return all;
}

using Ids = Given<uint32_t>;
using Times = Given<int64_t>;

py::tuple nest(const Times& start_ns, const Times& duration_ns, const Ids& thread, const Ids& name, const Ids& kind) {
  if (duration_ns.size() != start_ns.size() || thread.size() != start_ns.size() || kind.size() != name.size() ||
      name.size() > start_ns.size()) {
    throw base::InvalidArgument("the columns of the spans differ in length");
  }
  readers::Nesting found;
  {
    const py::gil_scoped_release released;
    found = readers::nest({values_of(start_ns), values_of(duration_ns), values_of(thread)}, values_of(name),
                          values_of(kind));
  }
  return py::make_tuple(moved_to_array(std::move(found.around)), moved_to_array(std::move(found.path)),
                        moved_to_array(std::move(found.path_parent)), moved_to_array(std::move(found.path_name)),
                        moved_to_array(std::move(found.path_kind)), moved_to_array(std::move(found.path_depth)));
}

py::array_t<uint32_t> number_rows(RowNumbers& numbers, const std::vector<Times>& columns) {
  std::vector<std::span<const int64_t>> spans;
  for (const Times& column : columns) {
    spans.push_back(values_of(column));
  }
  if (columns.size() != numbers.columns().size() ||
      std::ranges::any_of(spans, [&](const auto& span) { return span.size() != spans.front().size(); })) {
    throw base::InvalidArgument("columns are " + std::to_string(columns.size()) + " of unlike length; accepted are " +
                                std::to_string(numbers.columns().size()) + " of one length");
  }
  std::vector<uint32_t> found;
  {
    const py::gil_scoped_release released;
    found = numbers.number(spans);
  }
  return moved_to_array(std::move(found));
}

py::tuple split_ranges(const std::vector<std::string>& texts) {
  py::typing::List<py::str> names, shapes;
  std::vector<uint8_t> kinds;
  std::vector<int64_t> sequences;
  std::vector<uint32_t> ops, producers;
  for (const std::string& text : texts) {
    torch::RangeText range = torch::parse_range(text);
    // Versions of torch before 1.10 write no operator number.
    const bool is_of_torch =
        range.op != 0 || text.starts_with("aten::") || (range.sequence >= 0 && torch::names_op(range.name, -1));
    if (!is_of_torch) {
      range = torch::RangeText();
      range.name = text;
    }
    const bool is_op = is_of_torch && torch::names_op(range.name, range.sequence);
    names.append(py::str(range.name.data(), range.name.size()));
    shapes.append(py::str(range.shapes.data(), range.shapes.size()));
    kinds.push_back(static_cast<uint8_t>(is_op ? base::RegionKind::Op : base::RegionKind::Range));
    sequences.push_back(range.sequence);
    ops.push_back(range.op);
    producers.push_back(range.producer);
  }
  return py::make_tuple(names, shapes, moved_to_array(std::move(kinds)), moved_to_array(std::move(sequences)),
                        moved_to_array(std::move(ops)), moved_to_array(std::move(producers)));
}

}  // namespace

void bind_readers(py::module_& module) {
  py::class_<EventReader>(module, "TraceEvents",
                          "Reads a trace in Chrome's format as it comes, and hands out columns of its events.")
      .def(py::init<std::string_view, const std::vector<std::string>&, const std::vector<std::string>&,
                    const std::vector<std::pair<std::string, std::string>>&>(),
           py::arg("phases"), py::arg("integers"), py::arg("texts"), py::arg("aliases"),
           "`phases`: the letters of those to be read. `integers`, `texts`: the arguments to be read, as numbers or as "
           "texts; lists and objects read as their JSON. `aliases`: pairs of a further name and one of these.")
      .def(
          "feed",
          [](EventReader& reader, const py::bytes& text) {
            const auto view = static_cast<std::string_view>(text);
            const py::gil_scoped_release released;
            reader.events.feed(view);
          },
          py::arg("text"),
          "The next part of the file, without the GIL. Raises CorruptTrace, with the place and why, where it is no "
          "JSON; the events before that place remain.")
      .def(
          "finish", [](EventReader& reader) { reader.events.finish(); }, py::call_guard<py::gil_scoped_release>(),
          "Nothing more comes; raises as `feed` does.")
      .def(
          "take", [](EventReader& reader) { return take_events(reader.events, reader.names); },
          "What was read since the last call, as arrays: phase (a letter's code), category and name (ids of strings, "
          "NONE where there is none), place, start_ns, duration_ns, id and \"args.NAME\" for the arguments; integers "
          "are NOT_GIVEN where there is none, as is the duration of a span.")
      .def("places", &places, "Process and thread of each number of `place`, as the trace has them.")
      .def("place", &place, py::arg("number"), "Those of one number.")
      .def(
          "find", [](const EventReader& reader, std::string_view text) { return reader.events.strings().find(text); },
          py::arg("text"), "The id of a text, NONE where it has not come.")
      .def(
          "intern", [](EventReader& reader, std::string_view text) { return reader.events.strings().intern(text); },
          py::arg("text"), "The id of a text, which is made where there is none.")
      .def(
          "string",
          [](const EventReader& reader, uint32_t id) {
            const std::string_view text = reader.events.strings()[id];
            return py::str(text.data(), text.size());
          },
          py::arg("id"), "The text of an id; empty where there is none.")
      .def("strings", &event_strings, "All texts, by id; the first is empty.")
      .def_property_readonly(
          "has_list", [](const EventReader& reader) { return reader.events.has_list(); },
          "Whether there was a list of events.")
      .def_property_readonly(
          "is_whole", [](const EventReader& reader) { return reader.events.is_whole(); },
          "Whether the file was whole; after `finish`.")
      .def_property_readonly(
          "offset", [](const EventReader& reader) { return reader.events.offset(); },
          "Where the last whole value ended, in bytes.")
      .def_property_readonly(
          "bare_backslashes", [](const EventReader& reader) { return reader.events.dialect().bare_backslashes; },
          "Whether the backslashes of texts were not escaped.")
      .def_property_readonly(
          "odd_numbers", [](const EventReader& reader) { return reader.events.dialect().odd_numbers; },
          "Whether nan, inf or N/A stood in place of numbers.")
      .def_property_readonly(
          "facts", [](const EventReader& reader) { return reader.events.facts(); },
          "Name and JSON of each value beside the events.");
  module.attr("NOT_GIVEN") = readers::kNotGiven;
  py::class_<RowNumbers>(module, "RowNumbers", "Numbers distinct rows in the order in which they come.")
      .def(py::init<std::size_t>(), py::arg("columns"), "Of so many columns.")
      .def("number", &number_rows, py::arg("columns"), "The number of each row; the columns are of int64.")
      .def(
          "columns",
          [](const RowNumbers& numbers) {
            py::typing::List<py::array_t<int64_t>> all;
            for (const std::vector<int64_t>& column : numbers.columns()) {
              all.append(to_array(column));
            }
            return all;
          },
          "The distinct rows so far, a column each.");
  module.def("nest_spans", &nest, py::arg("start_ns"), py::arg("duration_ns"), py::arg("thread"), py::arg("name"),
             py::arg("kind"),
             "Which regions spans lie in, by thread and time; the first len(name) spans are regions. The row of the "
             "region around each span, the path of each region, and parent, name, kind and depth of each path.");
  module.def("split_ranges", &split_ranges, py::arg("texts"),
             "What torch writes into the texts of NVTX ranges: names, shapes of inputs, kinds (RegionKind), autograd's "
             "numbers, the operators' own and those of who made their first tensors. Other texts are names.");
}

}  // namespace gpuscope::bindings
