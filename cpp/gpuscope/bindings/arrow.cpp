// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/arrow.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/arrow_abi.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using StorePointer = std::shared_ptr<const store::Store>;

/// Strings as Arrow's utf8 layout wants them, and for each row which one. Indices are signed: pandas reads no others.
struct Dictionary {
  std::vector<int32_t> indices;
  std::vector<int32_t> offsets = {0};
  std::string text;
};

struct Field {
  std::string name;
  const char* format;
  const void* values;  // of a number column, in the store
  std::optional<Dictionary> dictionary;
};

/// What stream, schema and arrays share; whichever is released last frees it.
struct Batch {
  StorePointer store;
  int64_t rows = 0;
  std::vector<Field> fields;
};
using BatchPointer = std::shared_ptr<const Batch>;

template <class T>
constexpr const char* format_of() {
  constexpr std::array<const char*, 4> kUnsigned = {"C", "S", "I", "L"};
  constexpr std::array<const char*, 4> kSigned = {"c", "s", "i", "l"};
  constexpr std::size_t kIndex = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return std::is_signed_v<T> ? kSigned[kIndex] : kUnsigned[kIndex];
}

/// `id_of(row)` is a row's string id; `spell` turns a string into what readers see.
template <class IdOf, class Spell>
Dictionary make_dictionary(const store::Store& store, std::size_t rows, IdOf&& id_of, Spell&& spell) {
  Dictionary result;
  result.indices.reserve(rows);
  std::vector<int32_t> index_of(store.strings.size(), -1);
  for (std::size_t row = 0; row < rows; ++row) {
    const uint32_t id = id_of(row) < index_of.size() ? id_of(row) : 0;
    if (index_of[id] < 0) {
      index_of[id] = static_cast<int32_t>(result.offsets.size() - 1);
      result.text += base::to_utf8(spell(store.strings[id]));
      result.offsets.push_back(static_cast<int32_t>(result.text.size()));
    }
    result.indices.push_back(index_of[id]);
  }
  return result;
}

bool holds_string_ids(std::string_view table, std::string_view column) {
  return column == "name" || column == "uuid" || column == "library" ||
         (table == "info" && (column == "key" || column == "value"));
}

/// The name of each row of a table whose names are one dictionary away.
std::optional<Dictionary> joined_names(const store::Store& store, std::string_view table) {
  const auto join = [&](const auto& rows, const auto& names, auto&& spell) {
    const auto id_of = [&](std::size_t row) { return rows[row] < names.size() ? names[rows[row]] : 0U; };
    return make_dictionary(store, rows.size(), id_of, spell);
  };
  if (table == "kernel") {
    return join(store.kernel.variant, store.variant.name, base::demangle);
  }
  if (table == "api") {
    return join(store.api.call, store.call.name, std::identity{});
  }
  if (table == "region") {
    return join(store.region.path, store.path.name, std::identity{});
  }
  return std::nullopt;
}

BatchPointer make_batch(StorePointer store, std::string_view wanted) {
  std::shared_ptr<Batch> batch;
  store->each_table([&](const char* name, const auto& table) {
    if (wanted != name) {
      return;
    }
    batch = std::make_shared<Batch>(Batch{store, static_cast<int64_t>(table.size()), {}});
    if (auto names = joined_names(*store, wanted)) {
      batch->fields.push_back({"name", "i", nullptr, std::move(names)});
    }
    table.each_column([&](const char* column, const auto& values) {
      using T = typename std::remove_cvref_t<decltype(values)>::value_type;
      if constexpr (std::is_same_v<T, uint32_t>) {
        if (holds_string_ids(wanted, column)) {
          const auto id_of = [&](std::size_t row) { return values[row]; };
          batch->fields.push_back(
              {column, "i", nullptr, make_dictionary(*store, values.size(), id_of, std::identity{})});
          return;
        }
      }
      batch->fields.push_back({column, format_of<T>(), values.data(), std::nullopt});
    });
  });
  if (batch == nullptr) {
    throw base::InvalidArgument("table: there is no table \"" + std::string(wanted) + "\"; Store.tables() lists them");
  }
  return batch;
}

// A consumer may take children out of their parent and release them later, so each schema and each array owns what it
// needs; `release` frees children that are still there, as the specification asks.
template <class Node>
struct Owned {
  BatchPointer batch;
  std::string name;
  std::array<const void*, 3> buffers{};
  std::vector<Node> children;
  std::vector<Node*> child_pointers;
  Node dictionary{};
};

template <class Node>
void release_node(Node* node) {
  auto* owned = static_cast<Owned<Node>*>(node->private_data);
  for (Node& child : owned->children) {
    if (child.release != nullptr) {
      child.release(&child);
    }
  }
  if (owned->dictionary.release != nullptr) {
    owned->dictionary.release(&owned->dictionary);
  }
  node->release = nullptr;
  delete owned;
}

template <class Node>
Owned<Node>* own(Node* node, BatchPointer batch, std::size_t children) {
  auto owned = std::make_unique<Owned<Node>>();
  owned->batch = std::move(batch);
  owned->children.resize(children);
  for (Node& child : owned->children) {
    owned->child_pointers.push_back(&child);
  }
  *node = {};
  node->n_children = static_cast<int64_t>(children);
  node->children = children == 0 ? nullptr : owned->child_pointers.data();
  node->release = &release_node<Node>;
  node->private_data = owned.get();
  return owned.release();
}

void fill_schema(ArrowSchema* schema, const BatchPointer& batch, const std::string& name, const char* format) {
  auto* owned = own(schema, batch, 0);
  owned->name = name;
  schema->name = owned->name.c_str();
  schema->format = format;
}

void export_schema(const BatchPointer& batch, ArrowSchema* out) {
  auto* owned = own(out, batch, batch->fields.size());
  out->name = "";
  out->format = "+s";
  for (std::size_t index = 0; index < batch->fields.size(); ++index) {
    const Field& field = batch->fields[index];
    ArrowSchema* child = &owned->children[index];
    fill_schema(child, batch, field.name, field.format);
    if (field.dictionary) {
      child->dictionary = &static_cast<Owned<ArrowSchema>*>(child->private_data)->dictionary;
      fill_schema(child->dictionary, batch, "", "u");
    }
  }
}

Owned<ArrowArray>* fill_array(ArrowArray* array, const BatchPointer& batch, int64_t length, std::size_t children,
                              std::initializer_list<const void*> data) {
  auto* owned = own(array, batch, children);
  std::ranges::copy(data, owned->buffers.begin() + 1);  // the first is the validity bitmap: nothing is null
  array->length = length;
  array->buffers = owned->buffers.data();
  array->n_buffers = static_cast<int64_t>(data.size() + 1);
  return owned;
}

void export_array(const BatchPointer& batch, ArrowArray* out) {
  auto* owned = fill_array(out, batch, batch->rows, batch->fields.size(), {});
  for (std::size_t index = 0; index < batch->fields.size(); ++index) {
    const Field& field = batch->fields[index];
    ArrowArray* child = &owned->children[index];
    if (!field.dictionary) {
      fill_array(child, batch, batch->rows, 0, {field.values});
      continue;
    }
    const Dictionary& strings = *field.dictionary;
    auto* child_owned = fill_array(child, batch, batch->rows, 0, {strings.indices.data()});
    child->dictionary = &child_owned->dictionary;
    fill_array(child->dictionary, batch, static_cast<int64_t>(strings.offsets.size() - 1), 0,
               {strings.offsets.data(), strings.text.data()});
  }
}

struct Source {
  BatchPointer batch;
  bool sent = false;
};

Source& source_of(ArrowArrayStream* stream) { return *static_cast<Source*>(stream->private_data); }

/// A C caller wants an errno, never an exception.
template <class F>
int guarded(F&& produce) noexcept {
  try {
    produce();
    return 0;
  } catch (...) {
    return ENOMEM;
  }
}

int get_schema(ArrowArrayStream* stream, ArrowSchema* out) {
  return guarded([&] { export_schema(source_of(stream).batch, out); });
}

int get_next(ArrowArrayStream* stream, ArrowArray* out) {
  return guarded([&] {
    Source& source = source_of(stream);
    if (source.sent) {
      *out = {};  // released: the end
      return;
    }
    export_array(source.batch, out);
    source.sent = true;
  });
}

const char* get_last_error(ArrowArrayStream*) { return "out of memory"; }

void release_stream(ArrowArrayStream* stream) {
  delete static_cast<Source*>(stream->private_data);
  stream->release = nullptr;
}

constexpr const char* kCapsuleName = "arrow_array_stream";

void destroy_capsule(PyObject* capsule) {
  auto* stream = static_cast<ArrowArrayStream*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  if (stream->release != nullptr) {  // nobody imported it
    stream->release(stream);
  }
  delete stream;
}

}  // namespace

py::capsule arrow_stream(StorePointer store, std::string_view table) {
  auto source = std::make_unique<Source>();
  {
    const py::gil_scoped_release unlocked;
    source->batch = make_batch(std::move(store), table);
  }
  auto stream = std::make_unique<ArrowArrayStream>(
      ArrowArrayStream{&get_schema, &get_next, &get_last_error, &release_stream, source.get()});
  py::capsule capsule(stream.get(), kCapsuleName, &destroy_capsule);
  source.release();
  stream.release();
  return capsule;
}

}  // namespace gpuscope::bindings
